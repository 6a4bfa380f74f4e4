"""The confined program: it probes its confinement, takes one credential and does one run through five doors.

It imports the standard library and `spl.loop` only, and sparingly: its memory bounds the runs a host carries.
The sandboxed transport seals its sources into an image and starts it; nothing else imports it.
"""
