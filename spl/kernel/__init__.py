"""The decisions: who may start what, under which ceilings, what each call is answered, how a run ended.

This room imports `spl.records`, `spl.tools` and `spl.inference`; it knows no HTTP, starts no process and never
asks which transport it serves. `spl.api` and `spl.transports` call it.
"""
