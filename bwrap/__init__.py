"""Confinement: a declarative profile in, a confined, probed and supervised process out.

It imports the standard library, pydantic and pyseccomp, and knows nothing of runs, records or HTTP.
`spl.transports` starts workers with it, `spl.daemon` reports what the host can do, `spl.cli` authors profiles with it.
"""
