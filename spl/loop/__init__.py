"""The work loop, one piece of code for both transports, and the code of the tools it runs itself.

It imports the standard library only, and little of that: the confined worker pays for every module.
`spl.worker` and the in-process transport drive it; the tool registry reads its schemas.
"""
