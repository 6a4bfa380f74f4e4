"""The layers of a confined process, one row each: what it claims, how it is seen, what to do when it is not there.

`probe`, `doctor`, the receipt and docs/layers.md all read this table.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from bwrap import cgroup, landlock, sources
from bwrap.findings import WORKS, Asked, Attempt, Finding, Layer, equal, told
from bwrap.host import Shape
from bwrap.limits import resource_limits
from bwrap.mounts import IMAGE, PROC, Kind
from bwrap.plan import PATH
from bwrap.process import Process
from bwrap.seccomp import ALLOW, architecture, meaning, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bwrap.plan import Plan

_CLONE_NEWUSER = 0x10000000
_PR_CAPBSET_READ, _PR_GET_NO_NEW_PRIVS, _CAP_SYS_ADMIN = 23, 39, 21
_KILLED = 9
_AT_FDCWD = -100

# Calls that give a descriptor wherever they are not refused, with their arguments; the floor lets no profile allow the
# first.
_HARMLESS = {"inotify_init1": (0,), "eventfd2": (0, 0), "epoll_create1": (0,), "timerfd_create": (1, 0)}

# What bubblewrap covers in a /proc of its own where the process could write to it.
_COVERED = frozenset(f"{PROC}/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus"))


def table(plan: Plan, shape: Shape) -> list[Layer]:
    """Give the layers that a plan claims in a shape; what a profile leaves out is not claimed."""
    return [layer for layer in _LAYERS if shape in layer.shapes and layer.claimed(plan)]


def absent(plan: Plan) -> list[str]:
    """Give the layers that are not claimed because this host's kernel does not have them."""
    return [] if plan.host.landlock else ["landlock"]


def every_layer() -> tuple[Layer, ...]:
    """Give the whole table, for those who explain it."""
    return _LAYERS


def attempts(plan: Plan, shape: Shape) -> list[Asked]:
    """Give every attempt a process must make, each named for its layer, what it sets itself before all others.

    Only what is expected depends on the process, never the operation: it is handed over before there is one.
    """
    ordered = sorted(table(plan, shape), key=lambda layer: not layer.sets_itself)
    return [each for layer in ordered for each in layer.asked(plan)]


def remedy(name: str) -> str:
    """Give the remedy of a layer by name, for a start that failed before it could be looked at."""
    for layer in _LAYERS:
        if layer.name == name:
            return layer.remedy
    return "see what bubblewrap needs on this host in docs/confinement.md"


def _own_namespace(process: Process, name: str) -> Finding:
    theirs, ours = process.namespace(name), os.readlink(f"/proc/self/ns/{name}")
    confirmed = theirs != ours and all(each.startswith(f"{name}:[") for each in (theirs, ours))
    return Finding(f"outside: ns/{name}", "not the daemon's", theirs, confirmed)


def _refused(plan: Plan, call: str, *arguments: object) -> Attempt:
    return Attempt(call, _syscall(call, *arguments), _refusal(plan, call, arguments))


def _refusal(plan: Plan, call: str, arguments: tuple[object, ...] = ()) -> int:
    """Give what a call answers that must not work: the errno that the profile says.

    Where the profile lets it through, as none above the floor does, EPERM is what the other layers would answer.
    """
    numbers = tuple(each if isinstance(each, int) else 0 for each in arguments)
    action = meaning(plan.filter.rules, call, numbers)
    return -errno.EPERM if action == ALLOW else -(action & 0xFFFF)


def _syscall(call: str, *arguments: object) -> tuple[object, ...]:
    return ("syscall", number(call, architecture()), *arguments)


def _socket(plan: Plan, family: str, kind: int) -> Attempt:
    arguments = (int(getattr(socket, family)), kind, 0)
    call = ("syscall_fd", number("socket", architecture()), *arguments)
    expected = WORKS if family == "AF_UNIX" else _refusal(plan, "socket", arguments)
    return Attempt(f"socket({family})", call, expected)


# --- user ---


def _user_outside(process: Process) -> Iterator[Finding]:
    yield _own_namespace(process, "user")
    words = process.read("uid_map").split()
    yield equal("outside: uid_map", [str(process.uid)] * 2 + ["1"], words)
    yield equal("outside: status Uid", [str(process.uid)] * 4, process.status("Uid").split())
    yield equal("outside: status Gid", [str(process.gid)] * 4, process.status("Gid").split())


def _user_attempts(plan: Plan) -> Iterator[Attempt]:
    yield _refused(plan, "unshare", _CLONE_NEWUSER)
    yield _refused(plan, "setuid", 0)
    yield Attempt("who am I", ("ids",), _numbers)


def _numbers(process: Process) -> list[int]:
    return [process.uid] * 3 + [process.gid] * 3 + [process.pid_inside, process.parent_inside]


def _separate_user_outside(process: Process) -> Iterator[Finding]:
    observed = int(process.status("Uid").split()[0])
    confirmed = observed == process.uid and observed not in (0, os.getuid())
    yield Finding("outside: status Uid", "a leased uid, neither 0 nor the daemon's", str(observed), confirmed)
    yield equal("outside: status Groups", [], process.status("Groups").split())


# --- network, home, mounts ---


def _network_outside(process: Process) -> Iterator[Finding]:
    yield _own_namespace(process, "net")
    devices = [line.split(":")[0].strip() for line in process.read("net/dev").splitlines()[2:]]
    yield equal("outside: net/dev", ["lo"], devices)


def _network_attempts(plan: Plan) -> Iterator[Attempt]:
    for family in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_UNIX"):
        yield _socket(plan, family, socket.SOCK_RAW if family == "AF_PACKET" else socket.SOCK_STREAM)


def _home_outside(process: Process) -> Iterator[Finding]:
    home = process.plan.places.home
    found = [mount for mount in process.mounts() if mount.target == home]
    yield equal(
        "outside: mountinfo of the home",
        ["tmpfs ro"],
        [f"{m.type} {'ro' if m.read_only else 'rw'}" for m in found],
    )
    yield equal(
        "outside: files under the home", [process.plan.places.socket_inside], sorted(process.files(home))
    )


def _home_attempts(plan: Plan) -> Iterator[Attempt]:
    home, inside = plan.places.home, plan.places.socket_inside
    yield Attempt("list the home", ("list", home), ["run"])
    yield Attempt("list its run folder", ("list", os.path.dirname(inside)), [os.path.basename(inside)])
    yield Attempt("write in the home", ("open", f"{home}/probe", os.O_CREAT | os.O_WRONLY), -errno.EROFS)
    yield Attempt("connect to the worker socket", ("connect", inside), WORKS)


def _mounts_outside(process: Process) -> Iterator[Finding]:
    yield _own_namespace(process, "mnt")
    plan = process.plan
    writable = {mount.target for mount in plan.find(Kind.TMPFS)}
    planned = {"/", *(mount.target for mount in plan.mounts if mount.kind is not Kind.SYMLINK)}
    found = {mount.target: mount for mount in process.mounts()}
    if plan.proc:
        planned |= {PROC} | (_COVERED & set(found))
    yield equal("outside: mount points", sorted(planned), sorted(found))
    loose = sorted(
        target for target, mount in found.items() if not mount.read_only and target not in writable
    )
    yield equal("outside: writable mounts not planned so", [], loose)
    # bubblewrap gives what it mounts nosuid and nodev; only its root, which holds nothing but folders, lacks nodev.
    careless = sorted(target for target, mount in found.items() if not {"nosuid", "nodev"} <= mount.options)
    yield equal("outside: mounts without nosuid and nodev", [], careless)
    # bubblewrap looks the paths up for itself, a moment after they were examined.
    with process.root() as root:
        swapped = [
            mount.target
            for mount, source in plan.shown
            if sources.identity(mount.target.lstrip("/"), folder=root) != source.identity
        ]
    yield equal("outside: what is shown and was not examined", [], swapped)


def _mounts_attempts(plan: Plan) -> Iterator[Attempt]:
    # With no path at all: the kernel looks for it before it asks for rights, so that EPERM is the filter's word, and
    # EFAULT that of a process without rights and without a filter.
    yield _refused(plan, "mount", "none", None, "tmpfs", 0, None)
    yield _refused(plan, "umount2", None, 0)
    yield _refused(plan, "chroot", None)
    yield Attempt("write in /", ("open", "/probe", os.O_CREAT | os.O_WRONLY), -errno.EROFS)
    for mount in plan.find(Kind.TMPFS):
        yield Attempt(
            f"write in {mount.target}", ("open", f"{mount.target}/probe", os.O_CREAT | os.O_WRONLY), WORKS
        )
    yield Attempt("read the interpreter", ("open", plan.host.python.path, os.O_RDONLY), WORKS)


# --- what the kernel lets it call ---


def _syscalls_outside(process: Process) -> Iterator[Finding]:
    yield equal("outside: status Seccomp", "2", process.status("Seccomp"))
    # Filters are inherited, so a daemon that is itself filtered (in a container) passes its own on.
    own = int(Process.own_status("Seccomp_filters"))
    yield equal("outside: status Seccomp_filters", str(own + 1), process.status("Seccomp_filters"))


def _syscalls_attempts(plan: Plan) -> Iterator[Attempt]:
    yield _refused(plan, "ptrace", 0, 0, 0, 0)
    # The daemon's own pid: unfiltered, a worker of the same user may signal it. Signal 0 asks, and does nothing.
    yield _refused(plan, "kill", os.getpid(), 0)
    yield _refused(plan, "init_module", None, 0, "")
    yield _refused(plan, "keyctl", 0, -3, 0)
    yield _refused(plan, "bpf", 0, None, 0)
    yield _refused(plan, "io_uring_setup", 1, None)
    yield _refused(plan, "perf_event_open", None, 0, -1, -1, 0)
    rules = plan.filter.rules
    # A call that every kernel has and the profile does not name: the default answers it, so the list is an allow list.
    for call, arguments in _HARMLESS.items():
        if call not in (rules.allow | rules.refuse.keys() | rules.when.keys()):
            operation = ("syscall_fd", number(call, architecture()), *arguments)
            yield Attempt(call, operation, _refusal(plan, call))
            break
    # Without flags it is fork: had the filter let it pass, the child would end and say nothing.
    yield _refused(plan, "clone", 0, 0, 0, 0, 0)
    yield _refused(plan, "setsockopt", 0, socket.SOL_SOCKET, socket.SO_KEEPALIVE, None, 0)
    yield Attempt("getpid", _syscall("getpid"), lambda process: process.pid_inside)


def _landlock_attempts(plan: Plan) -> Iterator[Attempt]:
    version = plan.host.landlock
    calls = [landlock.CREATE_RULESET, landlock.ADD_RULE, landlock.RESTRICT_SELF]
    writable = [mount.target for mount in plan.find(Kind.TMPFS)]
    given_up = ("landlock", calls, list(landlock.rights(version)), landlock.changes(version), writable)
    yield Attempt("restrict itself", given_up, 0)
    # The image's mode lets it be executed, though it is no program: without this layer the answer is ENOEXEC.
    yield Attempt("execve", _syscall("execve", IMAGE, None, None), -errno.EACCES)
    yield Attempt("access(X_OK)", _syscall("faccessat", _AT_FDCWD, IMAGE, os.X_OK), WORKS)


def _capabilities_outside(process: Process) -> Iterator[Finding]:
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        yield equal(f"outside: status {name}", 0, int(process.status(name), 16))


def _prctl(name: str, option: int, argument: int, expected: object) -> Attempt:
    return Attempt(name, _syscall("prctl", option, argument, 0, 0, 0), expected)


# --- the process itself ---

_LIMITS = {
    # name in getrlimit(2): name in /proc/<pid>/limits
    "RLIMIT_AS": "Max address space",
    "RLIMIT_FSIZE": "Max file size",
    "RLIMIT_NPROC": "Max processes",
    "RLIMIT_NOFILE": "Max open files",
    "RLIMIT_CPU": "Max cpu time",
    "RLIMIT_CORE": "Max core file size",
}


def _limits_outside(process: Process) -> Iterator[Finding]:
    for name, value in process.limits().items():
        words = process.limit(_LIMITS[name])
        yield equal(f"outside: limits {_LIMITS[name]!r}", [str(value)] * 2, words)
    yield from _group_outside(process)


def _group_outside(process: Process) -> Iterator[Finding]:
    """Look at what bounds it as a whole; where nothing can, that is said, and is no failure."""
    group, own = process.group, "a group of its own, where a cgroup is delegated"
    if group is None:
        yield Finding("outside: cgroup", own, "no cgroup is delegated", confirmed=True)
        return
    found = {cgroup.path_of(pid) for pid in (process.pid, process.monitor)}
    inside = found == {group.place.path}
    yield Finding(
        "outside: cgroup", own, "a group of its own" if inside else told(sorted(map(str, found))), inside
    )
    for controller in cgroup.CONTROLLERS:
        files = [name for name in group.bounds if name.startswith(f"{controller}.")]
        if not files:
            bounded = f"bounded by {controller}, where that is delegated"
            yield Finding(
                "outside: cgroup", bounded, f"the controller {controller} is not there", confirmed=True
            )
        for name in files:
            yield equal(f"outside: cgroup {name}", group.bounds[name], group.read(name))


def _limits_attempts(plan: Plan) -> Iterator[Attempt]:
    wanted = {name: [value, value] for name, value in resource_limits(plan.limits).items()}
    yield Attempt("getrlimit", ("limits", list(wanted)), wanted)


def _environment_outside(process: Process) -> Iterator[Finding]:
    yield equal("outside: environ", f"PATH={PATH}\0", process.read("environ"))


def _descriptors_outside(process: Process) -> Iterator[Finding]:
    yield equal("outside: fd", ["0", "1", "2"], process.descriptors())


def _descriptors_attempts(_: Plan) -> Iterator[Attempt]:
    yield Attempt("fcntl(3, F_GETFD)", _syscall("fcntl", 3, 1, 0), -errno.EBADF)
    yield Attempt("fcntl(2, F_GETFD)", _syscall("fcntl", 2, 1, 0), WORKS)


def _session_outside(process: Process) -> Iterator[Finding]:
    yield equal("outside: stat session", process.pid, int(process.stat(6)))
    yield equal("outside: stat tty_nr", 0, int(process.stat(7)))


def _pid_outside(process: Process) -> Iterator[Finding]:
    yield _own_namespace(process, "pid")
    # One number for each namespace it is in, the daemon's first; a daemon in a container has several itself.
    numbers, ours = process.status("NSpid").split(), Process.own_status("NSpid").split()
    yield equal("outside: status NSpid", [str(process.pid), "1"], numbers[len(ours) - 1 :])
    if process.plan.proc:
        yield equal("outside: first two processes in its /proc", ["1"], process.numbers(PROC)[:2])


def _parent_outside(process: Process) -> Iterator[Finding]:
    yield equal("outside: stat ppid", process.monitor, int(process.stat(4)))


def _nothing(_: Process | Plan) -> tuple[()]:
    return ()


def _namespace_of(name: str) -> Callable[[Process], Iterator[Finding]]:
    def outside(process: Process) -> Iterator[Finding]:
        yield _own_namespace(process, name)

    return outside


# The attempts of many rest on the process's own number and on the filter: those two are judged first, so that what is
# missing is what a refusal names.
_LAYERS = (
    Layer(
        "pid_namespace",
        "it is process 1 of a process-id namespace, in which nothing of the host's has a number",
        "allow process-id namespaces on this host (user.max_pid_namespaces)",
        _pid_outside,
        lambda _: [Attempt("getpid", _syscall("getpid"), 1)],
        claimed=lambda plan: plan.namespaces.pid,
    ),
    Layer(
        "syscalls",
        "a filter that lets through the calls the profile names and refuses all else",
        "use a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)",
        _syscalls_outside,
        _syscalls_attempts,
    ),
    Layer(
        "user_namespace",
        "a user namespace of its own, in which it is one user without rights and can become no other",
        "allow user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor's userns rule)",
        _user_outside,
        _user_attempts,
    ),
    Layer(
        "separate_user",
        "outside its namespaces it is an unprivileged uid of its own, neither root's nor the daemon's",
        "let the daemon run as root of the host, with a range of uids that is its workers' alone",
        _separate_user_outside,
        _nothing,
        (Shape.HOSTED,),
    ),
    Layer(
        "network",
        "a network namespace with nothing but loopback, and no socket family but AF_UNIX",
        "allow network namespaces on this host (user.max_net_namespaces)",
        _network_outside,
        _network_attempts,
        claimed=lambda plan: plan.namespaces.net,
    ),
    Layer(
        "home",
        "where the instance's home is, an empty read-only directory that holds the worker socket",
        "report this with the home's line of /proc/self/mountinfo",
        _home_outside,
        _home_attempts,
    ),
    Layer(
        "mounts",
        "a mount namespace with what the profile names and nothing else, read-only but for what the profile bounds",
        "allow mount namespaces on this host (user.max_mnt_namespaces)",
        _mounts_outside,
        _mounts_attempts,
    ),
    Layer(
        "ipc",
        "no System V or POSIX message queue, semaphore or segment of the host",
        "allow IPC namespaces on this host (user.max_ipc_namespaces)",
        _namespace_of("ipc"),
        lambda plan: [_refused(plan, "shmget", 0, 4096, 0o1600), _refused(plan, "msgget", 0, 0o1600)],
        claimed=lambda plan: plan.namespaces.ipc,
    ),
    Layer(
        "uts",
        "names of host and domain that are copies: the host's own cannot be changed",
        "allow UTS namespaces on this host (user.max_uts_namespaces)",
        _namespace_of("uts"),
        _nothing,
        claimed=lambda plan: plan.namespaces.uts,
    ),
    Layer(
        "cgroup",
        "the host's control groups are out of sight",
        "allow cgroup namespaces on this host (user.max_cgroup_namespaces)",
        _namespace_of("cgroup"),
        _nothing,
        claimed=lambda plan: plan.namespaces.cgroup,
    ),
    Layer(
        "landlock",
        "it has given up executing any file that has a path, and changing one but in memory that the profile gives it",
        "let the profile allow the calls of '@landlock', or report this with the kernel's version",
        _nothing,
        _landlock_attempts,
        claimed=lambda plan: plan.host.landlock > 0,
        sets_itself=True,
    ),
    Layer(
        "capabilities",
        "no capability, in no set",
        "use a bubblewrap that drops capabilities (0.8.0 or later, not setuid)",
        _capabilities_outside,
        lambda _: [_prctl("PR_CAPBSET_READ", _PR_CAPBSET_READ, _CAP_SYS_ADMIN, 0)],
    ),
    Layer(
        "no_new_privs",
        "no program it starts can gain rights",
        "use a kernel with no_new_privs (3.5 or later)",
        lambda process: [equal("outside: status NoNewPrivs", "1", process.status("NoNewPrivs"))],
        lambda _: [_prctl("PR_GET_NO_NEW_PRIVS", _PR_GET_NO_NEW_PRIVS, 0, 1)],
    ),
    Layer(
        "limits",
        "bounded address space, file size, processes, open files and processor time, and no core dump; where a cgroup "
        "is delegated, bounded memory and processes of all of it together",
        "raise the daemon's own hard limits, which a worker's cannot exceed",
        _limits_outside,
        _limits_attempts,
    ),
    Layer(
        "environment",
        "an environment that holds PATH and nothing else",
        "install coreutils' env within the worker's reach",
        _environment_outside,
        _nothing,
    ),
    Layer(
        "descriptors",
        "no descriptor but standard input, output and error",
        "report this: a descriptor of the daemon was inherited",
        _descriptors_outside,
        _descriptors_attempts,
    ),
    Layer(
        "session",
        "a session of its own without a terminal",
        "use a bubblewrap that knows --new-session",
        _session_outside,
        lambda _: [Attempt("open /dev/tty", ("open", "/dev/tty", os.O_RDWR), -errno.ENOENT)],
    ),
    Layer(
        "parent_death",
        "it is killed when bubblewrap's monitor ends, and that when the daemon ends, however it ends",
        "use a kernel and a bubblewrap that honour --die-with-parent",
        _parent_outside,
        lambda _: [Attempt("PR_GET_PDEATHSIG", ("pdeathsig",), _KILLED)],
    ),
    Layer(
        "credential",
        "nothing has been entrusted to it yet",
        "report this: something was written to its standard input too soon",
        _nothing,
        lambda _: [Attempt("look at standard input", ("stdin",), "silent")],
    ),
)
