"""The escape suite: from inside a confined process, every way out that is known, and what the kernel answers to each.

An attempt (`attempts/`) is one small object. Its code is sealed into an image of its own (`image`, `program`,
`inside`), which a daemon that is assembled here runs for a member in the worker's place (`instance`), among victims and
canaries that are real (`victims`). `judge` turns answers into rows, `weakened` takes layers away to see the rows turn
red, `suite` does it all in both shapes, and `report` keeps what came out.
It may import `spl.client`, `spl.daemon` and `bwrap`, and is imported by the command line alone.
"""
