"""The daemon as a service of a systemd that runs: installed and used by the commands of docs/service.md."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from escape.instance import VERIFY_GOAL
from tests.docs.blocks import read
from tests.end_to_end import scripts
from tests.inference.test_endpoint import CERTIFICATE
from tests.systemd.machine import SECONDS, Machine, booted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escape.installation import Installation

UNIT = "spl-serve.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/test.conf"
SCRIPT = "/etc/spl-endless.json"
MODEL = """\
import json, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "Done."}
        said = {"object": "chat.completion", "model": "some", "usage": {"prompt_tokens": 1, "completion_tokens": 1},
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain("/etc/model.pem")
server.socket = tls.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""A model that has nothing to do, for a server of its own."""
CGROUP = f"/sys/fs/cgroup/system.slice/{UNIT}"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def machine(world_readable: Installation) -> Iterator[Machine]:
    """Give a machine with the units installed and no daemon of ours running."""
    with booted(world_readable) as machine:
        machine.write(SCRIPT, json.dumps({"replies": scripts.endless()}))
        yield machine


def block(part: str) -> str:
    """Give the one block of the page that needs systemd and has this in it."""
    (found,) = (each.text for each in read("docs/service.md").blocks if each.needs and part in each.text)
    return found


@dataclass
class Service:
    """The daemon as a service of the machine's; whoever it runs as is its operator."""

    machine: Machine
    user: str = "root"
    home: str = "/var/lib/spl"
    environ: tuple[str, ...] = ()

    def sh(self, script: str) -> str:
        """Run a script as root, or as the user whose service it is."""
        become = [] if self.user in ("root", "spl") else self._become()
        return self.machine.run(*become, "sh", "-euc", script).stdout

    def spl(self, *arguments: str) -> Json:
        """Run a command as its operator; gives what it printed."""
        done = self.machine.run(*self._become(), "spl", *arguments, "--home", self.home, "-o", "json")
        answer: Json = json.loads(done.stdout)
        return answer

    def shows(self, name: str) -> str:
        """Give a property of the unit."""
        return self.machine.run("systemctl", "show", "--value", "-p", name, UNIT).stdout.strip()

    def configure(self, **settings: object) -> None:
        """Start it anew with these lines in a drop-in."""
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self.machine.write(DROP_IN, "".join(["[Service]\n", *lines]))
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "restart", UNIT)

    def put(self, name: str, text: str) -> None:
        """Write a file of the home's."""
        install = ("install", "-m", "0600", "-o", self.user, "/dev/stdin", f"{self.home}/{name}")
        self.machine.run(*install, given=text)

    def confined(self, profile: str) -> Json:
        """Have the verify run completed in a worker under this profile; gives its receipt."""
        self.spl("config", "set-profile", profile)
        row = self.spl("run", VERIFY_GOAL)
        assert (row["transport"], row["profile"], row["outcome"]) == ("sandboxed", profile, "completed")
        records = self.spl("thread", "records", row["thread"])["data"]
        (receipt,) = (each["body"] for each in records if each["body"]["kind"] == "core.work.isolation.v1")
        found: Json = receipt
        return found

    def journal(self) -> list[Json]:
        """Give the lines of its log that the journal has, each with its priority there as `priority`."""
        lines = self.machine.run("journalctl", "-u", UNIT, "-o", "json", "--no-pager").stdout.splitlines()
        entries = [each for each in map(json.loads, lines) if str(each["MESSAGE"]).startswith("{")]
        return [{**json.loads(each["MESSAGE"]), "priority": each["PRIORITY"]} for each in entries]

    def said(self, event: str, thread: str | None = None) -> Json:
        """Give the last line of its log about an event, of this thread if named."""
        lines = [each for each in self.journal() if (each["event"], each.get("thread")) == (event, thread)]
        return lines[-1]

    def cgroup(self, pid: object) -> str:
        """Give the cgroup of a process, below the machine's own."""
        lines = self.machine.run("cat", f"/proc/{pid}/cgroup").stdout.splitlines()
        return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))

    @contextlib.contextmanager
    def until(self, part: str) -> Iterator[None]:
        """Wait, once what is inside is done, until the journal has a line of the unit's with this in it."""
        cursor = (
            self.machine.run("journalctl", "-n0", "--show-cursor", "-q")
            .stdout.split("-- cursor: ")[1]
            .strip()
        )
        yield
        words = ["-u", UNIT, "-o", "cat", "--follow", "-n", "all", f"--after-cursor={cursor}"]
        with self.machine.beside("timeout", str(SECONDS), "journalctl", *words) as following:
            seen = []
            for line in following:
                seen.append(line)
                if part in line:
                    break
            else:
                raise AssertionError(f"{part!r} is not in the journal:\n{''.join(seen)}")

    def _become(self) -> list[str]:
        if self.user == "root":
            return []
        return [
            "setpriv",
            f"--reuid={self.user}",
            f"--regid={self.user}",
            "--clear-groups",
            "env",
            *self.environ,
        ]


@pytest.fixture(scope="module")
def installed(machine: Machine) -> Service:
    """Give the system's unit as a person installs it, started, with its runs sandboxed."""
    service = Service(machine)
    service.sh(block("systemctl enable --now spl-serve\nsystemctl status"))
    service.spl("config", "set-transport", "sandboxed")
    return service


@pytest.fixture(scope="module", params=["hosted", "same-user"])
def service(request: pytest.FixtureRequest, installed: Service) -> Service:
    """Give it in either shape; the second takes over the home of the first."""
    if request.param == "hosted":
        return installed
    installed.machine.run("rm", "-f", DROP_IN)
    installed.sh(block("own-user.conf"))
    return replace(installed, user="spl")


@pytest.fixture(scope="module")
def endless(service: Service) -> Service:
    """Give the same with a model that never comes to an end, and with little patience."""
    service.configure(RestartSec="100ms", WatchdogSec="4s", Environment=f"SPL_PROVIDER=script:{SCRIPT}")
    return service


def test_it_is_started_once_it_answers_and_says_how_it_goes(service: Service) -> None:
    health = service.spl("status")

    assert health["isolation"]["shape"] == ("hosted" if service.user == "root" else "same-user")
    assert "refused" not in health["isolation"]
    cgroup = health["isolation"]["cgroup"]
    assert (cgroup["delegated"], cgroup["kill"]) == (True, True)
    assert (service.shows("StatusText"), service.shows("ActiveState")) == ("serving, 0 runs", "active")


def test_a_sandboxed_run_is_confirmed_layer_by_layer_under_the_unit(service: Service) -> None:
    layers = {each["layer"] for each in service.confined("worker")["layers"]}

    assert {"user_namespace", "network", "syscalls", "landlock", "home", "limits"} <= layers
    assert ("separate_user" in layers) == (service.user == "root")


@pytest.mark.one_shape
def test_so_is_one_with_process_ids_of_its_own(service: Service) -> None:
    assert "pid_namespace" in {each["layer"] for each in service.confined("strict")["layers"]}


@pytest.mark.soak
def test_so_is_one_with_a_proc_of_its_own_and_the_backup_at_the_start_is_made(service: Service) -> None:
    profile = 'description = "A /proc of its own."\nextends = "strict"\n[filesystem]\nproc = "own"\n'
    service.put("profiles/own-proc.toml", profile)

    assert service.confined("own-proc")["profile"] == "own-proc"
    with service.until("made a backup"):
        service.configure()


@pytest.mark.one_shape
def test_its_log_is_in_the_journal_as_json(service: Service) -> None:
    levels = {line["event"]: (line["level"], line["priority"]) for line in service.journal()}
    assert {"the log is open", "running sandboxed", "run ended"} <= levels.keys()
    assert set(levels.values()) <= {("info", "6"), ("warning", "4"), ("error", "3")}
    assert "running sandboxed" in service.sh(block("journalctl"))


@pytest.mark.one_shape
def test_one_that_hangs_is_killed_by_the_watchdog_and_started_again(endless: Service) -> None:
    thread = endless.spl("run", "--detach", "Go on.")["thread"]
    pid = endless.said("running sandboxed", thread)["pid"]
    of_worker, of_daemon = (endless.cgroup(each) for each in (pid, endless.shows("MainPID")))
    assert of_worker != of_daemon == f"/system.slice/{UNIT}/daemon"
    assert of_worker.startswith(f"/system.slice/{UNIT}/")

    with endless.until("Watchdog timeout"), endless.until("Started spl-serve.service"):
        endless.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", UNIT)

    # What it could not end itself was killed with it, and is closed by the next.
    assert endless.spl("runs", "show", thread)["outcome"] == "failed"
    assert endless.shows("NRestarts") == "1"


@pytest.mark.soak
def test_so_is_one_that_is_killed(endless: Service) -> None:
    endless.configure(RestartSec="100ms", Environment=f"SPL_PROVIDER=script:{SCRIPT}")
    thread = endless.spl("run", "--detach", "Go on.")["thread"]

    with endless.until("closed runs of an earlier daemon"), endless.until("Started spl-serve.service"):
        endless.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)

    assert endless.spl("runs", "show", thread)["outcome"] == "failed"


@pytest.mark.one_shape
def test_it_stops_with_its_runs_told_and_leaves_nothing(endless: Service) -> None:
    endless.machine.run("systemctl", "start", UNIT)
    thread = endless.spl("run", "--detach", "Go on.")["thread"]

    endless.machine.run("systemctl", "stop", UNIT)

    assert (endless.shows("Result"), endless.shows("ExecMainStatus")) == ("success", "0")
    assert endless.said("draining")["runs"] == 1
    assert endless.said("run ended", thread)["clean"]
    left = endless.machine.run("sh", "-c", f"ls -d {CGROUP} /run/spl/*/*.sock; pgrep -a bwrap", check=False)
    assert left.stdout == ""


@pytest.mark.soak
def test_a_model_is_asked_over_https_with_the_certificates_that_its_administrator_trusts(
    service: Service,
) -> None:
    machine = service.machine
    machine.write("/etc/model.pem", CERTIFICATE)
    machine.write(
        "/usr/local/share/ca-certificates/model.crt", CERTIFICATE.split("END PRIVATE KEY-----\n")[1]
    )
    machine.run("update-ca-certificates")
    machine.write("/etc/model.py", MODEL)
    service.put("config.toml", 'prices."some" = { input = 0, output = 0 }\n')
    with machine.beside("/usr/bin/python3", "/etc/model.py") as printed:
        url = f"https://127.0.0.1:{printed.readline().strip()}/v1"
        service.configure(Environment=f"SPL_PROVIDER=openai SPL_PROVIDER_URL={url} SPL_MODEL=some")
        row = service.spl("run", "Say something.")

    assert (row["transport"], row["outcome"], row["summary"]) == ("sandboxed", "completed", "Done.")


@pytest.mark.soak
@pytest.mark.parametrize(
    "left_out",
    [
        "ProtectKernelTunables=yes",
        "ProcSubset=pid",
        "PrivateUsers=yes",
        "RestrictNamespaces=yes",
        "RestrictAddressFamilies=~AF_NETLINK",
        "SystemCallFilter=~@privileged",
        "LimitCORE=0",
    ],
)
def test_what_is_left_out_of_the_unit_breaks_what_the_page_says(service: Service, left_out: str) -> None:
    name, _, value = left_out.partition("=")
    assert f"`{left_out.partition('~')[0]}" in read("docs/service.md").prose
    try:
        service.configure(**{name: value})
    except AssertionError:
        assert name == "ProcSubset"
        return
    refused = "refused" in service.spl("status")["isolation"]
    # A daemon under a user of its own has no other's uid to become.
    assert refused == (name != "PrivateUsers" or service.user == "root")


@pytest.mark.soak
def test_a_user_has_a_daemon_of_its_own_by_its_own_manager(machine: Machine) -> None:
    machine.run("useradd", "--create-home", "--uid=4711", "ana")
    machine.run("install", "-d", "-m", "0700", "-o", "ana", "/run/user/4711")
    machine.run("systemctl", "stop", UNIT)
    machine.run("systemctl", "start", "user@4711.service")
    environ = ("HOME=/home/ana", "XDG_RUNTIME_DIR=/run/user/4711")
    service = Service(machine, "ana", "/home/ana/.syncro", environ)

    service.sh(block("systemctl --user enable"))
    service.spl("config", "set-transport", "sandboxed")

    for profile in ("worker", "strict"):
        assert service.confined(profile)["profile"] == profile
    shown = service.sh(f"systemctl --user show --value -p StatusText {UNIT}; systemctl --user stop {UNIT}")
    assert shown.strip() == "serving, 0 runs"
    assert machine.run("pgrep", "-u", "ana", "-f", "serve", check=False).stdout == ""
