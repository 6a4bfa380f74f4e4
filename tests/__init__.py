"""The tests: a folder for each room, `end_to_end/` for real daemons, `project/` for the project itself.

They may import every room, and the generators beside this file.
Nothing imports them but pytest and `make docs`.
"""
