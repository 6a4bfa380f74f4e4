"""Tests of the project itself: its claims, its pages, its pins and the independence of its rooms.

They read the checkout's files and import the generators of `tests/`.
Only pytest calls them.
"""
