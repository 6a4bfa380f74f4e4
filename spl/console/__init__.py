"""The dashboard of `spl console`: what is known of a daemon, how it is drawn, and what the keys do.

What comes in as `events`, `state`, `selection`, `view` and the screens take in purely; `keys`, `feeds`, `actions` and
`watching` are the terminal and the network around them. It imports the HTTP client, the errors and rich; the command
line calls it, and nobody else.
"""
