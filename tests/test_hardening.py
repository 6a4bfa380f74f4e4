from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from spl.hardening import secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
SECONDS = 30

# What both sides become before anything else: user NOBODY (a file of root's is out of reach then), or a user 0 with
# no capability left. A program that changed its ids is undumpable by that alone (prctl(2)), so it says again that it
# is dumpable: without `protect` the other side must get in.
BECOME = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def become(whom):
    if whom == "nobody":
        os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
    elif whom == "capless":
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
    assert libc.prctl(4, 1, 0, 0, 0) == 0
"""

TARGET = (
    BECOME
    + """
import resource
from spl.hardening import protect
become(sys.argv[1])
if sys.argv[2] == "protected":
    protect()
print(resource.getrlimit(resource.RLIMIT_CORE)[0], libc.prctl(3, 0, 0, 0, 0), flush=True)
sys.stdin.read()
"""
)

# Gives for each attempt the name of its errno, or null where it succeeded.
INTRUDER = (
    BECOME
    + """
import errno, json
become(sys.argv[1])
pid = int(sys.argv[2])
def attempt(tried):
    try:
        tried()
    except OSError as error:
        return errno.errorcode[error.errno]
def read(name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(1)
def trace():
    PTRACE_ATTACH, PTRACE_DETACH = 16, 17
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0x40000000)
    libc.ptrace(PTRACE_DETACH, pid, 0, 0)
print(json.dumps({
    "environ": attempt(lambda: read("environ")),
    "maps": attempt(lambda: read("maps")),
    "mem": attempt(lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))),
    "exe": attempt(lambda: os.readlink(f"/proc/{pid}/exe")),
    "cwd": attempt(lambda: os.readlink(f"/proc/{pid}/cwd")),
    "fd": attempt(lambda: os.readlink(f"/proc/{pid}/fd/0")),
    "trace": attempt(trace),
}))
"""
)

WHOM = ["nobody", "capless"] if os.geteuid() == 0 else ["itself"]


@contextmanager
def running(program: str, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python's until the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """Give the next line a process prints."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], SECONDS)[0]
    return process.stdout.readline().strip()


def intrude(whom: str, state: str) -> dict[str, str | None]:
    """Have another process of the same user try to get at one that is protected, or is not."""
    with running(TARGET, whom, state) as target:
        core, dumpable = line(target).split()
        if state == "protected":
            assert (core in ("0", "1"), dumpable) == (True, "0")
        with running(INTRUDER, whom, str(target.pid)) as intruder:
            found: dict[str, str | None] = json.loads(line(intruder))
            return found


@pytest.mark.claim("M2")
@pytest.mark.parametrize("whom", WHOM)
def test_another_process_of_the_same_user_gets_at_nothing_of_a_protected_one(whom: str) -> None:
    attempts = intrude(whom, "protected")
    assert set(attempts.values()) <= {"EACCES", "EPERM"}, attempts


# Under a filter that answers PR_SET_DUMPABLE, and no other call, with an errno; 0 is a success that did nothing.
REFUSED = """
import sys
import pyseccomp
from spl.errors import HostUnsupported
from spl.hardening import protect
refusing = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
refusing.add_rule(pyseccomp.ERRNO(int(sys.argv[1])), "prctl", pyseccomp.Arg(0, pyseccomp.EQ, 4))
refusing.load()
try:
    protect()
except HostUnsupported as error:
    print(error.message, flush=True)
"""


@pytest.mark.claim("M2")
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EPERM, "the kernel refuses prctl option 4: Operation not permitted"),
        (0, "the kernel keeps this process dumpable"),
    ],
    ids=["refused", "ignored"],
)
def test_a_kernel_that_leaves_the_process_dumpable_is_not_served_on(number: int, said: str) -> None:
    with running(REFUSED, str(number)) as process:
        assert line(process) == said


@pytest.mark.parametrize("whom", WHOM)
def test_without_protection_it_would_get_in(whom: str) -> None:
    attempts = intrude(whom, "open")
    # Tracing and memory may be closed to it anyway, by the host's own policy (Yama).
    assert {name for name, error in attempts.items() if error is None} >= {
        "environ",
        "maps",
        "exe",
        "cwd",
        "fd",
    }


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("SPL_TOKEN", True),
        ("API_KEY", True),
        ("ANTHROPIC_API_KEY", True),
        ("OPENAI_API_KEY_2", True),
        ("ANTHROPIC_AUTH_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("STRIPE_SECRET_KEY", True),
        ("SPL_HOME", False),
        ("SPL_TOKENS", False),
        ("PATH", False),
        ("KEYBOARD", False),
        ("API_KEYS_FILE", False),
        ("MONKEY", False),
    ],
)
def test_a_variable_that_holds_a_credential_is_known_by_its_name(name: str, secret: bool) -> None:
    assert secrets_in({name: "x", "LANG": "C"}) == ([name] if secret else [])


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://ana:word@proxy:3128", True),
        ("postgres://:word@localhost/db?x=1", True),
        ("http://ana:wo@rd@proxy", True),
        ("http://ana@proxy:3128", False),
        ("http://proxy:3128/a@b", False),
        ("https://host/a:b@c", False),
    ],
)
def test_and_so_is_one_with_a_password_in_an_address(value: str, secret: bool) -> None:
    assert secrets_in({"HTTPS_PROXY": value, "LANG": "C"}) == (["HTTPS_PROXY"] if secret else [])


DROP = """
import os, sys
from spl.hardening import drop_secrets
drop_secrets()
print(os.getpid(), sys.argv[1:], os.environ.get("PLAIN"), flush=True)
sys.stdin.read()
"""


@pytest.mark.claim("M2")
def test_a_program_starts_anew_without_the_credentials_in_its_environment() -> None:
    secrets = {"OPENAI_API_KEY": "sk-the-secret", "SPL_TOKEN": "spl-the-secret"}
    with running(DROP, "an argument", "", PLAIN="kept", **secrets) as process:
        # The same process, the same arguments: only the environment is another.
        assert line(process) == f"{process.pid} ['an argument', ''] kept"
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            block = file.read()
    assert b"the-secret" not in block
    assert b"OPENAI_API_KEY" not in block
    assert b"PLAIN=kept" in block


def test_a_program_without_credentials_goes_on_as_it_is() -> None:
    program = "import os\nos.environ['SEEN'] = '1'\n" + DROP + "print(os.environ.get('SEEN'))"
    clean = {name: value for name, value in os.environ.items() if name not in secrets_in(os.environ)}
    done = subprocess.run(
        [sys.executable, "-c", program], input="", capture_output=True, text=True, env=clean, timeout=SECONDS
    )
    assert done.stdout.splitlines()[-1] == "1"


STANDARD = """
import subprocess
from spl.hardening import keep_standard
keep_standard()
with open("/proc/self/status"):
    subprocess.run(["readlink", "/proc/self/fd/0", "/proc/self/fd/2"], check=True)
"""


def test_what_was_started_without_standard_streams_gives_none_of_its_own_to_a_child_for_them() -> None:
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, STANDARD]
    done = subprocess.run(closed, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "/dev/null\n/dev/null\n"


ORPHAN = """
import ctypes, os
from spl.hardening import protect
protect()
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        os.read(0, 1)
        os._exit(7)
    os._exit(0)
os.waitpid(child, 0)
print("ready", flush=True)
pid, status = os.waitpid(-1, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
"""


def test_what_a_child_leaves_behind_comes_to_the_protected_process() -> None:
    with running(ORPHAN) as process:
        assert line(process) == "ready"
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
        assert line(process) == "7"


HANDED = """
import os, subprocess, sys
from spl.hardening import protect
protect()
# Everything that may go on to a child does: nothing is closed here but by the mark on the descriptor itself.
child = [sys.executable, "-c", "import os; print(*sorted(set(os.listdir('/proc/self/fd')) - {'3'}))"]
print(subprocess.run(child, close_fds=False, capture_output=True, text=True).stdout.strip(), flush=True)
with open(sys.argv[1], "w") as file:
    print(oct(os.fstat(file.fileno()).st_mode & 0o777), flush=True)
"""


def test_what_a_protected_process_was_started_with_goes_on_to_no_child_and_what_it_makes_is_its_own(
    tmp_path: Path,
) -> None:
    prefix = ["sh", "-c", f'umask 000; exec "$@" 7>{tmp_path}/given', "sh"]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", HANDED, str(tmp_path / "made")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.stdout.splitlines() == ["0 1 2", "0o600"], done.stderr
