"""The decisions: who may start what, under which ceilings, what each call is answered, how a run ended.

This room imports `spl.records`, `spl.tools` and `spl.inference`; it knows no HTTP and starts no worker. It decides
which transport a run takes, and then answers either one by the same code. `spl.api` and `spl.transports` call it.
"""
