"""Tests of what a release gives a user: the wheel, the sdist, what is installed of them, and how a release is made.

They build from this checkout, install outside it, and run what was installed. Only pytest and `make matrix` call them.
"""
