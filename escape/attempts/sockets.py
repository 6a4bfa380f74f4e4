"""Out by the family that is allowed: the host's sockets with a path and without, descriptors handed over."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct

from escape.attempt import Attempt, Wall
from escape.inside import Stopped, World, call, do, each, every, sockets_work, the_door_opens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_RCVBUFFORCE = 26, 50, 33
_SO_PASSCRED, _SO_PEERCRED, _SO_PEERPIDFD = 16, 17, 77
_SERVICES = (
    "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
    "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/snapd.socket",
    "/run/user/0/bus", "/run/user/1000/bus", "/run/user/1000/wayland-0", "/run/user/1000/pulse/native",
    "/tmp/.X11-unix/X0", "/run/libvirt/libvirt-sock", "/run/udev/control", "/run/acpid.socket",
)  # fmt: skip
_LOGS = ("/run/systemd/notify", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log", "/dev/log")
_WITHOUT_PATH = (
    "/tmp/.X11-unix/X0", "/tmp/.ICE-unix/1", "/containerd-shim/moby/shim.sock", "/org/kernel/linux/storage/multipathd",
    "ISCSIADM_ABSTRACT_NAMESPACE", "/com/ubuntu/upstart", "/run/systemd/notify",
)  # fmt: skip


# Said in the kind: nothing makes a socket so later, and no flag says it of one message.
_DATAGRAM = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK


def _connected(kind: int, address: str, got: str) -> Callable[[], str]:
    def ask() -> str:
        with do("socket", socket.socket, socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as connection:
            do("connect", connection.connect, address)  # and nothing is sent: it may be the host's own
        return f"{got} took the connection"

    return ask


def _abstract(world: World) -> str:
    return _connected(socket.SOCK_STREAM, f"\0{world.abstract}", "the host's socket without a path")()


def _abstract_known(world: World) -> str:
    names = (world.abstract, *_WITHOUT_PATH)
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
    return every(*(_connected(kind, f"\0{name}", f"@{name}") for name in names for kind in kinds))


def _abstract_datagram(world: World) -> str:
    def route(name: str) -> Callable[[], str]:
        def ask() -> str:
            with do("socket", socket.socket, socket.AF_UNIX, _DATAGRAM) as sender:
                do("sendto", sender.sendto, b"", f"\0{name}")
            return f"@{name} took the datagram"

        return ask

    return every(*map(route, (f"{world.abstract}-datagram", *_WITHOUT_PATH)))


def _path(world: World) -> str:
    return _connected(socket.SOCK_STREAM, world.host_socket, "the host's socket")()


def _services(world: World) -> str:
    return every(*(_connected(socket.SOCK_STREAM, path, path) for path in (*_SERVICES, world.host_socket)))


def _logs(world: World) -> str:
    def route(path: str) -> Callable[[], str]:
        def ask() -> str:
            with do("socket", socket.socket, socket.AF_UNIX, _DATAGRAM) as sender:
                do("sendto", sender.sendto, b"", path)
            return f"{path} took the datagram"

        return ask

    # The last is a stream's: where it is there, the answer is another (EPROTOTYPE).
    return every(*map(route, (*_LOGS, world.host_socket)))


def _door(world: World) -> socket.socket:
    # Said in the kind: settimeout would ask by ioctl, which is refused.
    connection = do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    do("connect", connection.connect, world.socket)
    return connection


def _pair(world: World) -> str:
    def route(kind: int) -> Callable[[], str]:
        def ask() -> str:
            for end in do("socketpair", socket.socketpair, socket.AF_UNIX, kind):
                end.close()
            return "two ends of one's own, in whose queues memory and descriptors stay"

        return ask

    return every(*map(route, (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)))


def _autobind(world: World) -> str:
    with do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        call("bind", named.fileno(), struct.pack("H", socket.AF_UNIX), 2)
    return "a name without a path, chosen by the kernel"


def _bind(world: World) -> str:
    path = f"{world.host_folder}/from-inside"
    with do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        do("bind", listener.bind, path)
        os.unlink(path)
    return "a socket in the host's folder"


def _named_root(world: World) -> str:
    """Say in the name of its own end that root is there, and connect: a daemon once read it in the peer's address."""

    def route(name: str) -> Callable[[], str]:
        def ask() -> str:
            with do(
                "socket", socket.socket, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            ) as client:
                do("bind", client.bind, name)
                try:
                    do("connect", client.connect, world.socket)
                finally:
                    if not name.startswith("\0"):
                        os.unlink(name)
            return "the daemon has a peer whose name says that it is root"

        return ask

    return every(*map(route, ("\0x;uid=0;", f"{world.host_folder}/x;uid=0;")))


def _accept(world: World) -> str:
    with do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        at = listener.fileno()
        return every(
            lambda: each("listen", [(at, 1)], "it listens"),
            lambda: each("accept", [(at, None, None)], "a connection"),
            lambda: each("accept4", [(at, None, None, 0)], "a connection"),
        )


def _hand_over(world: World) -> str:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))]
    with _door(world) as connection:
        do("sendmsg", connection.sendmsg, [b"G"], rights)
    return "the daemon holds a descriptor of the worker's"


def _pretend(world: World) -> str:
    # struct ucred of the victim: only who has the right may say another's (unix(7)).
    who = [(socket.SOL_SOCKET, 2, struct.pack("iII", world.victim_pid, world.victim_uid, world.victim_uid))]
    with _door(world) as connection:
        do("sendmsg", connection.sendmsg, [b"G"], who)
    return "the daemon was told that another process speaks"


def _many(world: World) -> str:
    with _door(world) as connection:
        at = connection.fileno()
        return every(
            lambda: each("sendmmsg", [(at, None, 0, 0)], "messages can be sent"),
            lambda: each("recvmsg", [(at, bytes(64), socket.MSG_DONTWAIT)], "a message"),
            lambda: each("recvmmsg", [(at, None, 0, 0, None)], "messages can be received"),
        )


def _own_filter(world: World) -> str:
    accept = struct.pack("=HBBI", 6, 0, 0, 0xFFFF)  # one instruction of classic BPF: take it all
    holder = ctypes.create_string_buffer(accept)
    program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(holder))
    with _door(world) as connection:
        at = connection.fileno()
        return each(
            "setsockopt",
            [
                (at, socket.SOL_SOCKET, _SO_ATTACH_FILTER, program, len(program)),
                (at, socket.SOL_SOCKET | 1 << 32, _SO_ATTACH_FILTER | 1 << 32, program, len(program)),
                (at, socket.SOL_SOCKET, _SO_ATTACH_BPF, struct.pack("i", -1), 4),
                (at, socket.SOL_SOCKET, _SO_RCVBUFFORCE, struct.pack("i", 1 << 20), 4),
                (at, socket.SOL_SOCKET, _SO_PASSCRED, struct.pack("i", 1), 4),
                (at, socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("i", 1 << 20), 4),
            ],
            "an option of a socket",
        )


def _peer(world: World) -> str:
    """Ask who holds the other end: for a handle, to signal it and to take what it has open, and for its number."""
    with _door(world) as connection:
        at = connection.fileno()

        def handle() -> str:
            held, size = (ctypes.c_int * 1)(-1), (ctypes.c_uint * 1)(4)
            call("getsockopt", at, socket.SOL_SOCKET, _SO_PEERPIDFD, held, size)
            try:
                return every(
                    lambda: f"the daemon was signalled ({call('pidfd_send_signal', held[0], 0, None, 0)})",
                    lambda: _taken(held[0]),
                )
            finally:
                os.close(held[0])

        asked = (at, socket.SOL_SOCKET, _SO_PEERCRED, ctypes.create_string_buffer(12), ctypes.c_uint(12))
        return every(handle, lambda: each("getsockopt", [asked], "the daemon's number"))


def _taken(handle: int) -> str:
    os.close(call("pidfd_getfd", handle, 0, 0))
    return "a descriptor of the daemon's"


def _names(world: World) -> str:
    size = ctypes.c_uint(110)
    with _door(world) as connection:
        at = connection.fileno()
        return every(
            lambda: each("getsockname", [(at, ctypes.create_string_buffer(110), size)], "a name"),
            lambda: each("getpeername", [(at, ctypes.create_string_buffer(110), size)], "the daemon's path"),
            lambda: each("shutdown", [(at, socket.SHUT_RD)], "half a connection"),
        )


def _unconnect(world: World) -> str:
    # AF_UNSPEC takes a connection back, where a family can: what then connects anew was judged as the old one.
    with _door(world) as connection:
        call("connect", connection.fileno(), bytes(16), 16)
    return "a connection taken back"


def _urgent(world: World) -> str:
    # The freed memory is reached by reading an urgent byte twice, which somebody must have sent to this end.
    with _door(world) as connection:
        return every(
            lambda: f"an urgent byte was sent ({do('sendto', connection.send, b'!', socket.MSG_OOB)})",
            lambda: f"an urgent byte was read ({do('recvfrom', connection.recv, 1, socket.MSG_OOB)!r})",
            lambda: (
                f"one was looked at ({do('recvfrom', connection.recv, 1, socket.MSG_OOB | socket.MSG_PEEK)!r})"
            ),
        )


def _ready(world: World) -> None:
    """Find the door open and silent: what is read there later is an answer."""
    with _door(world) as connection:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if poll.poll(0):
            raise Stopped("the door speaks first")


ATTEMPTS = (
    Attempt(
        "sockets.path",
        "connects to a socket of the host's by its path",
        _path,
        control=the_door_opens,
        walls=[Wall("mounts", "ENOENT at connect")],
        escape="services that trust whoever reaches their socket can be talked to",
        victims=["listeners"],
    ),
    Attempt(
        "sockets.services",
        "connects to the sockets of container engines, buses and desktops",
        _services,
        control=the_door_opens,
        walls=[Wall("mounts", "ENOENT at connect")],
        escape="a container engine's socket is root on the host",
        cve="CVE-2019-7304",
        victims=["listeners"],
    ),
    Attempt(
        "sockets.logs",
        "sends datagrams to the sockets of the host's service manager and logs",
        _logs,
        control=sockets_work,
        walls=[Wall("mounts", "ENOENT at sendto")],
        escape="the host's logs and states of services can be forged",
    ),
    Attempt(
        "sockets.abstract",
        "connects to a socket of the host's that has no path",
        _abstract,
        control=sockets_work,
        walls=[Wall("network", "ECONNREFUSED at connect"), Wall("landlock", "EPERM at connect")],
        escape="services that trust whoever reaches such a socket can be talked to",
        cve="CVE-2020-15257",
        victims=["listeners"],
    ),
    Attempt(
        "sockets.abstract.known",
        "connects to the sockets without a path that desktops and container engines are known to have",
        _abstract_known,
        control=sockets_work,
        walls=[
            Wall("network", "ECONNREFUSED at connect"),
            Wall("landlock", "EPERM at connect, ECONNREFUSED at connect"),
        ],
        escape="the host's services that have such a socket can be talked to",
        cve="CVE-2020-15257, CVE-2022-41974, CVE-2022-42919",
        victims=["listeners"],
    ),
    Attempt(
        "sockets.abstract.datagram",
        "sends datagrams to sockets without a path, which needs no connection",
        _abstract_datagram,
        control=sockets_work,
        walls=[
            Wall("network", "ECONNREFUSED at sendto"),
            Wall("landlock", "EPERM at sendto, ECONNREFUSED at sendto"),
        ],
        escape="the host's services that have such a socket can be talked to",
        victims=["listeners"],
    ),
    Attempt(
        "sockets.pair",
        "makes connected sockets without anybody at their other end",
        _pair,
        control=sockets_work,
        walls=[Wall("syscalls", "ENOSYS at socketpair")],
        escape="kernel memory that no limit counts, and both ends of AF_UNIX, whose published faults need them",
        cve="CVE-2021-0920, CVE-2025-38236",
    ),
    Attempt(
        "sockets.bind.auto",
        "has the kernel name a socket",
        _autobind,
        control=sockets_work,
        walls=[Wall("syscalls", "ENOSYS at bind")],
        escape="others can send to it: two workers can talk past the kernel's records",
    ),
    Attempt(
        "sockets.bind.path",
        "puts a socket into the host's folder",
        _bind,
        control=sockets_work,
        walls=[
            Wall("syscalls", "ENOSYS at bind"),
            Wall("mounts", "ENOENT at bind"),
            Wall("landlock", "EACCES at bind"),
        ],
        escape="it can stand in a service's place",
        victims=["files"],
    ),
    Attempt(
        "sockets.bind.root",
        "connects to the worker socket from a socket whose name says that root is there",
        _named_root,
        control=the_door_opens,
        # What has no path can be bound in any namespace: nothing else stands in its way.
        walls=[Wall("syscalls", "ENOSYS at bind")],
        escape="the daemon can be told in a name who speaks",
        cve="CVE-2019-7304",
        victims=["files"],
    ),
    Attempt(
        "sockets.accept",
        "listens and takes connections",
        _accept,
        control=sockets_work,
        walls=[
            Wall("syscalls", "ENOSYS at listen, ENOSYS at accept, ENOSYS at accept4"),
            Wall("kernel", "EINVAL at listen, EINVAL at accept, EINVAL at accept4"),
        ],
        escape="the worker can be reached",
    ),
    Attempt(
        "sockets.hand_over",
        "hands a descriptor to the daemon with a message",
        _hand_over,
        control=the_door_opens,
        walls=[Wall("syscalls", "ENOSYS at sendmsg")],
        escape="descriptors wait in the daemon's queue, and can be cycles that only a collector frees",
        cve="CVE-2021-0920",
    ),
    Attempt(
        "sockets.pretend",
        "says in a message to the daemon that another process sent it",
        _pretend,
        control=the_door_opens,
        walls=[
            Wall("syscalls", "ENOSYS at sendmsg"),
            Wall("user_namespace", "EPERM at sendmsg", "EINVAL at sendmsg"),
        ],
        escape="the daemon can be told that somebody else speaks",
        cve="CVE-2013-1979",
    ),
    Attempt(
        "sockets.messages",
        "sends and receives messages by the calls that carry descriptors",
        _many,
        control=_ready,
        walls=[Wall("syscalls", "ENOSYS at sendmmsg, ENOSYS at recvmsg, ENOSYS at recvmmsg")],
        escape="descriptors can be received",
    ),
    Attempt(
        "sockets.options",
        "attaches programs of both kinds to a socket and widens its buffers",
        _own_filter,
        control=the_door_opens,
        walls=[Wall("syscalls", "EPERM at setsockopt")],
        escape="the kernel runs the worker's program, and keeps what it sends in memory of its own",
        cve="CVE-2017-16995",
    ),
    Attempt(
        "sockets.peer",
        "asks for a handle on the daemon at the other end of the worker socket, to signal it and take its descriptors",
        _peer,
        control=the_door_opens,
        walls=[Wall("syscalls", "ENOSYS at getsockopt")],
        escape="the daemon has a name even where it has no number",
    ),
    Attempt(
        "sockets.names",
        "asks where the two ends of the worker socket are on the host, and closes half of it",
        _names,
        control=the_door_opens,
        walls=[Wall("syscalls", "ENOSYS at getsockname, ENOSYS at getpeername, ENOSYS at shutdown")],
        escape="paths of the host's become known",
    ),
    Attempt(
        "sockets.unconnect",
        "takes its connection to the worker socket back",
        _unconnect,
        control=the_door_opens,
        walls=[Wall("kernel", "EINVAL at connect")],
        escape="the daemon's idea of who is at the other end is an old one",
    ),
    Attempt(
        "sockets.urgent",
        "sends an urgent byte to the daemon, and reads one",
        _urgent,
        control=_ready,
        walls=[Wall("syscalls", "EPERM at sendto, EPERM at recvfrom")],
        escape="the queue of urgent bytes, from which a browser's sandbox was left, is in the worker's hands",
        cve="CVE-2025-38236",
    ),
)
