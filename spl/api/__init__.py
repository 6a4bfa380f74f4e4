"""HTTP in, HTTP out: the operator's app, the worker's five doors, and the listener both are served by.

This room decides nothing: it reads a request, calls `spl.kernel` or `spl.transports`, and writes the answer.
It imports those, `spl.records`, Starlette and Hypercorn; `spl.daemon` puts it on its sockets.
"""
