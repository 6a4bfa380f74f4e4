"""Out by another process's turn: its priority, processors, memory policy, limits and clocks."""

from __future__ import annotations

import ctypes
import os
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making, behind
from escape.inside import World, call, each, every

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PRIO_PROCESS, _PRIO_NOBODY = 0, 3
_HIGH = 1 << 32
_SCHED_CORE = 62
_LOOKS = (
    "getpgid", "getsid", "getpriority", "ioprio_get", "sched_getscheduler", "sched_getparam", "sched_getattr",
    "sched_rr_get_interval",
)  # fmt: skip


def _both(world: World) -> tuple[int, int]:
    return world.victim_pid, world.daemon_pid


def _priority(world: World) -> str:
    # To what they are already, so that nothing changes when it works.
    lists = [(_PRIO_NOBODY, 0, 0), *((_PRIO_PROCESS, pid, 0) for pid in _both(world))]
    return each("setpriority", lists, "another process's priority was set")


def _io_priority(world: World) -> str:
    # Class 7 is none; 0 is what a process has that never asked. Its own would be that of real time, before all others.
    lists = [(1, world.victim_pid, 7 << 13), (1, world.victim_pid, 0), (1, 0, 1 << 13)]
    return each("ioprio_set", lists, "a turn at the disk was set")


def _schedule(world: World) -> str:
    pid, ordinary = world.victim_pid, (ctypes.c_int * 1)()
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0)
    return every(
        lambda: each("sched_setscheduler", [(pid, 0, None), (pid, 0, ordinary)], "a policy was set"),
        lambda: each("sched_setparam", [(pid, None), (pid, ordinary)], "a parameter was set"),
        lambda: each("sched_setattr", [(pid, None, 0), (pid, attributes, 0)], "attributes were set"),
    )


def _real_time(world: World) -> str:
    def real_time(policy: int) -> Callable[[], str]:
        def route() -> str:
            call("sched_setscheduler", 0, policy, (ctypes.c_int * 1)(1))
            call("sched_setscheduler", 0, 0, (ctypes.c_int * 1)(0))
            return "nobody else has a turn while it runs"

        return route

    def parameter() -> str:
        call("sched_setparam", 0, (ctypes.c_int * 1)(1))
        return "it has a priority of real time"

    def deadline() -> str:
        # Ten milliseconds of each twenty: SCHED_DEADLINE, which comes before real time.
        wanted = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10_000_000, 20_000_000, 20_000_000)
        call("sched_setattr", 0, wanted, 0)
        call("sched_setscheduler", 0, 0, (ctypes.c_int * 1)(0))
        return "it runs by a deadline, before real time"

    def sooner() -> str:
        call("setpriority", _PRIO_PROCESS, 0, -20)
        call("setpriority", _PRIO_PROCESS, 0, 0)
        return "it goes before everyone else"

    return every(*map(real_time, (99, 1, 2)), parameter, deadline, sooner)


def _affinity(world: World) -> str:
    def move(pid: int) -> Callable[[], str]:
        def route() -> str:
            where = (ctypes.c_ulong * 16)()
            call("sched_getaffinity", pid, ctypes.sizeof(where), where)
            call("sched_setaffinity", pid, ctypes.sizeof(where), where)
            return "it says where a process runs" if pid else "it runs on processors of its choice"

        return route

    return every(*map(move, (0, *_both(world))))


def _looks(world: World) -> str:
    pid, room = world.victim_pid, ctypes.create_string_buffer(64)
    more = {"getpriority": (_PRIO_PROCESS, pid), "ioprio_get": (1, pid), "sched_getattr": (pid, room, 56, 0)}

    def look(name: str) -> Callable[[], str]:
        return lambda: each(name, [more.get(name, (pid, room))], f"what {name} says")

    return every(*map(look, _LOOKS))


def _processor_clock(world: World) -> str:
    # A clock's number can hold a pid (include/linux/posix-timers_types.h): the time that this process has run.
    spent = (ctypes.c_long * 2)()
    clocks = [(~pid << 3 | kind, spent) for pid in _both(world) for kind in (2, 6)]
    return each("clock_gettime", clocks, "how long another process has run, and that there is one")


def _limits_by_high_bits(world: World) -> str:
    old = (ctypes.c_ulong * 2)()
    # The kernel takes the low 32 bits for the pid: a filter that compared others would see another number.
    pids = (_HIGH | world.victim_pid, _HIGH | os.getpid(), os.getpid())
    return each("prlimit64", [(pid, 7, None, old) for pid in pids], "limits, by a number that is not 0")


def _memory_policy(world: World) -> str:
    node = (ctypes.c_ulong * 1)(1)
    return every(
        lambda: each(
            "migrate_pages", [(pid, 64, node, node) for pid in (-1, *_both(world))], "its memory was moved"
        ),
        lambda: each("set_mempolicy_home_node", [(1, 4096, 0, 0)], "a node was set"),
    )


def _core(world: World) -> str:
    cookie = (ctypes.c_ulong * 1)()
    lists = [(_SCHED_CORE, what, pid, 0, cookie) for what in (0, 1, 2, 3) for pid in _both(world)]
    return each("prctl", lists, "it chooses with whom another process shares a core")


_attempt = Making("scheduling", victims=["process"])

_SLOWED = "another process can be slowed down, or kept from running"
_KNOWN = "other processes have names, and say something about themselves"


def _behind(refused: str, unseen: str, foreign: str) -> tuple[Wall, ...]:
    # The kernel also asks that who is steered has no right that the other lacks: root's has every one.
    return behind(refused, unseen, foreign, "separate_user", hosted=["capabilities"])


ATTEMPTS: tuple[Attempt, ...] = (
    _attempt(
        "priority", "sets the priority of other processes", _priority, _SLOWED,
        *_behind(
            "EPERM at setpriority", "EINVAL at setpriority, ESRCH at setpriority",
            "EINVAL at setpriority, EPERM at setpriority",
        ),
    ),
    _attempt(
        "io_priority", "sets the turn of another process at the disk, and its own before all others", _io_priority,
        _SLOWED,
        *_behind(
            "EPERM at ioprio_set", "EINVAL at ioprio_set, ESRCH at ioprio_set, EPERM at ioprio_set",
            "EINVAL at ioprio_set, EPERM at ioprio_set",
        ),
    ),
    _attempt(
        "schedule", "sets the scheduling of another process", _schedule, _SLOWED,
        *_behind(
            "EPERM at sched_setscheduler, EPERM at sched_setparam, EPERM at sched_setattr",
            "EINVAL at sched_setscheduler, ESRCH at sched_setscheduler, EINVAL at sched_setparam, ESRCH at "
            "sched_setparam, EINVAL at sched_setattr, ESRCH at sched_setattr",
            "EINVAL at sched_setscheduler, EPERM at sched_setscheduler, EINVAL at sched_setparam, EPERM at "
            "sched_setparam, EINVAL at sched_setattr, EPERM at sched_setattr",
        ),
    ),
    _attempt(
        "real_time", "puts itself before everyone else, in real time, by a deadline and by its priority", _real_time,
        _SLOWED,
        Wall(
            "syscalls",
            "EPERM at sched_setscheduler, EPERM at sched_setparam, EPERM at sched_setattr, EPERM at setpriority",
        ),
        Wall(
            "kernel",
            "EINVAL at sched_setscheduler, EPERM at sched_setscheduler, EINVAL at sched_setparam, "
            "EPERM at sched_setattr, EACCES at setpriority",
        ),
    ),
    _attempt(
        "affinity", "says on which processors it and others run", _affinity,
        "it is beside whom it chooses, whose secrets it then measures",
        # Of itself nobody else keeps it, see neighbours.affinity for what stands around others.
        Wall("syscalls", "EPERM at sched_getaffinity"),
    ),
    _attempt(
        "looks", "asks for group, session, priority and scheduling of another process", _looks, _KNOWN,
        Wall("syscalls", ", ".join(f"EPERM at {name}" for name in _LOOKS)),
        Wall("pid_namespace", ", ".join(f"ESRCH at {name}" for name in _LOOKS)),
    ),
    _attempt(
        "processor_clock", "reads the clock that counts another process's time", _processor_clock, _KNOWN,
        Wall("syscalls", "EPERM at clock_gettime"), Wall("pid_namespace", "EINVAL at clock_gettime"),
    ),
    _attempt(
        "limits_by_high_bits", "names a process to prlimit64 in a number that is too wide for a pid",
        _limits_by_high_bits, "the filter compares another number than the kernel uses",
        Wall("syscalls", "EPERM at prlimit64"),
    ),
    _attempt(
        "memory_policy", "moves the memory of another process to another node", _memory_policy, _SLOWED,
        *behind(
            "EPERM at migrate_pages, EPERM at set_mempolicy_home_node",
            "ESRCH at migrate_pages, EINVAL at set_mempolicy_home_node",
            "ESRCH at migrate_pages, EPERM at migrate_pages, EINVAL at set_mempolicy_home_node",
            "user_namespace",
        ),
    ),
    _attempt(
        "core", "chooses with whom another process shares a core", _core, "secrets leak between neighbours on a core",
        Wall("syscalls", "EPERM at prctl"), Wall("kernel", "EINVAL at prctl"),
    ),
)  # fmt: skip
