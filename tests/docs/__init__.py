"""The pages of README.md and docs/ held against the program: each command in them is run, each link followed.

They read the checkout's pages, and run them as root with real daemons in networks of their own.
Only pytest calls them.
"""
