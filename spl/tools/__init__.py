"""What tools there are, where each may run, and what those the kernel runs do.

This room imports `spl.records`, `spl.loop` (whose code the sandboxed tools are) and `bwrap` (to see processes end);
`spl.kernel` calls it.
A tool here decides nothing about whether it may run, and writes no record itself: it says which are to be written.
"""
