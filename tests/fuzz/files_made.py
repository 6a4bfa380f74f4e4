"""Files for `files`: each a function from a seeded `Random` to the bytes of one profile, config.toml or environment.

Half of them are mutations of what is right, which get far, the other half follow a grammar with wrong words in it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from bwrap import groups, seccomp
from bwrap.library import SHIPPED
from spl.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

LETTERS = (
    "a",
    "Z",
    "0",
    "_",
    "-",
    ".",
    "/",
    " ",
    "é",
    "世",
    "😀",
    "\u202e",
    "\u0301",
    "\ufeff",
    "\x7f",
    "\\",
    "'",
    '"',
)
ODD = (
    "",
    ".",
    "..",
    "/",
    "//",
    "a\0b",
    "\n",
    "!",
    "@",
    "?",
    "é" * 3000,
    "x" * 5000,
    "\U0010ffff",
    "\u2028",
    "/" * 4097,
)
NUMBERS = (
    "0", "-0", "1", "-1", "5", "63", "64", "255", "4096", "2147483648", "4294967295", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" * 400,
    "0x" + "f" * 3700, "0o" + "7" * 4000, "0b" + "1" * 4000, "1e400", "-1e-400", "5e-324", "1.0", "inf",
    "-inf", "nan",
)  # fmt: skip
DATES = ("1979-05-27", "0001-01-01T00:00:00+23:59", "9999-12-31 23:59:59.999999", "07:32:00")

DANGEROUS: dict[str, tuple[int, tuple[int, ...]]] = {
    "socket": (0, (2, 10, 16, 17, 38, 40, 44)),  # AF_INET, INET6, NETLINK, PACKET, ALG, VSOCK, XDP
    "socketpair": (0, (2, 16, 40)),
    # PDEATHSIG, DUMPABLE, KEEPCAPS, SECCOMP, CAPBSET_DROP, and what gives capabilities and names another process.
    "prctl": (0, (1, 4, 8, 22, 24, 28, 35, 36, 59, 0x59616D61)),
    "ioctl": (1, (0x5412, 0x541C, 0x8901)),  # TIOCSTI, TIOCLINUX, FIOSETOWN
    "fcntl": (1, (5, 6, 7, 8, 10, 15, 1024, 1031, 1033)),  # locks, owners, signals, leases, pipes, seals
    "prlimit64": (0, (1, 2, 0xFFFFFFFF)),
    "futex": (1, (0, 1, 6, 7, 8, 9, 13)),
    "clock_gettime": (0, (0xFFFFFFFA, 0xFFFFFFF2, 8, 9, 10, 11)),
    "clock_getres": (0, (0xFFFFFFFA, 8)),
    "clock_nanosleep": (0, (2, 3, 0xFFFFFFFA)),
    "sendto": (3, (1, 0x20000000)),
    "recvfrom": (3, (1, 0x2000)),
    "getsockopt": (2, (77, 26)),
    "landlock_add_rule": (1, (2, 3)),
}
"""For calls that may be allowed for some values of an argument: values for which they never are, by number."""


# --- bytes ---


def mutated(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Give the bytes with one to eight changes of bytes, pieces or lines; `others` lend theirs."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(found) + 1)
        length = random.choice((1, 1, 2, 4, 16, 64))
        match random.randrange(9):
            case 0 if found:
                found[min(at, len(found) - 1)] ^= 1 << random.randrange(8)
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = random.randbytes(length)
            case 3:
                found[at:at] = found[at : at + length] * random.choice((1, 2, 50))
            case 4:
                found[at : at + 1] = random.choice(
                    (b"\0", b"\r", b"\r\n", b"\xff", b"\xef\xbb\xbf", b'"', b"'''", b"[", b"}", b"=")
                )
            case 5 if others:
                other = random.choice(others)
                begin = random.randrange(len(other) + 1)
                found[at:at] = other[begin : begin + 16 * length]
            case 6:
                lines = found.split(b"\n")
                lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
                found = bytearray(b"\n".join(lines))
            case 7:
                lines = found.split(b"\n")
                random.shuffle(lines)
                found = bytearray(b"\n".join(lines))
            case _:
                found[at : at + length] = random.choice(NUMBERS).encode()
    return bytes(found)


def text(random: Random) -> str:
    """Give a short text of letters of every kind, or one of the odd ones."""
    if random.random() < 0.2:
        return random.choice(ODD)
    return "".join(random.choice(LETTERS) for _ in range(random.randrange(12)))


def mostly(random: Random, right: Sequence[str], wrong: Sequence[str]) -> str:
    """Give one of the right words, or now and then a wrong one: of two in one file, only the first would be seen."""
    return random.choice(right if random.random() < 0.9 else wrong)


# --- profiles and config.toml ---


def profile(random: Random) -> bytes:
    """Give a profile's file: a shipped one changed, or one that extends a shipped one with some words of its own."""
    shipped = _shipped()
    match random.randrange(8):
        case 0 | 1:
            return mutated(random, random.choice(shipped), shipped)
        case 2:
            return mutated(random, _profile(random).encode("utf-8", "surrogatepass"), shipped)
        case 3:
            return random.choice(_bombs(random)).encode()
        case _:
            return _profile(random).encode("utf-8", "surrogatepass")


def config(random: Random) -> bytes:
    """Give a config.toml."""
    lines = [f"{_key(random)} = {_toml(random)}" for _ in range(random.randrange(6))]
    if random.random() < 0.3:
        lines.insert(random.randrange(len(lines) + 1), f"[{_key(random)}]")
    said = "\n".join(lines).encode("utf-8", "surrogatepass")
    match random.randrange(6):
        case 0:
            return random.choice(_bombs(random)).encode()
        case 1 | 2:
            return mutated(random, said)
        case _:
            return said


def variables(random: Random) -> bytes:
    """Give an environment: NAME=VALUE after NAME=VALUE, each with a NUL behind it."""
    rows = []
    for _ in range(random.randrange(1, 5)):
        known = f"SPL_{random.choice(sorted(Settings.model_fields)).upper()}"
        name = random.choice(
            (known, known, known, "SPL_", f"SPL_{text(random)}", "SPL_PROVIDER_TOKEN", "SYNCROPEL_HOME")
        )
        value = random.choice(
            (random.choice(NUMBERS), text(random), random.choice(("60600-60855", "script:x", "true")))
        )
        rows.append(f"{name}={value}".replace("\0", "") + "\0")
    said = "".join(rows).encode("utf-8", "surrogatepass")
    return mutated(random, said) if random.random() < 0.2 else said


@cache
def _shipped() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SHIPPED.glob("*.toml"))]


@cache
def _calls() -> list[str]:
    return sorted(set().union(*(seccomp.names(arch) for arch in groups.ARCHITECTURES)))


def _key(random: Random) -> str:
    known = random.choice(sorted(Settings.model_fields))
    return random.choice((known, known, known, _string(text(random)), "a.b", f"{known}.x", "x" * 300))


def _string(said: str) -> str:
    return json.dumps(said, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(random: Random, depth: int = 0) -> str:
    """Give a value of any type."""
    match random.randrange(9):
        case 0 | 1:
            return random.choice(NUMBERS)
        case 2:
            return random.choice(DATES)
        case 3:
            return random.choice(("true", "false", '""', "''"))
        case 4 if depth < 4:
            return f"[{', '.join(_toml(random, depth + 1) for _ in range(random.randrange(4)))}]"
        case 5 if depth < 4:
            pairs = (
                f"{random.choice('abcd')}{at} = {_toml(random, depth + 1)}"
                for at in range(random.randrange(3))
            )
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return _string(text(random))


def _bombs(random: Random) -> list[str]:
    """Give files that are much for their reader, none of them much larger than is read."""
    many = random.choice((10, 1000, 8000))
    return [
        "a = " + "[" * many,
        "a = " + "[" * many + "]" * many,
        "a = " + "{b = " * many + "1" + "}" * many,
        ".".join(["a"] * many) + " = 1",
        "\n".join(f"a{at}{'.b' * 50} = 1" for at in range(min(many, 600))),
        "[[a]]\n" * many,
        "[" + ".".join(["a"] * many) + "]",
        "a = [" + "1, " * many + "]",
        "a = [\n" + "'x',\n" * many + "]",
        "\n".join(f"[a{at}]" for at in range(many)),
        f'x = "{"é" * many}"',
        f"# {'x' * many}\n" * 3,
        "\n" * many + "=",
        f"port = 0x{'f' * many}",
        f"port = {'9' * many}",
        'a = """' + "\\\n" * many + '"""',
        "\ufeffport = 1",
        "port = 1\r\nport = 2\r\n",
    ]


def _profile(random: Random) -> str:
    parent = mostly(random, ("worker", "worker", "strict"), ("base", "own", "none", "../worker"))
    makers = (_namespaces, _files, _limits, _syscalls, _syscalls, _when, _when, _when, _anything)
    lines = [random.choice(makers)(random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    said = "\n".join((f'extends = "{parent}"', *lines, ""))
    return said.replace("\n", "\r\n") if random.random() < 0.05 else said


def _namespaces(random: Random) -> str:
    name = mostly(random, ("user", "net", "ipc", "uts", "cgroup", "pid"), ("mnt", "User", "time"))
    return f"namespaces.{name} = {mostly(random, ('true', 'false'), (_toml(random),))}"


def _files(random: Random) -> str:
    good = (
        "/etc/hosts",
        "?/none/such",
        "/usr/share/zoneinfo",
        "@python",
        "@home",
        "@scratch",
        "/etc//passwd/",
        "/srv/x",
    )
    bad = ("/proc/self", "/", "/dev/null", "/etc/../etc", "/tmp", "@worker_socket", "?@home", "!@python",
           "/run/x.sock",
           f"/{'a' * 4096}", "/é\u202e", "?/etc/hosts", "/etc/host*", "!/etc/hosts", "//", "@none",
           text(random))  # fmt: skip
    chosen = [random.choice(good if random.random() < 0.7 else bad) for _ in range(random.choice((1, 1, 2)))]
    match random.randrange(4):
        case 0:
            size = mostly(random, ('"1M"', '"16M"', "4096"), ('"0"', '"9999999999G"', _toml(random)))
            path = mostly(random, ("@scratch", "/srv/x"), chosen)
            return f"[[filesystem.tmpfs]]\npath = {_string(path)}\nsize = {size}"
        case 1:
            return "filesystem.proc = " + mostly(random, ('"own"', '"none"'), ('"host"', _toml(random)))
        case _:
            key = mostly(random, ("read_only", "read_only", "empty"), ("sockets", "tmpfs"))
            return f"filesystem.{key} = [{', '.join(map(_string, chosen))}]"


def _limits(random: Random) -> str:
    key = mostly(random, ("address_space", "file_size", "processes", "open_files", "cpu_time"), ("core",))
    right = {
        "cpu_time": ('"60s"', '"2h"', '"9999999h"'),
        "processes": ("2", "64", "65"),
        "open_files": ("64", "1025", "2"),
    }
    wrong = ('"0s"', '"-1M"', '"1 M"', '"99999999h"', random.choice(NUMBERS))
    return f"limits.{key} = {mostly(random, right.get(key, _SIZES), wrong)}"


_SIZES = ('"512M"', '"8G"', '"1G"')


def _syscalls(random: Random) -> str:
    known = random.choice(([f"@{name}" for name in groups.groups()], random.sample(_calls(), 8)))
    names = [
        mostly(random, ("",), ("!",)) + mostly(random, known, ("nonesuch", "READ", "", "!", "@none"))
        for _ in range(random.choice((1, 1, 2, 4)))
    ]
    match random.randrange(5):
        case 0:
            errno = mostly(random, ("EPERM", "ENOSYS", "EHWPOISON"), ("ESUCCESS", "errorcode", "__doc__", ""))
            return f"[[syscalls.refuse]]\ngroup = {_string(names[0])}\nerrno = {_string(errno)}"
        case 1:
            return "syscalls.default = " + mostly(
                random, ('"EPERM"', '"ENOSYS"'), ('"0"', '"EOK"', _toml(random))
            )
        case _:
            key = mostly(random, ("allow",), ("refuse", "when"))
            return f"syscalls.{key} = [{', '.join(map(_string, names))}]"


def _when(random: Random) -> str:
    call = mostly(random, sorted(DANGEROUS), ("clone", "personality", random.choice(_calls()), "@python"))
    expected, values = DANGEROUS.get(call, (0, (0,)))
    if random.random() < 0.1:
        return f"syscalls.when = [{_string(f'!{call}')}]\nsyscalls.allow = [{_string(call)}]"
    argument = mostly(
        random, (str(expected),), ("0", "1", "2", "5", "6", "-1", "true", random.choice(NUMBERS))
    )
    right = (*map(str, values), *map(str, range(20)), str(random.getrandbits(32)), "0xffffffff")
    words = (*NUMBERS, *map(_string, groups.constants()))
    several = ", ".join(mostly(random, right, words) for _ in range(random.choice((1, 1, 1, 2, 3, 60))))
    bits = mostly(random, ("1", "0xffffffff", "0x80000000", str(random.getrandbits(32))), (*NUMBERS, "-2"))
    said = mostly(
        random,
        (f"equals = [{several}]", f"equals = [{several}]", f"has = {bits}"),
        ("equals = 1", "equals = []"),
    )
    row = f"call = {_string(call)}, argument = {argument}, {said}"
    match random.randrange(3):
        case 0:
            return f"syscalls.when = [{_string(f'!{call}')}, {{ {row} }}]"
        case 1:
            return f"syscalls.when = [{{ {row} }}]"
        case _:
            return f"[[syscalls.when]]\ncall = {_string(call)}\nargument = {argument}\n{said}"


def _anything(random: Random) -> str:
    table = random.choice(
        ("namespaces", "filesystem", "limits", "syscalls", "name", "extends", "description", "x")
    )
    beneath = random.choice(("", ".x", ".allow", ".when.call", ' . "a b"'))
    return f"{table}{beneath} = {_toml(random)}"
