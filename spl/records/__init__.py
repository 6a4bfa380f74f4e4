"""The record, its canonical form and id, and the log that keeps records.

This room imports the standard library and `spl.errors` and nothing else, so that a record can be verified
anywhere. The kernel and the API write and read through the protocol in `store`; the daemon opens the SQLite
backend behind it, and the command line uses `canonical` and `record` to verify an export without a daemon.
"""
