"""The daemon, its kernel and its command line.

Each folder is a room with a few sentences of its own on what lives there and what it may import; the arrows
between them are checked by import-linter. `bwrap/`, beside this package, is the confinement library.
"""

__version__ = "0.1.0"
