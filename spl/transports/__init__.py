"""Where a run's loop goes: into the daemon, or into a confined process.

Both transports drive the same loop against the same kernel; nothing here decides anything about a run.
This room imports `spl.kernel`, `spl.loop`, `spl.records` and `bwrap`; `spl.api` and `spl.daemon` call it.
"""
