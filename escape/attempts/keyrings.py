"""Out by the kernel's keyrings, which every process of a user shares."""

from __future__ import annotations

import ctypes
import os

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making
from escape.inside import World, call, each, every, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_THREAD, _PROCESS, _SESSION, _USER, _USER_SESSION = -1, -2, -3, -4, -5
_GET_ID, _JOIN, _UPDATE, _CHOWN, _SETPERM, _DESCRIBE = 0, 1, 2, 4, 5, 6
_LINK, _UNLINK, _SEARCH, _READ = 8, 9, 10, 11
_SET_REQUEST_KEYRING, _SET_TIMEOUT, _GET_PERSISTENT, _DH_COMPUTE, _RESTRICT, _WATCH = 14, 15, 22, 23, 29, 32
_NAME = "spl-canary"
_EVERY_RIGHT = 0x3F3F3F3F


def _key(world: World) -> int:
    return world.key_id or stopped("no key")


def _add(world: World) -> str:
    def real() -> str:
        key = call("add_key", "user", "spl-inside", b"x", 1, _SESSION)
        call("keyctl", _UNLINK, key, _SESSION)
        return "a key was put where the user's other processes see it"

    # A length and no content: what the kernel once followed to address 0.
    nothing = [(None, None, None, 0, _SESSION), ("user", "spl-inside", None, 1, _SESSION)]
    return every(lambda: each("add_key", nothing, "a key of nothing"), real)


def _request(world: World) -> str:
    lists = [(None, None, None, 0), ("user", _NAME, None, 0)]
    return each("request_key", lists, "the host's key was found")


def _read(world: World) -> str:
    room = ctypes.create_string_buffer(64)
    call("keyctl", _READ, _key(world), room, len(room))
    return f"the host's key is read, {len(room.value)} bytes"


def _describe(world: World) -> str:
    room = ctypes.create_string_buffer(64)
    call("keyctl", _DESCRIBE, _key(world), room, len(room))
    return f"the host's key is described, {len(room.value)} bytes"


def _search(world: World) -> str:
    rings = (_SESSION, _USER_SESSION, _USER, _PROCESS, _THREAD)
    return each("keyctl", [(_SEARCH, ring, "user", _NAME, 0) for ring in rings], "the host's key was found")


def _rings(world: World) -> str:
    rings = (_SESSION, _USER, _USER_SESSION)
    return each("keyctl", [(_GET_ID, ring, 0) for ring in rings], "a keyring of the user's")


def _persistent(world: World) -> str:
    return each(
        "keyctl", [(_GET_PERSISTENT, user, _SESSION) for user in (-1, world.victim_uid)], "what outlives it"
    )


def _link(world: World) -> str:
    key = _key(world)

    def keep(ring: int) -> Callable[[], str]:
        def route() -> str:
            call("keyctl", _LINK, key, ring)
            call("keyctl", _UNLINK, key, ring)
            return "the host's key hangs in a keyring of its own"

        return route

    return every(*map(keep, (_USER, _USER_SESSION)))


def _change(world: World) -> str:
    key = _key(world)
    # To what it is already, or to nothing: nothing is lost when it works.
    lists = [
        (_SETPERM, key, _EVERY_RIGHT),
        (_CHOWN, key, -1, -1),
        (_SET_TIMEOUT, key, 0),
        (_UPDATE, key, None, 0),
    ]
    return each("keyctl", lists, "the host's key can be changed")


def _compute(world: World) -> str:
    lists = [
        (_DH_COMPUTE, None, None, 0, None),
        (_RESTRICT, 0, None, None),
        (_WATCH, 0, -1, 0),
        (_SET_REQUEST_KEYRING, -1),  # -1 changes nothing
    ]
    return each("keyctl", lists, "a part of the keyrings that is seldom used")


def _join(world: World) -> str:
    # Twice by the same name: the second time forgot a reference each time.
    name = f"spl-{os.getpid()}"

    def twice() -> str:
        first, second = call("keyctl", _JOIN, name), call("keyctl", _JOIN, name)
        return f"a session keyring of a name that others may join ({first}, {second})"

    # Names that begin so are the kernel's: one was had for the asking, and with it the right to write to it.
    return every(lambda: f"the kernel's own ({call('keyctl', _JOIN, '.builtin_trusted_keys')})", twice)


_LACKING = {
    "ENOSYS at add_key": "this kernel has no keyrings",
    "no key": "the host has no keyrings, or lets nobody make a key: there is none to reach",
}


_making = Making("keyrings", victims=["key"])


def _attempt(
    name: str,
    sentence: str,
    chain: Callable[[World], str],
    escape: str,
    refused: str = "EPERM at keyctl",
    cve: str = "",
) -> Attempt:
    # A session keyring is handed down from the daemon whatever the namespaces are: the filter stands alone.
    return _making(name, sentence, chain, escape, Wall("syscalls", refused), cve=cve, lacking=_LACKING)


_TOLD = "what others of the user keep in the kernel can be read"

ATTEMPTS: tuple[Attempt, ...] = (
    _attempt("add", "adds a key to the session's keyring", _add, "others find what the worker put there",
             "EPERM at add_key", cve="CVE-2017-15274"),
    _attempt("request", "asks for the host's key by its name", _request, _TOLD, "EPERM at request_key"),
    _attempt("read", "reads the host's key by its number", _read, _TOLD, cve="CVE-2015-7550"),
    _attempt("describe", "asks what the host's key is, and whose", _describe, _TOLD),
    _attempt("search", "searches every keyring that has a name for the host's key", _search, _TOLD),
    _attempt("rings", "asks for the keyrings of its session and its user", _rings, "the user's keyrings have a number"),
    _attempt("persistent", "asks for the keyring that outlives every session", _persistent,
             "what is put there is found by a later run"),
    _attempt("link", "links the host's key into keyrings of its own", _link, "the key is kept beyond its owner's time"),
    _attempt("change", "changes rights, owner, time and content of the host's key", _change,
             "another program works with the worker's key"),
    _attempt("compute", "uses the rarer operations on keys", _compute, "more of the kernel is within reach",
             cve="CVE-2017-7472"),
    # The last one: without a filter, the process has lost its session's keyring by then.
    _attempt("join", "joins the kernel's own session keyring by its name, and one of a given name twice", _join,
             "the kernel's memory can be written",
             cve="CVE-2016-0728, CVE-2016-9604"),
)  # fmt: skip
