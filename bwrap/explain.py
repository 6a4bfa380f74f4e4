"""A profile as a security reviewer reads it: what a process under it can do and what it cannot, in sentences.

Every sentence is made from the resolved profile, its plan on this host and the tables that the daemon goes by itself;
a profile's own description says nothing here.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from bwrap import difference, floor, groups, layers, render, seccomp
from bwrap.host import Shape
from bwrap.lint import Severity, lint_here
from bwrap.mounts import Kind
from bwrap.profile import Limits
from bwrap.text import sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bwrap.lint import Remark
    from bwrap.plan import Plan
    from bwrap.profile import Profile

    Json = dict[str, Any]

_TASKS = ("clone", "clone3", "fork", "vfork")
_NAMESPACES = {
    "user": ("It is one user without rights in a user namespace", "It shares the host's user namespace"),
    "ipc": (
        "Message queues, semaphores and shared memory of the host are out of its reach (ipc namespace)",
        "It reaches the host's message queues, semaphores and shared memory",
    ),
    "uts": (
        "Of the host's and domain's names it has copies, and can change neither of the host's (uts namespace)",
        "It has the host's own names",
    ),
    "cgroup": (
        "The host's control groups are out of its sight (cgroup namespace)",
        "It sees the host's control groups",
    ),
}
_LIMITS = {
    "address_space": "bytes of addresses a process may map; more answers ENOMEM",
    "file_size": "bytes of the largest file it may write; more is SIGXFSZ or EFBIG",
    "processes": "processes and threads of its uid in its user namespace; one more answers EAGAIN",
    "open_files": "descriptors open at once; one more answers EMFILE",
    "cpu_time": "of processor time; then it is killed",
}


class Section(NamedTuple):
    """A part of the page: a title and its sentences; one that begins with two blanks belongs to the one before."""

    title: str
    lines: list[str]


def explained(profile: Profile, plan: Plan | None, worker: Profile, home: str, lacking: str = "") -> Json:
    """Give the page as a document: its sections, and the facts that stand in them as values.

    `worker` is what deviations are told from, `home` the instance's. Without a plan, `lacking` says what this host
    lacks for one, and what only a plan tells is left out.
    """
    remarks = lint_here(profile, home)
    deviations = difference.differences(worker, profile)
    sections = [
        Section("What this is", list(_about(profile, plan, remarks, lacking))),
        Section("What it can reach", list(_reach(profile, plan))),
        Section("What it can change", list(_change(profile))),
        Section("Whom it can see and signal", list(_others(profile, plan))),
        Section("Which system calls it can make", list(_calls(profile))),
        Section("Its limits", list(_limits(profile))),
        Section("The most memory it can take up", list(_memory(plan))),
        Section("The layers that hold this", list(_layers(plan, profile))),
        Section(f"Where it differs from '{worker.name}'", list(_deviations(profile, worker, deviations))),
        Section("Breaches, errors and warnings", list(_remarks(remarks))),
        Section("What it does not protect", list(_unprotected(profile, plan))),
    ]
    return {
        "object": "profile.explanation",
        "name": profile.name,
        "extends": list(reversed(profile.chain[:-1])),
        "digest": profile.digest,
        "architecture": seccomp.architecture(),
        "shape": None if plan is None else str(plan.host.shape),
        "above_floor": not any(each.severity is Severity.BREACH for each in remarks),
        "can_run": not any(each.severity is not Severity.WARNING for each in remarks),
        "worst_case_bytes": None if plan is None else plan.worst_case,
        "worst_case": []
        if plan is None
        else [{**term._asdict(), "total": term.total} for term in plan.worst_case_terms if term.total],
        "deviations": [each.wire() for each in deviations],
        "remarks": [each.wire() for each in remarks],
        "sections": [section._asdict() for section in sections],
    }


def _about(profile: Profile, plan: Plan | None, remarks: list[Remark], lacking: str) -> Iterator[str]:
    breaches = sum(each.severity is Severity.BREACH for each in remarks)
    errors = sum(each.severity is Severity.ERROR for each in remarks)
    if breaches:
        yield f"BELOW THE FLOOR, {_number(breaches, 'breach', 'breaches')}: nobody's work runs on this profile."
    else:
        yield "Above the floor: what is promised of every run is promised of one on this profile."
    if errors:
        yield f"NO RUN CAN START WITH IT: {_number(errors, 'error')}, see below."
    yield (
        f"It is laid over {' over '.join(map(repr, reversed(profile.chain[:-1])))}."
        if profile.chain[1:]
        else "It extends nothing and says everything itself."
    )
    yield f"Digest of its meaning: {profile.digest}."
    if plan is None:
        yield f"On this host it comes to nothing: {lacking}"
        return
    who = (
        "each process under an unprivileged uid of its own that nobody else has, and in a user namespace"
        if plan.host.shape is Shape.HOSTED
        else "each process as the daemon's own ordinary user, without any of its rights, in a user namespace"
    )
    yield f"Resolved on this host: the {plan.host.shape} shape, {who}; {plan.filter.arch}."
    yield f"Filter digest: {plan.filter.digest}."


def _reach(profile: Profile, plan: Plan | None) -> Iterator[str]:
    yield "It sees what is named here and nothing else; everything of the host is read-only."
    said = profile.filesystem
    for index, text in enumerate(said.read_only):
        where = difference.place(profile, ("filesystem", "read_only", index))
        what = (
            "the interpreter, its library, the shared objects they need, and env"
            if text == "@python"
            else text
        )
        yield f"  read: {what} ({where})"
    if not said.read_only:
        yield "  read: nothing"
    if plan is not None:
        shown = list(plan.find(Kind.READ_ONLY))
        runnable = [mount.target for mount in shown if _is_executable(mount.source)]
        if shown:
            places = ", ".join(each.target for each in shown)
            yield f"On this host that is {_number(len(shown), 'place')}: {places}."
        if plan.absent:
            yield f"Optional, and not there: {', '.join(plan.absent)}."
        yield (
            f"By mode {_listed(runnable)} can be executed. A worker can execute nothing: it gives that up "
            "for good before its run (Landlock). 'spl profile try' does not."
            if plan.host.landlock
            else f"By mode {_listed(runnable)} can be executed, and this kernel has no Landlock to forbid it."
        )
    for index, text in enumerate(said.empty):
        where = difference.place(profile, ("filesystem", "empty", index))
        what = "where the instance's home is" if text == "@home" else f"at {text}"
        yield f"An empty read-only folder stands {what} ({where})."
    if "@home" not in said.empty:
        yield "Nothing stands for the instance's home, which the floor asks for."
    for index, text in enumerate(said.sockets):
        where = difference.place(profile, ("filesystem", "sockets", index))
        yield f"It can connect to {'the worker socket of its daemon' if text == '@worker_socket' else text} ({where})."
    if not said.sockets:
        yield "It can connect to no socket."
    yield _network(profile)
    yield ("It has a /proc of its own process-id namespace." if said.proc == "own" else "It has no /proc.")


def _network(profile: Profile) -> str:
    rules = groups.rules(profile, seccomp.architecture())
    families = "no socket can be made"
    if "socket" in rules.allow:
        families = "sockets of every family can be made"
    elif condition := rules.when.get("socket"):
        families = f"a socket can be made where {render.condition_text(profile, 'socket', condition)}"
    if profile.namespaces.net:
        return f"Network: nothing but a loopback device of its own, with nobody else on it; {families}."
    return f"Network: THE HOST'S, with all its addresses and abstract sockets; {families}."


def _change(profile: Profile) -> Iterator[str]:
    yield "Nothing of the host: a profile has no word that makes it writable."
    for index, each in enumerate(profile.filesystem.tmpfs):
        where = difference.place(profile, ("filesystem", "tmpfs", index))
        files = os.sysconf("SC_PHYS_PAGES") // 2
        yield (
            f"It can write in {each.path}, {sized(each.size)} in memory, gone with the process ({where}). The size "
            f"bounds what files hold, not their number: up to {files} files, about 1K of kernel memory each."
        )
    if not profile.filesystem.tmpfs:
        yield "It has no file system in memory either: there is no place where it can make a file."
    yield "It can write to what it was given: standard output, standard error and the sockets above."


def _others(profile: Profile, plan: Plan | None) -> Iterator[str]:
    arch = seccomp.architecture()
    rules = groups.rules(profile, arch)
    if profile.namespaces.pid:
        yield "It is process 1 of a process-id namespace: no other process has a number it could name."
    else:
        yield "It shares the host's process ids: it may learn that other processes exist."
    through = sorted(
        call
        for name in ("other-process", "trace")
        for call in groups.calls_of(name, arch)
        if call in rules.allow or call in rules.when
    )
    if through:
        yield f"OF THE CALLS THAT TAKE ANOTHER PROCESS'S ID IT CAN MAKE: {', '.join(through)}."
    else:
        yield "It can touch none: no call that signals, traces, reads, schedules or limits another is allowed."
    for name, (own, shared) in _NAMESPACES.items():
        text = own if getattr(profile.namespaces, name) else f"{shared.upper()} ({name} namespace)"
        yield f"{text} ({difference.place(profile, ('namespaces', name))})."
        if name == "uts":
            # A new namespace begins with the names of the one it is made from (uts_namespaces(7)).
            tells = ["uname"] * ("uname" in rules.allow) + ["its /proc"] * (profile.filesystem.proc == "own")
            yield (
                f"  It reads them by {' and '.join(tells)}."
                if tells
                else "  It cannot ask for them: uname is refused, and it has no /proc."
            )
    tasks = [call for call in _TASKS if call in rules.allow or call in rules.when]
    if tasks:
        yield f"It can start others: {', '.join(tasks)}, at most {profile.limits.processes} at once."
    else:
        yield "It is one task for ever: it can start no process and no thread."
    if plan is not None and plan.host.shape is Shape.SAME_USER:
        yield "The other way round: processes of the daemon's user can read its memory."


def _calls(profile: Profile) -> Iterator[str]:
    arch = seccomp.architecture()
    rules = groups.rules(profile, arch)
    refused = f"{len(rules.refuse)} refused by name"
    yield f"{len(rules.allow)} allowed, {len(rules.when)} allowed for some arguments, {refused}, on {arch}."
    for reason, calls in render.by_group(rules.allow, arch):
        yield f"Allowed: {', '.join(calls)}."
        yield f"  {reason}"
    for call, condition in sorted(rules.when.items()):
        where = difference.place(profile, groups.origin(profile, call))
        yield (
            f"If {render.condition_text(profile, call, condition)}, else {errno.errorcode[condition.errno]} ({where})."
        )
    for code in sorted(set(rules.refuse.values())):
        calls_of_code = [call for call, answer in rules.refuse.items() if answer == code]
        for reason, calls in render.by_group(calls_of_code, arch):
            yield f"Refused with {errno.errorcode[code]}: {', '.join(calls)}."
            yield f"  {reason}"
    yield f"Any other call answers {errno.errorcode[rules.default_errno]}."
    yield "A call of another architecture of the same machine kills it."


def _limits(profile: Profile) -> Iterator[str]:
    for key in Limits.model_fields:
        value = difference.facts(profile)[f"limits.{key}"]
        yield f"{key} {value.value}: {_LIMITS[key]} ({value.place})."
    yield "No core dump, ever. Neither its time on the clock nor its load is bounded by a profile."


def _memory(plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield "It cannot be told without a plan on this host."
        return
    yield f"{_rounded(plan.worst_case)} for one worker, which is what admission reckons with:"
    for term in plan.worst_case_terms:
        if term.total:
            yield f"  {_rounded(term.total)} = {term.number} x {_rounded(term.each)}: {term.what}"


def _layers(plan: Plan | None, profile: Profile) -> Iterator[str]:
    if plan is None:
        yield "They cannot be told without a plan on this host."
        return
    kept: dict[str, list[str]] = {}
    for row in floor.FLOOR:
        kept.setdefault(row.layer, []).append(row.name)
    yield "Each is looked at from outside and tried from inside before a run gets its credential."
    claimed = layers.table(plan, plan.host.shape)
    for layer in claimed:
        yield f"{layer.name}: {layer.claim}."
        if layer.name in kept:
            yield f"  rows of the floor it keeps: {', '.join(kept[layer.name])}"
    names = {layer.name for layer in claimed}
    absent = layers.absent(plan)
    for layer in layers.every_layer():
        if layer.name not in names:
            why = (
                "this kernel has none"
                if layer.name in absent
                else "not of this shape"
                if plan.host.shape not in layer.shapes
                else f"'{profile.name}' does without"
            )
            yield f"Not claimed: {layer.name} ({why})."


def _deviations(profile: Profile, worker: Profile, found: list[difference.Difference]) -> Iterator[str]:
    if profile.name == worker.name:
        yield "It is that profile."
    elif not found:
        yield "In nothing: another name for the same."
    for each in found:
        before, after = (None if fact is None else fact.value for fact in (each.before, each.after))
        said = f"{after or 'not there'}, where it has {before or 'nothing'}"
        yield f"{each.direction.mark} {each.name}: {said} ({each.place})"


def _remarks(remarks: list[Remark]) -> Iterator[str]:
    if not remarks:
        yield "None."
    for each in remarks:
        where = f"{each.fault.file}:{each.fault.line}" if each.fault.line else each.fault.file
        yield f"{each.severity}: {each.fault.place}: {each.fault.reason} ({where})"


def _unprotected(profile: Profile, plan: Plan | None) -> Iterator[str]:
    yield "The kernel is shared with the host: a fault in a call that is allowed is outside what this can hold."
    yield "Time and load are not hidden, and caches and memory channels are shared."
    if "@worker_socket" in profile.filesystem.sockets:
        yield "What a run is given to read, and its own conversation, it may tell the model and put into tool calls."
    paths = [each for each in profile.filesystem.read_only if not each.startswith("@")]
    if paths:
        yield f"{', '.join(paths)} and all beneath can be read by whatever the model is led to do."
    if plan is None or plan.host.shape is Shape.SAME_USER:
        yield "In the same-user shape other processes of that user may read its memory, as they may the user's files."
    if plan is None or not plan.host.landlock:
        yield "Without Landlock (Linux 5.13) what is executable and shown can be executed."
    for name in ("net", "user", "ipc", "uts", "cgroup"):
        if not getattr(profile.namespaces, name):
            yield f"Nothing of the host's {name} namespace is held back from it."
    if profile.filesystem.tmpfs:
        yield "The number of files in memory is bounded by the machine alone, not by the profile."
    yield "Root of the host, and whoever can replace the daemon's code or the files that are shown."


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _number(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or f'{one}s'}"


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(paths) or "nothing"


def _rounded(number: int) -> str:
    """Give bytes in the largest unit of which there is one, to a tenth: `512M`, `1.2G`."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.1f}".removesuffix(".0") + unit
    return str(number)
