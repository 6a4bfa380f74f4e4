"""The command line: a file for each family of commands, loaded when one of them is called.

It may import `spl.client`, `spl.home`, `spl.settings`, `spl.records`, `bwrap`, for `serve` `spl.daemon`, and
click and rich.
Nobody imports it: a person calls `spl`.
"""
