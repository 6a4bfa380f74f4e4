"""Out by the network: the host's ports, its devices, and what configures them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._making import BY_FAMILY, of_family, without_rights
from escape.inside import World, call, do, each, every, read, sockets_work, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_GREETING = b"from inside"

# linux/netlink.h, linux/rtnetlink.h, linux/audit.h, linux/netfilter/nfnetlink.h.
_AF_NETLINK, _NETLINK_ROUTE, _NETLINK_AUDIT, _NETLINK_NETFILTER = 16, 0, 9, 12
_RTM_NEWLINK, _RTM_GETLINK, _AUDIT_GET, _NFNL_BATCH_BEGIN = 16, 18, 1000, 16
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_NLMSG_ERROR, _IFLA_IFNAME = 2, 3

_MPTCP = 262
_IPT_SO_SET_REPLACE = 64
_SIOCGIFNAME = 0x8910
_IORING_OP_SOCKET, _IORING_GETEVENTS, _IORING_OFF_SQES = 45, 1, 0x10000000


def _tcp(world: World) -> str:
    with do("socket", socket.socket, socket.AF_INET, socket.SOCK_STREAM) as connection:
        do("connect", connection.connect, ("127.0.0.1", world.tcp_port))
        do("send", connection.send, _GREETING)
    return "the host's listener took the connection"


def _tcp6(world: World) -> str:
    with do("socket", socket.socket, socket.AF_INET6, socket.SOCK_STREAM) as connection:
        do("connect", connection.connect, ("::1", world.tcp6_port or 9))
        do("send", connection.send, _GREETING)
    return "the host's listener took the connection"


def _udp(world: World) -> str:
    with do("socket", socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        do("connect", sender.connect, ("127.0.0.1", world.udp_port))
        do("send", sender.send, _GREETING)
        # Where nobody listens, the first one is answered by an error that the next one is told of.
        do("send", sender.send, _GREETING)
    return "the host's socket took the datagram"


def _route_out(world: World) -> str:
    # Connecting a datagram socket sends nothing: it looks for a route.
    def route(family: int, address: str) -> Callable[[], str]:
        def ask() -> str:
            with do("socket", socket.socket, family, socket.SOCK_DGRAM) as sender:
                do("connect", sender.connect, (address, 53))
            return f"there is a route to {address}"

        return ask

    return every(
        route(socket.AF_INET, "1.1.1.1"),
        route(socket.AF_INET, "169.254.169.254"),
        route(socket.AF_INET6, "2001:4860:4860::8888"),
    )


def _multipath(world: World) -> str:
    # Landlock's rules for ports hold for TCP alone: what falls back to TCP is a way around them.
    with do("socket", socket.socket, socket.AF_INET, socket.SOCK_STREAM, _MPTCP) as connection:
        do("connect", connection.connect, ("127.0.0.1", world.tcp_port))
        do("send", connection.send, _GREETING)
    return "the host's listener took the connection"


def _listening(world: World) -> str:
    with do("socket", socket.socket, socket.AF_INET, socket.SOCK_STREAM) as listener:
        do("bind", listener.bind, ("0.0.0.0", 0))  # noqa: S104 - to be reached by whoever can is the attempt
        do("listen", listener.listen, 1)
    return "a port to be reached at"


def _links(world: World) -> str:
    names = []
    for kind, body in _netlink(_NETLINK_ROUTE, _RTM_GETLINK, _REQUEST | _DUMP, bytes(16)):
        if kind == _RTM_NEWLINK:
            names += [
                value.rstrip(b"\0").decode() for at, value in _attributes(body[16:]) if at == _IFLA_IFNAME
            ]
    return stopped("nothing but lo") if names == ["lo"] else f"the host's devices {', '.join(names)}"


def _audit(world: World) -> str:
    return _acknowledged("audit", _NETLINK_AUDIT, _AUDIT_GET, b"", "the kernel's audit state")


def _netfilter(world: World) -> str:
    # struct nfgenmsg for nf_tables, whose batches published escapes begin with; this one is empty.
    body = struct.pack("=BBH", 0, 0, 10 << 8)
    return _acknowledged(
        "netfilter", _NETLINK_NETFILTER, _NFNL_BATCH_BEGIN, body, "a batch of firewall rules"
    )


def _iptables(world: World) -> str:
    with do("socket", socket.socket, socket.AF_INET, socket.SOCK_STREAM) as carrier:
        do("setsockopt", carrier.setsockopt, socket.SOL_IP, _IPT_SO_SET_REPLACE, bytes(96))
    return "a table of the firewall was replaced"


def _acknowledged(step: str, protocol: int, kind: int, body: bytes, got: str) -> str:
    for told, said in _netlink(protocol, kind, _REQUEST | _ACK, body):
        if told == _NLMSG_ERROR and (code := -struct.unpack_from("i", said)[0]):
            stopped(f"{errno.errorcode.get(code, code)} at {step}")
    return got


def _netlink(protocol: int, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
    """Ask a family of netlink(7); gives kind and body of each message of one answer."""
    # The kernel answers within the call that asks: nothing is waited for.
    with do("socket", socket.socket, _AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol) as asking:
        do("send", asking.send, struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        received = do("recv", asking.recv, 65536)
    found, at = [], 0
    while at + 16 <= len(received):
        length, told = struct.unpack_from("=IH", received, at)
        if length < 16:
            break
        found.append((told, received[at + 16 : at + length]))
        at += (length + 3) & ~3
    return found


def _attributes(said: bytes) -> Iterable[tuple[int, bytes]]:
    while len(said) >= 4:
        length, kind = struct.unpack_from("=HH", said)
        if length < 4:
            return
        yield kind, said[4:length]
        said = said[(length + 3) & ~3 :]


def _tables(world: World) -> str:
    def route(name: str) -> Callable[[], str]:
        return lambda: f"/proc/net/{name}: {len(read(f'/proc/net/{name}'))} bytes"

    return every(*map(route, ("unix", "tcp", "dev", "route")))


def _devices(world: World) -> str:
    """Ask by a socket of any family for the devices' names: each hands such requests on to the network."""
    with do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asked = [ctypes.create_string_buffer(struct.pack("16xi20x", index), 40) for index in range(2, 20)]
        got = each(
            "ioctl", [(asking.fileno(), _SIOCGIFNAME, request) for request in asked], "devices of the host's"
        )
    return got + ": " + ", ".join(name for request in asked if (name := request.value.decode()))


def _ring(world: World) -> str:
    """Have the kernel make the socket as it works a ring off: what is asked for in one passes no filter."""
    # Where rings are switched off (kernel.io_uring_disabled), the kernel says EPERM before it looks at an argument.
    settings = ctypes.create_string_buffer(120)
    ring = call("io_uring_setup", 1, settings)
    try:
        # struct io_uring_params: of the two rings, which share a mapping, the offsets of tails and entries.
        array, tail_in = struct.unpack_from("=I", settings, 64)[0], struct.unpack_from("=I", settings, 44)[0]
        entries = struct.unpack_from("=I", settings, 100)[0]
        both = do("mmap", mmap.mmap, ring, max(array + 4, entries + 32))
        with both, do("mmap", lambda: mmap.mmap(ring, 64, offset=_IORING_OFF_SQES)) as queue:
            # struct io_uring_sqe: family as its descriptor, kind as its offset.
            queue[:64] = struct.pack("=BBHiQQII32x", _IORING_OP_SOCKET, 0, 0, socket.AF_INET, 1, 0, 0, 0)
            both[tail_in : tail_in + 4] = struct.pack("=I", 1)
            call("io_uring_enter", ring, 1, 1, _IORING_GETEVENTS, None, 0)
            result = struct.unpack_from("=i", both, entries + 8)[0]
    finally:
        os.close(ring)
    if result < 0:
        stopped(f"{errno.errorcode.get(-result, result)} at the ring")
    os.close(result)
    return "a socket of AF_INET, made by a ring"


_REFUSED = Wall("network", "ECONNREFUSED at connect", "ENETUNREACH at connect", "EADDRNOTAVAIL at connect")
# Its rules for ports are those of version 4 and later; before that it is the namespace that answers.
_NO_PORTS = Wall("landlock", "EACCES at connect", "ECONNREFUSED at connect", "EADDRNOTAVAIL at connect")
_TALK = "what the host's loopback serves is within reach"


ATTEMPTS = (
    Attempt(
        "network.tcp",
        "connects over TCP to a port that listens on the host",
        _tcp,
        control=sockets_work,
        walls=[BY_FAMILY, _NO_PORTS, _REFUSED],
        escape=_TALK,
        victims=["listeners"],
        cve="CVE-2025-66479",
    ),
    Attempt(
        "network.tcp6",
        "connects over IPv6 to a port that listens on the host",
        _tcp6,
        control=sockets_work,
        walls=[BY_FAMILY, _NO_PORTS, _REFUSED],
        escape=_TALK,
        victims=["listeners"],
    ),
    Attempt(
        "network.mptcp",
        "connects to the host's port over multipath TCP, to which Landlock's rules for ports do not hold",
        _multipath,
        control=sockets_work,
        walls=[BY_FAMILY, _REFUSED],
        escape=_TALK,
        victims=["listeners"],
        lacking=dict.fromkeys(
            ("EPROTONOSUPPORT at socket", "ENOPROTOOPT at socket"), "this kernel has no MPTCP"
        ),
    ),
    Attempt(
        "network.udp",
        "sends datagrams to a port of the host's",
        _udp,
        control=sockets_work,
        walls=[BY_FAMILY, Wall("network", "ECONNREFUSED at send", "ENETUNREACH at connect")],
        escape=_TALK,
        victims=["listeners"],
    ),
    Attempt(
        "network.dns",
        "looks for a route to resolvers, where names carry what is to leave, and to a cloud's metadata",
        _route_out,
        control=sockets_work,
        walls=[BY_FAMILY, Wall("network", "ENETUNREACH at connect")],
        escape="what the worker knows can leave the host",
        cve="CVE-2025-66479",
    ),
    Attempt(
        "network.listen",
        "listens on a port of every address",
        _listening,
        control=sockets_work,
        walls=[BY_FAMILY, Wall("landlock", "EACCES at bind")],
        escape="the worker can be reached, and take the ports of the host's services",
    ),
    of_family(
        "network.netlink",
        "asks the kernel for the network's devices",
        _links,
        "",
        Wall("network", "nothing but lo"),
    ),
    of_family(
        "network.netlink.audit",
        "asks for the state of the kernel's audit",
        _audit,
        "",
        Wall("user_namespace", "ECONNREFUSED at audit", "ECONNREFUSED at send"),
    ),
    of_family(
        "network.netlink.netfilter",
        "begins a batch of firewall rules of nf_tables",
        _netfilter,
        "CVE-2022-34918, CVE-2023-32233, CVE-2024-1086",
        *without_rights("EPERM at netfilter", "EPROTONOSUPPORT at socket"),
    ),
    of_family(
        "network.iptables",
        "replaces a table of the firewall by an option of a socket",
        _iptables,
        "CVE-2016-3134, CVE-2016-4997, CVE-2021-22555",
        *without_rights("EPERM at setsockopt", "ENOPROTOOPT at setsockopt"),
    ),
    Attempt(
        "network.devices",
        "asks for the network's devices by a socket of the family that is allowed",
        _devices,
        control=sockets_work,
        walls=[Wall("syscalls", "EPERM at ioctl"), Wall("network", "ENODEV at ioctl")],
        escape="the host's network can be looked at, and with rights changed",
    ),
    Attempt(
        "network.tables",
        "reads the host's connections and sockets from /proc/net",
        _tables,
        control=sockets_work,
        walls=[Wall("mounts", "ENOENT at open")],
        escape="what the host is connected to is in sight",
    ),
    Attempt(
        "network.ring",
        "has a ring of the kernel's make a socket of AF_INET, past the filter",
        _ring,
        control=sockets_work,
        walls=[Wall("syscalls", "EPERM at io_uring_setup")],
        escape="most of what the filter refuses can be asked for in a ring",
    ),
)
