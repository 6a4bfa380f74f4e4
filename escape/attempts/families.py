"""Out by a socket of another family than AF_UNIX: parts of the kernel that few need."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._making import BY_FAMILY, SURFACE, of_family, without_rights
from escape.inside import World, call, do, every, sockets_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
_HIGH = (1 << 32, 1 << 63, 0xFFFFFFFF << 32)
_NO_KIND = 11  # SOCK_MAX: the kernel answers EINVAL before it asks for any right

# Numbers that Python's socket module does not have on every build (linux/socket.h, linux/in.h).
_AF_NETLINK, _AF_PACKET, _AF_RDS, _AF_CAN, _AF_TIPC, _AF_BLUETOOTH, _AF_ALG, _AF_VSOCK, _AF_XDP = (
    16, 17, 21, 29, 30, 31, 38, 40, 44,
)  # fmt: skip
_ICMP, _ICMP6, _SCTP, _DCCP, _UDPLITE, _SMC, _MPTCP, _L2TP, _SOCK_DCCP = 1, 58, 132, 33, 136, 256, 262, 115, 6
_SOL_ALG, _ALG_SET_KEY = 279, 1


def _other_families(world: World) -> str:
    families = [family for family in range(64) if family != socket.AF_UNIX]
    return _sockets((family, kind, 0) for family in families for kind in _KINDS)


def _high_bits(world: World) -> str:
    # The kernel takes the family as an int: what a filter that compares 64 bits would see is not what it gets.
    families = (socket.AF_INET, socket.AF_INET6, _AF_NETLINK, _AF_PACKET, _AF_VSOCK)
    return _sockets(
        (high | family, kind, 0) for high in _HIGH for family in families for kind in (*_KINDS, _NO_KIND)
    )


def _low_bits(world: World) -> str:
    """Ask for AF_UNIX in what the filter compares, and for more in what it does not; then use it as another's."""

    def route(high: int) -> Callable[[], str]:
        def ask() -> str:
            descriptor = call("socket", high | socket.AF_UNIX, socket.SOCK_STREAM, 0)
            try:
                call("connect", descriptor, _inet(world.tcp_port), 16)
            finally:
                os.close(descriptor)
            return "the host's listener took the connection"

        return ask

    return every(*map(route, _HIGH))


def _protocols(world: World) -> str:
    inet = socket.AF_INET
    return _sockets(
        (
            (inet, socket.SOCK_STREAM, _SCTP),
            (inet, socket.SOCK_SEQPACKET, _SCTP),
            (inet, socket.SOCK_STREAM, _SMC),
            (inet, socket.SOCK_STREAM, _MPTCP),
            (inet, socket.SOCK_DGRAM, _UDPLITE),
            (inet, _SOCK_DCCP, _DCCP),
            (inet, socket.SOCK_DGRAM, _L2TP),
        )
    )


def _family(*lists: tuple[int, int, int]) -> Callable[[World], str]:
    return lambda _: _sockets(lists)


def _sockets(lists: Iterable[tuple[int, int, int]]) -> str:
    def route(arguments: tuple[int, int, int]) -> Callable[[], str]:
        def ask() -> str:
            os.close(call("socket", *arguments))
            return f"a socket of family {arguments[0]:#x}"

        return ask

    return every(*map(route, lists))


# Without CAP_NET_RAW the kernel says EPERM too, but not to a kind that there is not, nor to a ping (EACCES).
_raw = _family(
    (socket.AF_INET, socket.SOCK_RAW, _ICMP),
    (socket.AF_INET6, socket.SOCK_RAW, _ICMP6),
    (socket.AF_INET, socket.SOCK_DGRAM, _ICMP),
)
_packet = _family(
    (_AF_PACKET, socket.SOCK_RAW, 0x300), (_AF_PACKET, socket.SOCK_DGRAM, 0x300), (_AF_PACKET, _NO_KIND, 0)
)
_xdp = _family((_AF_XDP, socket.SOCK_RAW, 0), (_AF_XDP, _NO_KIND, 0))


def _vsock(world: World) -> str:
    # Network namespaces do not divide this family. It is not connected: whoever answers there is no victim of ours.
    descriptor = call("socket", _AF_VSOCK, socket.SOCK_STREAM, 0)
    os.close(descriptor)
    return "a socket towards the hypervisor"


def _algorithm(world: World) -> str:
    def bound() -> str:
        descriptor = call("socket", _AF_ALG, socket.SOCK_SEQPACKET, 0)
        try:
            call("bind", descriptor, struct.pack("H14s8x64s", _AF_ALG, b"hash", b"sha256"), 88)
        finally:
            os.close(descriptor)
        return "the kernel's cryptography, bound to an algorithm"

    return every(bound, lambda: _spliced_into_a_cipher(world))


def _spliced_into_a_cipher(world: World) -> str:
    """Hand a page of a file that it may only read to a cipher of the kernel's (CVE-2026-31431), by way of a pipe.

    It ends there: the deciphering that would follow changes what everyone has of the file, where the fault is.
    """
    with do("socket", socket.socket, _AF_ALG, socket.SOCK_SEQPACKET) as algorithm:
        do("bind", algorithm.bind, ("aead", "authencesn(hmac(sha256),cbc(aes))"))
        # struct rtattr and crypto_authenc_key_param: how much of the key is the cipher's; then both keys, of zeros.
        do(
            "key",
            algorithm.setsockopt,
            _SOL_ALG,
            _ALG_SET_KEY,
            struct.pack("=HH", 8, 1) + b"\0\0\0\x10" + bytes(48),
        )
        operation, _ = do("accept", algorithm.accept)
    file, ends = os.open(world.image, os.O_RDONLY | os.O_CLOEXEC), (ctypes.c_int * 2)(-1, -1)
    try:
        call("pipe2", ends, os.O_CLOEXEC | os.O_NONBLOCK)
        call("splice", file, (ctypes.c_long * 1)(0), ends[1], None, 16, 0)
        call("splice", ends[0], None, operation.fileno(), None, 16, 0)
    finally:
        operation.close()
        for each in (file, *ends):
            if each >= 0:
                os.close(each)
    return "a page of a file that it may only read is a cipher's to write to"


def _inet(port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4B8x", port, 127, 0, 0, 1)


ATTEMPTS = (
    Attempt(
        "families.every",
        "makes a socket of every family but AF_UNIX, of every kind",
        _other_families,
        control=sockets_work,
        walls=[BY_FAMILY],
        escape="the kernel's protocols, most of its published faults, are within reach",
        cve="CVE-2017-7308, CVE-2020-14386, CVE-2021-43267",
    ),
    Attempt(
        "families.high_bits",
        "asks for other families with bits set that the kernel drops",
        _high_bits,
        control=sockets_work,
        walls=[BY_FAMILY],
        escape="the filter compares another number than the kernel uses",
        cve="CVE-2019-7303",
    ),
    Attempt(
        "families.unix_bits",
        "asks for AF_UNIX with other bits set, and connects with what it gets to an address of AF_INET",
        _low_bits,
        control=sockets_work,
        walls=[Wall("kernel", "EINVAL at connect")],
        escape="what passes as AF_UNIX is a socket of another family",
        victims=["listeners"],
    ),
    Attempt(
        "families.protocols",
        "asks for the internet protocols beside TCP and UDP",
        _protocols,
        control=sockets_work,
        walls=[BY_FAMILY],
        escape=SURFACE,
        cve="CVE-2017-6074",
    ),
    of_family(
        "families.raw",
        "makes sockets that see and forge packets of the internet protocols",
        _raw,
        "",
        *without_rights("EPERM at socket, EACCES at socket"),
    ),
    of_family(
        "families.packet",
        "makes sockets that see and forge whole frames",
        _packet,
        "CVE-2016-8655, CVE-2017-7308, CVE-2020-14386",
        *without_rights("EPERM at socket, EINVAL at socket"),
    ),
    of_family(
        "families.xdp",
        "makes a socket that shares its rings with the kernel",
        _xdp,
        "",
        *without_rights("EPERM at socket, EINVAL at socket"),
    ),
    of_family("families.vsock", "makes a socket towards the hypervisor", _vsock, "CVE-2021-26708"),
    of_family(
        "families.alg",
        "binds a socket to algorithms of the kernel's, and hands one a page of a file that it may only read",
        _algorithm,
        "CVE-2019-8912, CVE-2026-31431",
    ),
    of_family(
        "families.can",
        "makes sockets of vehicles' networks",
        _family(
            (_AF_CAN, socket.SOCK_RAW, 1), (_AF_CAN, socket.SOCK_DGRAM, 2), (_AF_CAN, socket.SOCK_DGRAM, 6)
        ),
        "CVE-2021-3609",
    ),
    of_family(
        "families.tipc",
        "makes sockets of clusters' messages",
        _family(*((_AF_TIPC, kind, 0) for kind in _KINDS if kind != socket.SOCK_RAW)),
        "CVE-2021-43267, CVE-2022-0435",
    ),
    of_family(
        "families.rds",
        "makes a socket of reliable datagrams",
        _family((_AF_RDS, socket.SOCK_SEQPACKET, 0)),
        "CVE-2010-3904",
    ),
    of_family(
        "families.bluetooth",
        "makes sockets of Bluetooth's layers",
        _family(
            (_AF_BLUETOOTH, socket.SOCK_SEQPACKET, 0),
            (_AF_BLUETOOTH, socket.SOCK_RAW, 1),
            (_AF_BLUETOOTH, socket.SOCK_STREAM, 3),
        ),
        "CVE-2021-3573",
    ),
)
