"""`spl bench`: what confinement and judgment cost on this host, measured on real daemons in throw-away homes.

It starts `spl serve` as a person would, and one daemon more in a process of its own whose workers say how long each
verdict took; what it measures stands in ratios to floors of the same run. Only `spl.cli` calls it.
"""
