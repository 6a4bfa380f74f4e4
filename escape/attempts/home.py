"""Out into the instance's home: what the operator keeps there, and the socket that the worker is shown of it."""

from __future__ import annotations

import os
import socket
import stat

from escape.attempt import Attempt, Wall
from escape.attempts._reaching import READ_ONLY, made, makes, opens, reads, together
from escape.inside import AT_FDCWD, World, do, every, files_work, stopped, the_door_opens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Chain = Callable[[World], str]


def _home(*names: str) -> Chain:
    return lambda world: reads(*(f"{world.home}/{name}" for name in names))


def _home_listed(world: World) -> str:
    run = os.path.dirname(world.socket)
    there = [*do("list", os.listdir, world.home), *do("list", os.listdir, run)]
    expected = [os.path.basename(run), os.path.basename(world.socket)]
    return (
        f"the home holds {len(there)} names"
        if there != expected
        else stopped("nothing but the worker socket")
    )


def _home_by_descriptor(world: World) -> str:
    def beneath(path: str, name: str) -> str:
        folder = do("open O_PATH", os.open, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file = do("openat", lambda: os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder))
            try:
                return f"{name}, {len(do('read', os.read, file, 40))} bytes"
            finally:
                os.close(file)
        finally:
            os.close(folder)

    run = os.path.dirname(world.socket)
    return every(lambda: beneath(world.home, "token"), lambda: beneath(run, "../token"))


def _home_dotdot(world: World) -> str:
    run, name = os.path.dirname(world.socket), os.path.basename(world.home)
    return reads(f"{run}/../token", f"{run}/../../{name}/token", f"{world.home}/./run/.././/token")


def _home_changed(world: World) -> str:
    return opens(os.O_WRONLY, f"{world.home}/token", f"{world.home}/hub.db")


def _home_made(world: World) -> str:
    return makes(f"{world.home}/made", f"{os.path.dirname(world.socket)}/made")


def _operator_socket(world: World) -> str:
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    with do("socket", socket.socket, socket.AF_UNIX, kind) as connection:
        # It asks for no token: whoever connects is the operator.
        do("connect", connection.connect, f"{world.home}/run/spl.sock")
    return "the operator's socket took the connection"


def _socket_replaced(world: World) -> str:
    """Put something else where the next worker connects; the name is put back."""
    aside = f"{world.socket}.aside"

    def renamed() -> str:
        got = together(
            "change",
            ("renameat2", AT_FDCWD, world.socket, AT_FDCWD, aside, 0),
            ("renameat", AT_FDCWD, world.socket, AT_FDCWD, aside),
            ("rename", world.socket, aside),
        )
        os.rename(aside, world.socket)
        return got

    return every(
        renamed,
        lambda: together("change", ("unlinkat", AT_FDCWD, world.socket, 0), ("unlink", world.socket)),
        lambda: made("mknodat", AT_FDCWD, aside, stat.S_IFSOCK | 0o600, 0, path=aside),
        lambda: made("symlinkat", world.host_socket, AT_FDCWD, aside, path=aside),
    )


_HOME_READ = "what only the operator may read is read"

_AT_HOME = (
    Wall("home", "ENOENT at open"),
    # The home is the daemon's user's alone, and hosted a worker is another.
    Wall("separate_user", "EACCES at open", "EACCES at open, ENOENT at open", shape="hosted"),
)


def _of_home(name: str, sentence: str, chain: Chain) -> Attempt:
    return Attempt(f"home.{name}", sentence, chain, control=files_work, walls=_AT_HOME, escape=_HOME_READ)


ATTEMPTS: tuple[Attempt, ...] = (
    _of_home("operator_token", "reads the operator's token in the home", _home("token")),
    _of_home(
        "hub", "reads the records' database and its journals", _home("hub.db", "hub.db-wal", "hub.db-shm")
    ),
    _of_home("provider_key", "reads a provider's key", _home("secrets/anthropic.key")),
    _of_home("members_file", "reads a member's file", _home("data/plan.txt")),
    _of_home(
        "settings",
        "reads the daemon's settings, its log and its pid",
        _home("config.toml", "daemon.log", "logs/daemon.log", "run/spl.pid", "profiles/worker.toml"),
    ),
    _of_home("dotdot", "climbs from the worker socket's folder to the operator's token", _home_dotdot),
    Attempt(
        "home.listed",
        "lists the home, for anything but the worker socket",
        _home_listed,
        control=the_door_opens,
        walls=[Wall("home", "nothing but the worker socket")],
        escape="what the operator keeps is known by name",
    ),
    Attempt(
        "home.by_descriptor",
        "opens the operator's token beneath a descriptor of the home's",
        _home_by_descriptor,
        control=files_work,
        walls=[
            Wall("home", "ENOENT at openat"),
            Wall("separate_user", "EACCES at openat", shape="hosted"),
        ],
        escape=_HOME_READ,
    ),
    Attempt(
        "home.changed",
        "opens the operator's token and the database to be written",
        _home_changed,
        control=files_work,
        walls=[*_AT_HOME, READ_ONLY[0]],
        escape="whoever writes the token or the records is the operator",
    ),
    Attempt(
        "home.made",
        "makes a file in the home, and beside the worker socket",
        _home_made,
        control=the_door_opens,
        walls=[Wall("home", "EROFS at open")],
        escape="the next start reads what a worker left",
        victims=["files"],
        cve="CVE-2026-25725",
    ),
    Attempt(
        "home.operator_socket",
        "connects to the operator's socket, which needs no token",
        _operator_socket,
        control=the_door_opens,
        walls=[
            Wall("home", "ENOENT at connect"),
            Wall("separate_user", "EACCES at connect", shape="hosted"),
        ],
        escape="the worker is the operator",
    ),
    Attempt(
        "home.socket_replaced",
        "renames, removes and replaces the worker socket",
        _socket_replaced,
        control=the_door_opens,
        walls=[
            Wall("syscalls", "ENOSYS at change"),
            Wall("home", "EROFS at change"),
        ],
        escape="the next worker gives its credential to another",
        cve="CVE-2021-30465, CVE-2024-42472",
    ),
)
