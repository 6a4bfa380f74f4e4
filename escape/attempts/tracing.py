"""Out by another process's memory: tracing, reading, counting."""

from __future__ import annotations

import ctypes
import os

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making, behind
from escape.inside import Stopped, World, call, do, each, every, pause, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ATTACH, _DETACH, _SEIZE, _TRACEME = 16, 17, 0x4206, 0
_SUSPEND_SECCOMP = 1 << 21
_UNMAPPED = (
    8  # below vm.mmap_min_addr nothing is mapped in any process: EFAULT says that the rights were there
)
_PERF_SIZE = 64
_SOFTWARE, _TASK_CLOCK, _EXCLUDE_KERNEL_AND_HYPERVISOR = 1, 1, 0b11 << 5
_MADV_COLD = 20
_SET_DUMPABLE, _SET_MM, _SET_PTRACER = 4, 35, 0x59616D61


def _vector(base: int, length: int = 8) -> ctypes.Array[ctypes.c_ulong]:
    return (ctypes.c_ulong * 2)(base, length)


def _others(world: World) -> list[int]:
    # In a process-id namespace of its own, the parent has no number (0), which would name the process itself.
    return [pid for pid in (world.victim_pid, world.daemon_pid, os.getppid()) if pid]


def _past(name: str, *arguments: int | ctypes.Array[ctypes.c_ulong] | None) -> Callable[[], str]:
    """Reach for an address that is never mapped: EFAULT means that the process itself was given."""

    def route() -> str:
        try:
            call(name, *arguments)
        except Stopped as end:
            if not end.answer.startswith("EFAULT"):
                raise
        return f"another process's memory ({name})"

    return route


def _attach(world: World) -> str:
    def attach() -> str:
        pid = world.victim_pid
        call("ptrace", _ATTACH, pid, 0, 0)
        for _ in range(50):
            if call("wait4", pid, None, os.WNOHANG, None):
                break
            pause(10)
        call("ptrace", _DETACH, pid, 0, 0)
        return "the victim was traced"

    return every(lambda: f"nobody was traced ({call('ptrace', _ATTACH, -1, 0, 0)})", attach)


def _seize(world: World) -> str:
    # A process that does not exist comes first: its ESRCH tells a filter that is gone from the kernel's own EPERM.
    # Last, with the option that switches a filter off for who is traced: EINVAL where the kernel was built without it.
    lists = [(_SEIZE, pid, 0, options) for options in (0, _SUSPEND_SECCOMP) for pid in (-1, *_others(world))]
    return each("ptrace", lists, "another process was seized")


def _traceme(world: World) -> str:
    call("ptrace", _TRACEME, 0, 0, 0)
    return "it is stopped by its tracer, no longer by its daemon"


def _trace_child(world: World) -> str:
    child = do("fork", os.fork)
    if child == 0:
        try:
            pause(200)
        finally:
            os._exit(0)
    try:
        call("ptrace", _SEIZE, child, 0, 0)
    finally:
        reap(child)
    return "the calls of a child can be rewritten when its filter has seen them"


def _read_memory(world: World) -> str:
    here = ctypes.create_string_buffer(8)
    local, remote = _vector(ctypes.addressof(here)), _vector(_UNMAPPED)
    routes = [_past("process_vm_readv", pid, local, 1, remote, 1, 0) for pid in _others(world)]
    return every(_past("process_vm_readv", world.victim_pid, local, 1, remote, 1, 1), *routes)


def _write_memory(world: World) -> str:
    here = ctypes.create_string_buffer(8)
    local, remote = _vector(ctypes.addressof(here)), _vector(_UNMAPPED)
    routes = [_past("process_vm_writev", pid, local, 1, remote, 1, 0) for pid in _others(world)]
    return every(_past("process_vm_writev", world.victim_pid, local, 1, remote, 1, 1), *routes)


def _proc(world: World) -> str:
    def route(path: str) -> Callable[[], str]:
        def got() -> str:
            os.close(do("open", os.open, path, os.O_RDONLY))
            return f"opened {path}"

        return got

    names = ("environ", "auxv", "maps", "mem")
    return every(*(route(f"/proc/{pid}/{name}") for pid in _others(world) for name in names))


def _kcmp(world: World) -> str:
    lists = [(os.getpid(), pid, 0, 0, 0) for pid in (-1, *_others(world))]
    return each("kcmp", lists, "how descriptors lie in the kernel's memory")


def _pidfd(pid: int, then: Callable[[int], str]) -> Callable[[], str]:
    def route() -> str:
        descriptor = call("pidfd_open", pid, 0)
        try:
            return then(descriptor)
        finally:
            os.close(descriptor)

    return route


def _getfd(descriptor: int) -> str:
    os.close(call("pidfd_getfd", descriptor, 0, 0))
    return "a descriptor of another process"


def _descriptors(world: World) -> str:
    # Without a process behind it, EBADF tells a filter that is gone.
    return every(lambda: _getfd(-1), *(_pidfd(pid, _getfd) for pid in _others(world)))


def _clock_of_a_task() -> ctypes.Array[ctypes.c_uint64]:
    attributes = (ctypes.c_uint64 * (_PERF_SIZE // 8))()
    attributes[0], attributes[1] = _SOFTWARE | _PERF_SIZE << 32, _TASK_CLOCK
    attributes[5] = _EXCLUDE_KERNEL_AND_HYPERVISOR
    return attributes


def _perf(world: World) -> str:
    attributes = _clock_of_a_task()

    def count(pid: int, processor: int) -> Callable[[], str]:
        def route() -> str:
            os.close(call("perf_event_open", attributes, pid, processor, -1, 0))
            return f"counters of {pid} on processor {processor}"

        return route

    return every(
        # An address that cannot be read comes before any right is asked for.
        lambda: each("perf_event_open", [(None, world.victim_pid, -1, -1, 0)], "counters of nothing"),
        count(world.victim_pid, -1),
        count(world.daemon_pid, -1),
        count(-1, 0),
    )


def _count_itself(world: World) -> str:
    attributes = _clock_of_a_task()
    os.close(call("perf_event_open", attributes, 0, -1, -1, 0))
    return "counters of its own, by a call with a long record of faults"


def _advise(world: World) -> str:
    def advise(descriptor: int) -> str:
        return f"memory of another was aged ({call('process_madvise', descriptor, _vector(0, 0), 1, _MADV_COLD, 0)})"

    return every(lambda: advise(-1), *(_pidfd(pid, advise) for pid in _others(world)))


def _release(world: World) -> str:
    def release(descriptor: int) -> str:
        return f"memory of another was taken ({call('process_mrelease', descriptor, 0)})"

    return every(lambda: release(-1), *(_pidfd(pid, release) for pid in _others(world)))


def _move_pages(world: World) -> str:
    page, status = (ctypes.c_void_p * 1)(_UNMAPPED), (ctypes.c_int * 1)()
    lists = [(pid, 1, page, None, status, flags) for pid in _others(world) for flags in (1 << 5, 0)]
    return each("move_pages", lists, "where another's pages lie")


def _robust_list(world: World) -> str:
    head, length = (ctypes.c_void_p * 1)(), (ctypes.c_size_t * 1)()
    lists = [(0, None, None), *((pid, head, length) for pid in _others(world))]
    return each("get_robust_list", lists, "an address in another process")


def _ptracer(world: World) -> str:
    return each(
        "prctl", [(_SET_PTRACER, pid, 0, 0, 0) for pid in (-1, world.victim_pid)], "a tracer of its choice"
    )


def _dumpable(world: World) -> str:
    call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)
    call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)
    return "/proc hides from the daemon what it is"


def _set_mm(world: World) -> str:
    address = ctypes.addressof(ctypes.create_string_buffer(8))
    # PR_SET_MM_MAP without a map is EINVAL to the kernel; PR_SET_MM_ARG_START and _EXE_FILE want a capability.
    lists = [(_SET_MM, 14, 0, 0, 0), (_SET_MM, 8, address, 0, 0), (_SET_MM, 13, 0, 0, 0)]
    return each("prctl", lists, "it shows another command line, or program, than its own")


_attempt = Making("tracing", victims=["process"])

_STEERED = "another process does what the worker says, with that process's rights"
_READ = "what another process holds in memory, keys among it, can be read"


def _apart(refused: str, unseen: str, foreign: str) -> tuple[Wall, ...]:
    # Whoever is in another user namespace may not be looked into, its own user's processes among them, see ptrace(2).
    return behind(refused, unseen, foreign, "user_namespace")


ATTEMPTS: tuple[Attempt, ...] = (
    _attempt(
        "attach", "attaches to a process of the host's and traces it", _attach, _STEERED,
        *_apart("EPERM at ptrace", "ESRCH at ptrace", "ESRCH at ptrace, EPERM at ptrace"),
    ),
    _attempt(
        "seize", "seizes a process of the host's, the daemon and its own parent, their filters off as well", _seize,
        _STEERED,
        Wall("syscalls", "EPERM at ptrace"), Wall("pid_namespace", "ESRCH at ptrace"),
        Wall(
            "user_namespace",
            "ESRCH at ptrace, EPERM at ptrace",
            "ESRCH at ptrace, EPERM at ptrace, EINVAL at ptrace",
        ),
        cve="CVE-2022-30594",
    ),
    # To be traced by one's parent is a right that no other layer takes: the filter stands alone.
    _attempt(
        "traceme", "has its own parent trace it", _traceme,
        "signals that should end it stop at a tracer", Wall("syscalls", "EPERM at ptrace"), alone=True,
        cve="CVE-2019-13272",
    ),
    _attempt(
        "child", "traces a child of its own, to change the calls that a filter has let through", _trace_child,
        "the filter judges one call and the kernel makes another",
        Wall("syscalls", "EPERM at fork"), Wall("limits", "EAGAIN at fork", shape="hosted"),
        cve="CVE-2017-5206",
    ),
    _attempt(
        "read_memory", "reads another process's memory by process_vm_readv", _read_memory, _READ,
        *_apart(
            "EPERM at process_vm_readv", "EINVAL at process_vm_readv, ESRCH at process_vm_readv",
            "EINVAL at process_vm_readv, EPERM at process_vm_readv",
        ),
    ),
    _attempt(
        "write_memory", "writes into another process's memory by process_vm_writev", _write_memory, _STEERED,
        *_apart(
            "EPERM at process_vm_writev", "EINVAL at process_vm_writev, ESRCH at process_vm_writev",
            "EINVAL at process_vm_writev, EPERM at process_vm_writev",
        ),
    ),
    _attempt(
        "proc", "opens memory, environment and maps of other processes under /proc", _proc, _READ,
        Wall("mounts", "ENOENT at open"), Wall("user_namespace", "EACCES at open"),
        cve="CVE-2012-0056",
    ),
    _attempt(
        "kcmp", "compares its kernel objects with another process's", _kcmp,
        "the order of objects in the kernel's memory helps to attack it",
        *_apart("EPERM at kcmp", "ESRCH at kcmp", "ESRCH at kcmp, EPERM at kcmp"),
    ),
    _attempt(
        "descriptors", "takes a descriptor out of another process", _descriptors,
        "what another process has open, the hub's database among it, is the worker's too",
        *_apart(
            "EPERM at pidfd_getfd, EPERM at pidfd_open", "EBADF at pidfd_getfd, ESRCH at pidfd_open",
            "EBADF at pidfd_getfd, EPERM at pidfd_getfd",
        ),
    ),
    _attempt(
        "counters", "counts what another process, or a whole processor, does", _perf, _READ,
        Wall("syscalls", "EPERM at perf_event_open"),
        Wall("pid_namespace", "EFAULT at perf_event_open, ESRCH at perf_event_open, EACCES at perf_event_open"),
        Wall("kernel", "EFAULT at perf_event_open, EACCES at perf_event_open"),
    ),
    _attempt(
        "own_counters", "counts what it does itself", _count_itself,
        "a large part of the kernel, with faults published each year, is within reach",
        Wall("syscalls", "EPERM at perf_event_open"),
        cve="CVE-2013-2094, CVE-2022-1729",
    ),
    _attempt(
        "advise", "has another process's memory reclaimed by process_madvise", _advise,
        "another process is slowed down, and answers by its speed",
        *_apart(
            "EPERM at process_madvise, EPERM at pidfd_open", "EBADF at process_madvise, ESRCH at pidfd_open",
            "EBADF at process_madvise, EACCES at process_madvise",
        ),
    ),
    _attempt(
        "release", "has another process's memory taken away by process_mrelease", _release,
        "another process loses its memory",
        Wall("syscalls", "EPERM at process_mrelease, EPERM at pidfd_open"),
        Wall("pid_namespace", "EBADF at process_mrelease, ESRCH at pidfd_open"),
        # Only of a process that is being killed: the kernel asks for no more.
        Wall("kernel", "EBADF at process_mrelease, EINVAL at process_mrelease"),
    ),
    _attempt(
        "pages", "asks where the pages of another process lie", _move_pages, _READ,
        *_apart(
            "EPERM at move_pages", "EINVAL at move_pages, ESRCH at move_pages",
            "EINVAL at move_pages, EPERM at move_pages",
        ),
        cve="CVE-2017-14140",
    ),
    _attempt(
        "robust_list", "asks for the address of another process's list of locks", _robust_list,
        "where another process's memory lies is known",
        *_apart(
            "EPERM at get_robust_list", "EFAULT at get_robust_list, ESRCH at get_robust_list",
            "EFAULT at get_robust_list, EPERM at get_robust_list",
        ),
    ),
    _attempt(
        "tracer", "names a process that may trace it", _ptracer, "another process may steer it",
        Wall("syscalls", "EPERM at prctl"), Wall("kernel", "EINVAL at prctl"),
    ),
    _attempt(
        "dumpable", "makes itself a process that may not be looked at", _dumpable,
        "the daemon cannot tell any more what runs", Wall("syscalls", "EPERM at prctl"),
    ),
    _attempt(
        "memory_map", "changes what /proc says of its command line and program", _set_mm,
        "the daemon sees another program than the one that runs",
        Wall("syscalls", "EPERM at prctl"), Wall("kernel", "EINVAL at prctl, EPERM at prctl"),
    ),
)  # fmt: skip
