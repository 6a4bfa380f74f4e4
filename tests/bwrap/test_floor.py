"""The floor: each promise broken by the words that break it, whichever way they are said, and by nothing else."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bwrap import floor, groups, seccomp, sources
from bwrap.errors import LayerError, ProfileError
from bwrap.floor import FLOOR, Breach
from bwrap.groups import ARCHITECTURES
from bwrap.library import SHIPPED, Library
from bwrap.profile import Limits
from tests.bwrap.authored import marked, written

if TYPE_CHECKING:
    from bwrap.profile import Profile

ROWS = {row.name: row for row in FLOOR}
# As the file says it, not as the code under test expands it.
REFUSED = tomllib.loads((SHIPPED / "syscalls" / "refused.toml").read_text())
NEVER = {f"@{name}": [*said["calls"], *said.get("x86_64", [])] for name, said in REFUSED.items()}


INHERITED = {row.call for row in Library().load("worker").syscalls.when}


def row(call: str, argument: int, said: str) -> str:
    return f'{{ call = "{call}", argument = {argument}, {said} }}'


def removal(call: str) -> str:
    return f'"!{call}", ' if call in INHERITED else ""


def when(call: str, argument: int, said: str) -> str:
    """Give a condition that replaces the inherited one."""
    return f"[syscalls]\nwhen = [{removal(call)}{row(call, argument, said)}]"


def never(group: str) -> dict[str, tuple[str, str]]:
    """Give every way to let a call of a group through."""
    call = NEVER[group][0]
    return {
        "by name": (f'[syscalls]\nallow = ["{call}"]', f'"{call}"'),
        "by the last name": (f'[syscalls]\nallow = ["{NEVER[group][-1]}"]', f'"{NEVER[group][-1]}"'),
        "by group": (f'[syscalls]\nallow = ["{group}"]', f'"{group}"'),
        "without a refusal": (f'[syscalls]\nrefuse = ["!{group}"]\nallow = ["{call}"]', f'"{call}"'),
        "on a condition": (
            f'[[syscalls.when]]\ncall = "{call}"\nargument = 0\nequals = [0]', "[[syscalls.when]]"
        ),
        "on a bit": (f'[[syscalls.when]]\ncall = "{call}"\nargument = 5\nhas = 1', "[[syscalls.when]]"),
    }  # fmt: skip


def only(call: str, argument: int, value: str, *others: str) -> dict[str, tuple[str, str]]:
    """Give every way to let a call through for more than some values of an argument, `value` one of them."""
    other = (argument + 1) % 3
    return {
        "by name": (f'[syscalls]\nallow = ["{call}"]', f'"{call}"'),
        "without a condition": (
            f'[syscalls]\nwhen = [{removal(call)}]\nallow = ["{call}"]', f'"{call}"'
        ),
        "on another argument": (when(call, other, f"equals = [{value}]"), row(call, other, f"equals = [{value}]")),
        "on a bit": (when(call, argument, "has = 1"), "1"),
        **{
            f"for {each} as well": (
                f'[[syscalls.when]]\ncall = "{call}"\nargument = {argument}\nequals = [{each}]', each
            )
            for each in others
        },
        **{f"for the bits of {each}": (when(call, argument, f"has = {each}"), each) for each in others if each != "0"},
    }  # fmt: skip


def calls(*names: str) -> dict[str, tuple[str, str]]:
    """Give every way to let a call through that no group to allow has."""
    return {
        f"{name} {how}": case
        for name in names
        for how, case in {
            "by name": (f'[syscalls]\nallow = ["{name}"]', f'"{name}"'),
            "on a condition": (
                f'[[syscalls.when]]\ncall = "{name}"\nargument = 1\nequals = [7]', "[[syscalls.when]]"
            ),
        }.items()
    }  # fmt: skip


def shows(path: str) -> tuple[str, str]:
    return f'[filesystem]\nread_only = ["{path}"]', f'"{path}"'


def limit(key: str, *said: str) -> dict[str, tuple[str, str]]:
    return {each: (f"[limits]\n{key} = {each}", each) for each in said}


# For each row of the table, what breaks it and the words that are marked.
RED: dict[str, dict[str, tuple[str, str]]] = {
    **{
        f"{name} namespace": {"off": (f"[namespaces]\n{name} = false", "false")}
        for name in ("user", "net", "ipc", "uts")
    },
    "home": {
        "not hidden": ('[filesystem]\nempty = ["!@home"]', '["!@home"]'),
        "shown": ('[filesystem]\nread_only = ["@home"]', '"@home"'),
        "writable": ('[[filesystem.tmpfs]]\npath = "@home"\nsize = "1M"', '"@home"'),
    },
    "host folders": {
        path: shows(path)
        for path in (
            "/", "//", "?/", "/proc", "//proc", "/proc/", "?/proc", "?//proc//", "/proc/self", "/proc/1/root", "/sys",
            "/sys/fs/cgroup", "/dev", "/dev/shm", "/dev/null", "/run", "/run/user/1000/bus", "/var/run", "/var",
        "/var/",
            "/var/run/docker.sock", "/var//run",
        )
    },
    "proc": {"of the host": ('[filesystem]\nproc = "own"', '"own"')},
    "sockets": {
        path: (f'[filesystem]\nsockets = ["{path}"]', f'"{path}"')
        for path in ("/run/dbus/system_bus_socket", "/tmp/.X11-unix/X0", "@home", "@scratch")
    },
    **{group: never(group) for group in NEVER},
    "socket": only(
        "socket", 0, '"AF_UNIX"', '"AF_INET"', '"AF_INET6"', '"AF_NETLINK"', '"AF_PACKET"', '"AF_VSOCK"', "2", "0",
    ),
    "socketpair": only("socketpair", 0, '"AF_UNIX"', '"AF_INET"', "30"),
    "prlimit64": only("prlimit64", 0, "0", "1", "0xffffffff"),
    "prctl": only(
        "prctl", 0, '"PR_GET_NAME"',
        '"PR_SET_PDEATHSIG"', '"PR_SET_SECCOMP"', '"PR_SET_MM"', '"PR_CAP_AMBIENT"', '"PR_SCHED_CORE"',
        '"PR_SET_PTRACER"', '"PR_FUTEX_HASH"', "1", "22", "78", "99",
    ),
    "fcntl": only(
        "fcntl", 1, '"F_GETFD"',
        '"F_SETOWN"', '"F_SETSIG"', '"F_SETOWN_EX"', '"F_SETLEASE"', '"F_GETLK"', '"F_SETLK"', '"F_SETLKW"',
        '"F_OFD_SETLK"', '"F_OFD_SETLKW"', '"F_NOTIFY"', '"F_SETPIPE_SZ"', "8", "0x400",
    ),
    "ioctl": only(
        "ioctl", 1, '"TCGETS"',
        '"TIOCSTI"', '"TIOCLINUX"', '"TIOCCONS"', '"TIOCSPGRP"', '"FIOSETOWN"', '"SIOCSPGRP"', "0x5412", "0x8901",
        "0x5402",
    ),
    "sendto": only("sendto", 3, "0", '"MSG_OOB"', '"MSG_ZEROCOPY"', "0x41", "0x2000", "0x20000000"),
    "recvfrom": only("recvfrom", 3, "0", '"MSG_OOB"', "3", "0x2000", "0x40000000"),
    "getsockopt": only("getsockopt", 2, '"SO_ERROR"', '"SO_PEERPIDFD"', "77", "26"),
    "landlock_add_rule": only(
        "landlock_add_rule", 1, '"LANDLOCK_RULE_PATH_BENEATH"', '"LANDLOCK_RULE_NET_PORT"', "2"
    ),
    "futex": only(
        "futex", 1, '"FUTEX_WAKE_PRIVATE"',
        "0", '"FUTEX_WAKE"', '"FUTEX_TRYLOCK_PI"', '"FUTEX_TRYLOCK_PI_PRIVATE"', '"FUTEX_WAIT_BITSET"',
        "12", "140", "393",
    ),
    **{
        call: only(call, 0, '"CLOCK_MONOTONIC"', "8", "9", "11", "0xfffffff6", "0xffffff02")
        for call in ("clock_gettime", "clock_getres")
    },
    "clock_nanosleep": only("clock_nanosleep", 0, '"CLOCK_MONOTONIC"', "2", "0xfffffff6"),
    "calls": calls(
        # Memory, locks and quotas that a list of what is refused would miss.
        "bind", "listen", "accept4", "recvmsg", "sendmsg", "vmsplice", "splice", "pipe2", "io_setup", "timer_create",
        "inotify_init1", "inotify_init", "fanotify_init", "flock", "epoll_ctl", "fsync", "mknodat", "setxattr",
        "membarrier", "preadv2", "fadvise64", "set_robust_list",
        # Calls that no libseccomp of this machine may know.
        "set_mempolicy", "mlock2", "listns", "rseq_slice_yield",
    ),
    "tmpfs": {
        "one": ('[[filesystem.tmpfs]]\npath = "/a"\nsize = "257M"', '"257M"'),
        "together": (
            '[filesystem]\ntmpfs = [{ path = "/a", size = "256M" }, { path = "/b", size = 1 }]', "1"
        ),
    },
    "address_space": limit("address_space", '"5G"', "4294967297"),
    "file_size": limit("file_size", '"2G"', "1073741825"),
    "processes": limit("processes", "65"),
    "open_files": limit("open_files", "1025"),
    "cpu_time": limit("cpu_time", '"2h"', "3601"),
}  # fmt: skip


def breached(profile: Profile, name: str) -> list[Breach]:
    return [each for each in floor.breaches(profile) if each.row.name == name]


# --- the table ---


def test_every_row_has_a_name_of_its_own_and_an_example_that_breaks_it() -> None:
    assert len(ROWS) == len(FLOOR)
    assert {name for name, cases in RED.items() if cases} == set(ROWS)


def test_every_limit_that_a_profile_says_has_a_row() -> None:
    assert set(floor.MOST) == set(Limits.model_fields)
    assert set(floor.MOST) <= set(ROWS)


@pytest.mark.claim("I2", "I3", "I4", "I5", "I9", "I10")
@pytest.mark.parametrize("name", ROWS)
def test_a_profile_that_breaks_a_row_is_refused_by_its_name_at_the_word_that_breaks_it(
    tmp_path: Path, name: str
) -> None:
    for case, (text, word) in RED[name].items():
        found = breached(written(tmp_path, text), name)

        assert found, case
        fault = found[0].fault
        assert (fault.file, marked(fault)) == (f"{tmp_path}/own.toml", word), case
        lines = ["", 'extends = "worker"', *text.split("\n")]
        assert fault.line is not None
        assert fault.column is not None
        assert lines[fault.line][fault.column - 1 :].startswith(word), case
        assert str(fault).startswith(f"profile {tmp_path}/own.toml:{fault.line}:{fault.column}: "), case
        assert str(fault).endswith(f", and the floor says: {ROWS[name].sentence}"), case
        refusal = found[0].refusal()
        assert (refusal.layer, refusal.expected) == (ROWS[name].layer, ROWS[name].sentence), case
        assert refusal.observed.startswith(f"{tmp_path}/own.toml:{fault.line}: {fault.place}: "), case


def test_the_refusal_of_a_start_is_the_first_breach_in_the_order_of_the_table(tmp_path: Path) -> None:
    own = written(tmp_path, "[limits]\ncpu_time = 9999\n[namespaces]\nnet = false\nuser = false")

    with pytest.raises(LayerError) as caught:
        floor.require(own)

    assert [each.row.name for each in floor.breaches(own)] == ["user namespace", "net namespace", "cpu_time"]
    assert caught.value.layer == "user_namespace"
    assert "\n" not in str(caught.value)


def test_a_word_is_named_once_for_both_architectures_with_all_that_it_lets_through(tmp_path: Path) -> None:
    (breach,) = floor.breaches(written(tmp_path, '[syscalls]\nallow = ["@new-task"]'))

    assert breach.said == "it lets clone, fork, vfork through"


@pytest.mark.parametrize("call", ["fork", "getpgrp"])
def test_a_call_of_one_architecture_breaks_the_floor_on_every_machine(tmp_path: Path, call: str) -> None:
    assert call not in seccomp.names("aarch64")
    assert floor.breaches(written(tmp_path, f'[syscalls]\nallow = ["{call}"]'))


def test_what_a_parent_says_is_the_breach_of_all_who_extend_it_where_it_was_said(tmp_path: Path) -> None:
    written(tmp_path, '[syscalls]\nallow = ["ptrace"]', name="parent")
    (breach,) = floor.breaches(written(tmp_path, "", extends="parent"))

    assert (breach.fault.file, breach.fault.line) == (f"{tmp_path}/parent.toml", 3)
    assert floor.breaches(written(tmp_path, '[syscalls]\nallow = ["!ptrace"]', extends="parent")) == []


# --- who stands on it ---


@pytest.mark.parametrize("name", ["worker", "strict"])
def test_a_profile_for_work_is_shipped_without_a_breach(name: str) -> None:
    floor.require(Library().load(name))


def test_base_lacks_what_it_leaves_to_those_who_extend_it() -> None:
    (breach,) = floor.breaches(Library().load("base"))

    assert breach.row.name == "home"
    assert breach.said == "'@home' is not in it: a profile of your own adds empty = [\"@home\"]"
    assert breach.fault.file.endswith("profiles/base.toml")


TWEAKS = {
    "less memory": '[limits]\naddress_space = "64M"',
    "the most of everything": (
        '[limits]\naddress_space = "4G"\nfile_size = "1G"\nprocesses = 64\nopen_files = 1024\ncpu_time = "1h"'
    ),
    "one more harmless call": '[syscalls]\nallow = ["uname"]',
    "every group to allow": '[syscalls]\nallow = ["@harmless", "@write-files", "@threads"]',
    "an allowed call on a condition": '[[syscalls.when]]\ncall = "read"\nargument = 0\nequals = [0, 3]',
    "the clocks it may wait for": '[[syscalls.when]]\ncall = "clock_nanosleep"\nargument = 0\nequals = [0, 1, 7]',
    "the clocks it may read": (
        '[[syscalls.when]]\ncall = "clock_gettime"\nargument = 0\nequals = ["CLOCK_THREAD_CPUTIME_ID", 4, 5, 6]'
    ),
    "what may be said with a message": when("sendto", 3, 'equals = ["MSG_DONTWAIT", "MSG_NOSIGNAL"]'),
    "fewer calls": '[syscalls]\nallow = ["!@unix-client", "!mmap"]',
    "nothing refused by name": "[syscalls]\nrefuse = [" + ", ".join(f'"!@{name}"' for name in REFUSED) + "]",
    "no condition": '[syscalls]\nwhen = ["!socket", "!ioctl", "!prctl", "!prlimit64"]',
    "another condition": when("ioctl", 1, "equals = [0x5401]"),
    "the worker's socket family by its number": when("socket", 0, "equals = [1]"),
    "a file": '[filesystem]\nread_only = ["/etc/hostname", "?/srv", "/var/lib/x", "/procs", "/devices"]',
    "a pid namespace with its own /proc": '[namespaces]\npid = true\n[filesystem]\nproc = "own"',
    "memory to write to": '[filesystem]\ntmpfs = [{ path = "/a", size = "128M" }, { path = "/b", size = "128M" }]',
    "no socket": '[filesystem]\nsockets = ["!@worker_socket"]',
    "the host's control groups": "[namespaces]\ncgroup = false",
}


@pytest.mark.parametrize("case", TWEAKS)
def test_a_profile_may_tighten_and_tweak(tmp_path: Path, case: str) -> None:
    assert floor.breaches(written(tmp_path, TWEAKS[case])) == []


@pytest.mark.parametrize("target", ["/sys/kernel", "/dev/shm", "/proc/self", "/run"])
def test_a_link_to_a_folder_of_the_host_is_refused_where_it_leads(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)

    with pytest.raises(LayerError) as caught:
        sources.require(str(tmp_path / "link"), "/home/of/nobody")

    assert caught.value.layer == "mounts"


# --- what a limit says ---


@pytest.mark.claim("I5")
@pytest.mark.parametrize(
    ("text", "said", "sentence"),
    [
        (
            '[limits]\naddress_space = "100G"',
            "'100G' is more than 4G",
            "its memory is bounded: at most 4G",
        ),
        (
            "[limits]\nprocesses = 65",
            "65 is more than 64",
            "the number of its processes is bounded: at most 64",
        ),
        ('[limits]\ncpu_time = "2h"', "'2h' is more than 1h", "its processor time is bounded: at most 1h"),
        (
            '[[filesystem.tmpfs]]\npath = "/a"\nsize = "300M"',
            "together they hold 300M, more than 256M",
            "what the files of its file systems in memory hold is bounded: together at most 256M",
        ),
    ],
)
def test_a_size_is_said_as_the_file_writes_it_beside_the_most_it_may_be(
    tmp_path: Path, text: str, said: str, sentence: str
) -> None:
    (breach,) = floor.breaches(written(tmp_path, text))

    assert (breach.said, breach.row.sentence) == (said, sentence)


def test_the_most_of_a_limit_is_the_number_that_its_text_stands_for(tmp_path: Path) -> None:
    for name, (number, text) in floor.MOST.items():
        value = text if text.isdigit() else f'"{text}"'
        limits = written(tmp_path, f"[limits]\n{name} = {value}").limits

        assert getattr(limits, name) == number


# --- which calls may be allowed ---


def test_nothing_may_be_allowed_of_any_group_that_is_refused() -> None:
    assert set(floor.NEVER) == set(REFUSED)


@pytest.mark.claim("I4")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_call_that_nobody_looked_at_may_not_be_allowed(tmp_path: Path, arch: str) -> None:
    looked_at = groups.allowable() | floor.ONLY.keys()
    others = sorted(seccomp.names(arch) - looked_at)
    assert len(others) > 200

    for at in range(0, len(others), 100):
        some = others[at : at + 100]
        listed = ", ".join(f'"{call}"' for call in some)
        found = floor.breaches(written(tmp_path, f"[syscalls]\nallow = [{listed}]"))

        assert {marked(each.fault).strip('"') for each in found} == set(some)
        assert {each.row.layer for each in found} == {"syscalls"}


def test_no_call_that_may_be_allowed_for_some_values_only_is_in_a_group() -> None:
    assert groups.allowable().isdisjoint(floor.ONLY)


def test_a_value_that_breaks_the_floor_is_named_and_marked_and_so_is_what_is_wrong_with_the_condition(
    tmp_path: Path,
) -> None:
    said = {
        when("fcntl", 1, 'equals = ["F_GETFD", "F_NOTIFY"]'): "it lets 'fcntl' through for F_NOTIFY",
        when("prctl", 0, "equals = [78]"): "it lets 'prctl' through for 78",
        when("ioctl", 1, 'has = "TCGETS"'): "it lets 'ioctl' through for whatever has the bits of TCGETS",
        when("ioctl", 0, "equals = [1]"): "it lets 'ioctl' through whatever argument 1 is",
        '[syscalls]\nallow = ["ioctl"]': "it lets 'ioctl' through whatever its arguments are",
    }
    for text, words in said.items():
        (breach,) = floor.breaches(written(tmp_path, text))

        assert breach.said == words


# --- any profile ---

LISTED = sorted({call for calls in NEVER.values() for call in calls})
# What may be allowed, as the files say it: a call of a group whatever its arguments, or for these values of one.
GROUPS = tomllib.loads((SHIPPED / "syscalls" / "allowed.toml").read_text()).values()
ALLOWABLE = {call for said in GROUPS for key in ("calls", "x86_64") for call in said.get(key, [])}
HELD = {
    "socket": (0, {1}),
    "socketpair": (0, {1}),
    "prlimit64": (0, {0}),
    "prctl": (0, {2, 3, 7, 15, 16, 21, 23, 27, 30, 37, 39, 42, 0x53564D41}),
    "fcntl": (1, {0, 1, 2, 3, 4, 1030, 1034}),
    "ioctl": (1, {0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451}),
    "sendto": (3, {0, 0x40, 0x4000}),
    "recvfrom": (3, {0, 2, 0x40, 0x100}),
    "getsockopt": (2, {3, 4, 17}),
    "landlock_add_rule": (1, {1}),
    "futex": (1, {128, 129, 137}),
    "clock_gettime": (0, {0, 1, 2, 3, 4, 5, 6, 7}),
    "clock_getres": (0, {0, 1, 2, 3, 4, 5, 6, 7}),
    "clock_nanosleep": (0, {0, 1, 7}),
}
TOLD = sorted(
    {*range(100), *groups.constants().values(), 0x5402, 0xFFFFFFFF}
    | {1 << bit for bit in range(32)}
    | {value ^ 1 << bit for _, values in HELD.values() for value in values for bit in range(32)}
)

call_names = st.one_of(
    st.sampled_from(LISTED),
    st.sampled_from(list(HELD)),
    st.sampled_from(["listen", "connect", "mmap", "pause", "flock", "pipe2", "uname"]),
)
group_names = st.sampled_from([f"@{name}" for name in groups.groups()])
constants = st.one_of(
    st.sampled_from([f'"{name}"' for name in groups.constants()]),
    st.integers(0, 3).map(str),
    st.just("0xffffffff"),
)
words = st.one_of(call_names, group_names)
entries = st.one_of(words, words, words.map(lambda word: f"!{word}")).map(lambda word: f'"{word}"')
refusals = st.one_of(
    group_names.map(lambda name: f'"!{name}"'),
    st.tuples(group_names, st.sampled_from(["EPERM", "EACCES"])).map(
        lambda both: f'{{ group = "{both[0]}", errno = "{both[1]}" }}'
    ),
)
tests = st.one_of(
    constants.map(lambda value: f"has = {value}"),
    st.lists(constants, min_size=1, max_size=3).map(lambda values: f"equals = [{', '.join(values)}]"),
)
conditions = st.one_of(
    call_names.map(lambda call: f'"!{call}"'),
    st.tuples(call_names, st.integers(0, 2), tests).map(
        lambda all_of: f'{{ call = "{all_of[0]}", argument = {all_of[1]}, {all_of[2]} }}'
    ),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    lists = {"allow": entries, "refuse": refusals, "when": conditions}
    keys = draw(st.lists(st.sampled_from(list(lists)), min_size=1, max_size=2, unique=True))
    said = [(key, draw(st.lists(lists[key], min_size=1, max_size=2))) for key in keys]
    return "[syscalls]\n" + "\n".join(f"{key} = [{', '.join(listed)}]" for key, listed in said)


def harmful(profile: Profile) -> set[str]:
    """Give the rows that a profile's rules break, read off the meaning of the rules themselves."""
    found = set()
    for arch in ARCHITECTURES:
        rules = groups.rules(profile, arch)

        def lets_through(call: str, argument: int = 0, value: int = 0, rules: seccomp.Rules = rules) -> bool:
            arguments = tuple(value if at == argument else 0 for at in range(6))
            return seccomp.meaning(rules, call, arguments) == seccomp.ALLOW

        through = {*rules.allow, *rules.when}
        found |= {group for group, listed in NEVER.items() if through.intersection(listed)}
        if through - ALLOWABLE - HELD.keys() - set(LISTED):
            found.add("calls")
        for call, (argument, values) in HELD.items():
            if call in through and any(
                lets_through(call, argument, value) for value in TOLD if value not in values
            ):
                found.add(call)
    return found


@pytest.mark.claim("I4", "I10")
@settings(max_examples=120, deadline=None)
@given(st.lists(texts(), min_size=1, max_size=8), st.sampled_from(["base", "worker", "strict"]))
def test_no_profile_of_any_words_lets_a_call_through_that_the_floor_does_not_name(
    said: list[str], extends: str
) -> None:
    profile = Library().load(extends)
    with tempfile.TemporaryDirectory() as folder:
        for at, text in enumerate(said):
            try:
                profile = written(Path(folder), text, extends=profile.name, name=f"p{at}")
            except ProfileError:
                continue  # it says what cannot be said: the next extends the last that could
    named = {each.row.name for each in floor.breaches(profile)}
    event(f"{len(profile.chain)} deep, {'harmful' if harmful(profile) else 'harmless'}")

    assert harmful(profile) <= named
    assert named & {*NEVER, "calls"} <= harmful(profile)
