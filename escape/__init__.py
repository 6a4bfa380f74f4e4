"""The escape suite: from inside a confined process, every way out that is known, and what the kernel answers to each.

An attempt (`attempts/`) is one small object. Its code is sealed into an image of its own (`image`, `program`,
`inside`), which a daemon that is assembled here runs for a member in the worker's place (`instance`), among victims and
canaries that are real (`victims`, `attempting`). `judge` turns answers into rows, `mutating` takes layers away
(`weakened`, `stub`) to see the rows turn red, `suite` has both done in a process for each shape (`child`,
`installation`), and `report` and `page` keep what came out. It may import `bwrap`, the client, the daemon and what that
is assembled from, and is imported by the command line alone; what is sealed may import the worker's program.
"""
