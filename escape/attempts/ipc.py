"""Out by System V and POSIX objects, which have no path."""

from __future__ import annotations

import ctypes
import os

from escape.attempt import Attempt, Wall
from escape.attempts._refusing import same
from escape.inside import World, call, calls_work, do, each, every, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from escape.attempt import Chain

_PAGE = 4096
_STAT = 2
_NOWAIT = 0o4000
_SEM_GETVAL, _SEM_STAT_ANY = 12, 20
_SHM_STAT_ANY, _MSG_STAT_ANY = 15, 13
_READ_ONLY = 0o10000


def _read_segment(world: World) -> str:
    at = call("shmat", world.shm_id, None, _READ_ONLY)
    try:
        return f"the host's segment is read, {len(ctypes.string_at(at, 24))} bytes"
    finally:
        call("shmdt", at)


def _write_segment(world: World) -> str:
    at = call("shmat", world.shm_id, None, 0)
    try:
        ctypes.memmove(at, b"A", 1)
    finally:
        call("shmdt", at)
    return "the host's segment was written to"


def _segment_state(world: World) -> str:
    state = ctypes.create_string_buffer(256)
    return each("shmctl", [(world.shm_id, _STAT, state)], "who has the host's segment")


def _semaphore(world: World) -> str:
    value = call("semctl", world.sem_id, 0, _SEM_GETVAL, 0)
    operation = (ctypes.c_short * 3)(0, 1, _NOWAIT)
    call("semop", world.sem_id, operation, 1)
    return f"the host's semaphore was {value}, and is one more"


def _semaphore_operation(world: World) -> str:
    operation = (ctypes.c_short * 3)(0, 1, _NOWAIT)
    return every(
        lambda: f"{call('semop', world.sem_id, operation, 1)}: the host's semaphore is one more",
        lambda: f"{call('semtimedop', world.sem_id, operation, 1, None)}: the host's semaphore is one more",
    )


def _queue_state(world: World) -> str:
    state = ctypes.create_string_buffer(256)
    return each("msgctl", [(world.msg_id, _STAT, state)], "who uses the host's queue")


def _queue_send(world: World) -> str:
    message = ctypes.create_string_buffer((1).to_bytes(8, "little") + b"in")
    call("msgsnd", world.msg_id, message, 2, _NOWAIT)
    return "a message stands in the host's queue"


def _queue_receive(world: World) -> str:
    message = ctypes.create_string_buffer(64)
    call("msgrcv", world.msg_id, message, 8, 0, _NOWAIT)
    return "a message was taken from the host's queue"


def _new(world: World) -> str:
    """Make each kind, and remove what could be made: of System V's objects, what is made outlives its maker."""

    def route(name: str, control: str, *arguments: int) -> str:
        made = call(name, *arguments)
        removal = (made, 0, 0, 0) if control == "semctl" else (made, 0, None)
        call(control, *removal)
        return f"{name} made one"

    return every(
        lambda: route("shmget", "shmctl", 0, _PAGE, 0o1600),
        lambda: route("semget", "semctl", 0, 1, 0o1600),
        lambda: route("msgget", "msgctl", 0, 0o1600),
    )


def _list(world: World) -> str:
    """Ask by position, as ipcs does: no identifier has to be known."""
    state = ctypes.create_string_buffer(256)
    return every(
        lambda: each("shmctl", [(at, _SHM_STAT_ANY, state) for at in range(64)], "a segment"),
        lambda: each("semctl", [(at, 0, _SEM_STAT_ANY, state) for at in range(64)], "a semaphore"),
        lambda: each("msgctl", [(at, _MSG_STAT_ANY, state) for at in range(64)], "a queue"),
    )


def _named_queue(world: World) -> str:
    queue = call("mq_open", world.mqueue, os.O_RDWR | os.O_NONBLOCK, 0, None)
    try:
        call("mq_timedsend", queue, b"in", 2, 0, None)
        call("mq_timedreceive", queue, ctypes.create_string_buffer(8192), 8192, None, None)
    finally:
        os.close(queue)
    return "a message passed through the host's queue"


def _new_named_queue(world: World) -> str:
    name = f"{world.mqueue}-new"
    os.close(call("mq_open", name, os.O_RDWR | os.O_CREAT, 0o600, None))
    call("mq_unlink", name)
    return "a queue that outlives its maker can be made"


def _unlink_queue(world: World) -> str:
    call("mq_unlink", f"{world.mqueue}-none")
    return "a queue that nobody made is gone"


def _queue_calls(world: World) -> str:
    return every(
        lambda: each("mq_timedsend", [(-1, b"in", 2, 0, None)], "sent"),
        lambda: each("mq_timedreceive", [(-1, ctypes.create_string_buffer(64), 64, None, None)], "received"),
        lambda: each("mq_notify", [(-1, None)], "will be told"),
        lambda: each("mq_getsetattr", [(-1, None, None)], "its state"),
    )


_QUEUE_CALLS = ("mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr")


def _folders(world: World) -> str:
    """Find those objects where a system shows them as files."""
    return every(
        lambda: f"queues: {do('/dev/mqueue', os.listdir, '/dev/mqueue')}",
        lambda: f"segments: {do('/dev/shm', os.listdir, '/dev/shm')}",
        lambda: f"{len(read(f'/dev/mqueue/{world.mqueue}', at='the queue'))} bytes",
        lambda: f"{len(read('/proc/sysvipc/shm', at='/proc/sysvipc'))} bytes",
    )


def _new_shared_file(world: World) -> str:
    path = "/dev/shm/spl-inside"
    descriptor = do("open", os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        do("write", os.write, descriptor, b"in")
    finally:
        os.close(descriptor)
        os.unlink(path)
    return "memory that outlives its maker was taken, by a name"


def _of_system_v(name: str, sentence: str, chain: Chain, step: str, escape: str, *more: str) -> Attempt:
    steps = (step, *more)
    # With a namespace of its own no object has that number: EINVAL is the kernel's word for it.
    walls = [same("syscalls", *steps), same("ipc", *steps, errno="EINVAL")]
    return Attempt(
        f"ipc.{name}",
        sentence,
        chain,
        control=calls_work,
        walls=walls,
        escape=escape,
        victims=["ipc"],
    )


ATTEMPTS = (
    _of_system_v(
        "segment_read",
        "attaches a segment of the host's by its number and reads it",
        _read_segment,
        "shmat",
        "what the host's programs share is read",
    ),
    _of_system_v(
        "segment_write",
        "attaches a segment of the host's by its number and writes to it",
        _write_segment,
        "shmat",
        "what the host's programs share is changed",
    ),
    _of_system_v(
        "segment_state",
        "asks who made a segment of the host's, and who uses it",
        _segment_state,
        "shmctl",
        "processes of the host are seen",
    ),
    _of_system_v(
        "semaphore",
        "reads a semaphore of the host's, and raises it",
        _semaphore,
        "semctl",
        "programs of the host go on, or wait, at its word",
    ),
    _of_system_v(
        "semaphore_operation",
        "raises a semaphore of the host's without a look at it, by both calls",
        _semaphore_operation,
        "semop",
        "programs of the host go on, or wait, at its word",
        "semtimedop",
    ),
    _of_system_v(
        "queue_state",
        "asks who last used a queue of the host's",
        _queue_state,
        "msgctl",
        "processes of the host are seen",
    ),
    _of_system_v(
        "queue_send",
        "puts a message into a queue of the host's",
        _queue_send,
        "msgsnd",
        "programs of the host read what it wrote",
    ),
    _of_system_v(
        "queue_receive",
        "takes a message from a queue of the host's",
        _queue_receive,
        "msgrcv",
        "what was meant for a program of the host is read, and lost to it",
    ),
    _of_system_v(
        "list",
        "asks for segments, semaphores and queues by their position",
        _list,
        "shmctl",
        "what the host's programs share is found",
        "semctl",
        "msgctl",
    ),
    Attempt(
        "ipc.new",
        "makes a segment, a semaphore and a queue",
        _new,
        control=calls_work,
        # With the filter away nothing else refuses them: what is made is in a namespace that ends with the process.
        walls=[same("syscalls", "shmget", "semget", "msgget")],
        escape="memory that no limit of a process counts is taken",
    ),
    Attempt(
        "ipc.named_queue",
        "passes a message through a POSIX queue of the host's, by its name",
        _named_queue,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at mq_open"), Wall("ipc", "ENOENT at mq_open")],
        escape="programs of the host read what it wrote",
        victims=["ipc"],
    ),
    Attempt(
        "ipc.new_named_queue",
        "makes a POSIX queue",
        _new_named_queue,
        control=calls_work,
        # Unlike System V's, a queue is a file too, though it stands in no folder: Landlock sees it made.
        walls=[Wall("syscalls", "EPERM at mq_open"), Wall("landlock", "EACCES at mq_open")],
        escape="memory that stays when it has ended is taken from the user's quota",
    ),
    Attempt(
        "ipc.unlink_queue",
        "removes a POSIX queue, by a name that there is not",
        _unlink_queue,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at mq_unlink"), Wall("kernel", "ENOENT at mq_unlink")],
        escape="queues of the host's programs can be removed",
        victims=["ipc"],
    ),
    Attempt(
        "ipc.queue_calls",
        "makes the calls on POSIX queues, of a descriptor that there is not",
        _queue_calls,
        control=calls_work,
        walls=[same("syscalls", *_QUEUE_CALLS, errno="ENOSYS"), same("kernel", *_QUEUE_CALLS, errno="EBADF")],
        escape="queues that were handed to it can be used",
    ),
    Attempt(
        "ipc.folders",
        "looks for queues and segments where a system shows them as files",
        _folders,
        control=calls_work,
        walls=[same("mounts", "/dev/mqueue", "/dev/shm", "the queue", "/proc/sysvipc", errno="ENOENT")],
        escape="what the host's programs share is found, and read",
        victims=["ipc"],
    ),
    Attempt(
        "ipc.new_shared_file",
        "makes a segment by a name, which is a file of memory",
        _new_shared_file,
        control=calls_work,
        walls=[Wall("mounts", "ENOENT at open"), Wall("landlock", "EACCES at open")],
        escape="the host's memory is filled by what outlives it",
    ),
)
