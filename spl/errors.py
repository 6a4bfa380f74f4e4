"""The one table of errors: a class each, with its code, HTTP status, exit status and remedy.

A message says in one sentence what failed, on what and why; the remedy says what to do. `spl.api` turns a
class into an answer and `spl.cli` into an exit status: nothing else in the project does either.
Exit statuses: 2 usage, 10-19 the host, 20-29 the request, 30-39 a run, 40-49 the log, 50-59 the escape suite, 70 our
own fault, and a shell's own 126 and 127 for a command that could not be tried.
"""

from __future__ import annotations

from typing import ClassVar


class SplError(Exception):
    """Base of every error a person can meet; `fields` are extra facts for machines, safe to show."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 70
    remedy: ClassVar[str] = "look in the daemon's log, then report it"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    @property
    def type(self) -> str:
        """Whose turn it is: `authentication`, `permission`, `request`, `unavailable` or `internal`."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 403:
            return "permission_error"
        if self.status == 503:
            return "unavailable_error"
        return "request_error" if self.status < 500 else "internal_error"

    def wire(self) -> dict[str, object]:
        """Give the error as it stands in an HTTP answer."""
        return {
            "object": "error",
            "type": self.type,
            "code": self.code,
            "message": self.message,
            **self.fields,
        }


class Internal(SplError):
    """A fault of the daemon's own; the message never carries the exception's text."""


# --- the host: exit 10-19 ---


class HomeUnsafe(SplError):
    """The home is a symlink, someone else's, or open to others."""

    code = "HOME_UNSAFE"
    exit_status = 10
    remedy = (
        "make what the message names yours alone (chmod 0700 a folder, 0600 a file), or give another --home"
    )


class HomeInUse(SplError):
    """Another daemon holds this home's lock."""

    code = "HOME_IN_USE"
    exit_status = 11
    remedy = "stop the other daemon with 'spl stop', or give this one another --home"


class PortInUse(SplError):
    """The TCP port cannot be bound."""

    code = "PORT_IN_USE"
    exit_status = 12
    remedy = "free the port or choose another with --port"


class SocketPathTooLong(SplError):
    """A unix socket's path does not fit in sockaddr_un (unix(7): 108 bytes with the final NUL)."""

    code = "SOCKET_PATH_TOO_LONG"
    exit_status = 13
    remedy = "use a home with a shorter path"


class SettingsInvalid(SplError):
    """A flag, an SPL_ variable or a line of config.toml is not valid."""

    code = "SETTINGS_INVALID"
    exit_status = 14
    remedy = "correct the setting named in the message"


class HostUnsupported(SplError):
    """The host lacks something the daemon itself needs."""

    code = "HOST_UNSUPPORTED"
    exit_status = 15
    remedy = "run on Linux 5.14 or later with the packages the README names"


class DaemonUnreachable(SplError):
    """No daemon answers for this home."""

    code = "DAEMON_UNREACHABLE"
    status = 503
    exit_status = 16
    remedy = "start it with 'spl serve', or point --home or SPL_URL at the one that runs"


class DaemonStopping(SplError):
    """The daemon has been told to stop: what goes on may still end, and nothing more begins."""

    code = "DAEMON_STOPPING"
    status = 503
    exit_status = 16
    remedy = "try again once it is back; if nobody starts it again, 'spl serve' does"


class HostRefused(SplError):
    """The operating system refused something of the command's or the daemon's own: a file, a pipe, a process."""

    code = "HOST_REFUSED"
    status = 503
    exit_status = 17
    remedy = "mend what the message names, then try again"


class HostDoubtful(SplError):
    """`spl doctor` found something to know of, and nothing that keeps workers from being confined."""

    code = "HOST_DOUBTFUL"
    status = 503
    exit_status = 18
    remedy = "do what the warnings say, or live with them"


class HostUnfit(SplError):
    """`spl doctor` found what keeps workers from being confined on this host."""

    code = "HOST_UNFIT"
    status = 503
    exit_status = 19
    remedy = "do what the failures say, then run 'spl doctor' again"


# --- the request: exit 20-29 ---


class Unauthenticated(SplError):
    """No bearer, or one that is not known here."""

    code = "UNAUTHENTICATED"
    status = 401
    exit_status = 20
    remedy = "send 'Authorization: Bearer' with a live token, SPL_TOKEN here; 'spl token show' prints the operator's"


class TokenRevoked(SplError):
    """The bearer was a token here once, and is none any more."""

    code = "TOKEN_REVOKED"
    status = 401
    exit_status = 20
    remedy = "ask the operator for a new token"


class ScopeDenied(SplError):
    """The bearer lacks the scope."""

    code = "SCOPE_DENIED"
    status = 403
    exit_status = 21
    remedy = "use a token that carries the scope"


class ActorNotCovered(SplError):
    """The bearer may not write as this actor."""

    code = "ACTOR_NOT_COVERED"
    status = 403
    exit_status = 21
    remedy = "write as an actor that the token covers"


class RunActorNotCovered(SplError):
    """The bearer may not start runs for this actor."""

    code = "RUN_ACTOR_NOT_COVERED"
    status = 403
    exit_status = 21
    remedy = "start the run as an actor that the token covers"


class KindReserved(SplError):
    """A `core.*` kind that only the kernel, or only a run, may write."""

    code = "KIND_RESERVED"
    status = 403
    exit_status = 21
    remedy = "choose a kind outside core.*; configuration goes to th_engine_config as the engine's actor"


class MissingField(SplError):
    """A field the request needs is absent."""

    code = "MISSING_FIELD"
    status = 400
    exit_status = 22
    remedy = "add the field"


class InvalidBody(SplError):
    """Malformed JSON, a wrong type, an unknown field or a value outside its bounds."""

    code = "INVALID_BODY"
    status = 422
    exit_status = 22
    remedy = "correct the field named in the message"


class MemberExists(SplError):
    """A member has this label already."""

    code = "MEMBER_EXISTS"
    status = 409
    exit_status = 22
    remedy = "choose another label"


class EventUnknown(SplError):
    """A run takes no event of this type."""

    code = "EVENT_UNKNOWN"
    status = 400
    exit_status = 22
    remedy = 'send {"type":"stop"}'


class ExpressionInvalid(SplError):
    """A rule's expression that does not compile; `line`, `column` and `excerpt` say where."""

    code = "EXPRESSION_INVALID"
    status = 400
    exit_status = 26
    remedy = "correct the expression at the place the message names"


class BodyTooLarge(SplError):
    """The request's body is over the limit; it was not read further."""

    code = "BODY_TOO_LARGE"
    status = 413
    exit_status = 22
    remedy = "send less, or raise max_body_bytes in the settings"


class BodyTimeout(SplError):
    """The request's body did not arrive in time; it was not read further."""

    code = "BODY_TIMEOUT"
    status = 408
    exit_status = 22
    remedy = "send the body at once"


class WatchersExceeded(SplError):
    """As many event streams are open as the daemon carries, or as one member may have."""

    code = "WATCHERS_EXCEEDED"
    status = 429
    exit_status = 27
    remedy = "close an event stream, then open this one again"


class RequestsExceeded(SplError):
    """As many requests of one member are under way at once as a member may have."""

    code = "REQUESTS_EXCEEDED"
    status = 429
    exit_status = 29
    remedy = "wait for the answer of one, then ask again"


class QueryExceeded(SplError):
    """A query takes more of the log's time than whoever asks may have."""

    code = "QUERY_EXCEEDED"
    status = 422
    exit_status = 29
    remedy = "name a thread, an actor or a body.kind in the filter, or records after a sequence"


class Lagged(SplError):
    """An event stream's reader takes less than comes; told on the stream itself, which ends with it."""

    code = "lagged"
    status = 503
    exit_status = 28
    remedy = "open the stream again with Last-Event-ID: nothing is lost"


class ProfileInvalid(SplError):
    """A profile that cannot be used; `file`, `line`, `column`, `place`, `reason` and `excerpt` say what and where."""

    code = "PROFILE_INVALID"
    status = 422
    exit_status = 24
    remedy = "correct the profile at the place the message names"


class ProfileBelowFloor(SplError):
    """A profile that runs work for anyone may not promise less than the floor; it says what breaks which row."""

    code = "PROFILE_BELOW_FLOOR"
    status = 422
    exit_status = 25
    remedy = "take that out of the profile, or choose another: the floor is the same for everyone"


class ProfileExists(SplError):
    """A profile has this name already; a shipped one always has."""

    code = "PROFILE_EXISTS"
    status = 409
    exit_status = 22
    remedy = "choose another name, or change the profile that is there"


class NotFound(SplError):
    """No such route or thing."""

    code = "NOT_FOUND"
    status = 404
    exit_status = 23
    remedy = "check the path and the id"


class RunNotFound(SplError):
    """No run has this thread."""

    code = "RUN_NOT_FOUND"
    status = 404
    exit_status = 23
    remedy = "list the runs with 'spl runs list'"


class MethodNotAllowed(SplError):
    """The route exists, but not with this method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405
    exit_status = 23
    remedy = "use a method named in the Allow header"


class CommandNotFound(SplError):
    """There is no such command to try or trace; only the command line says this, with a shell's own status."""

    code = "COMMAND_NOT_FOUND"
    status = 404
    exit_status = 127
    remedy = "give the path of a program on this host"


class CommandNotExecutable(SplError):
    """What is to be tried or traced is no program; only the command line says this, with a shell's own status."""

    code = "COMMAND_NOT_EXECUTABLE"
    status = 422
    exit_status = 126
    remedy = "give the path of a program, or make it one with 'chmod +x'"


# --- a run: exit 30-39 ---


class AdmissionCeiling(SplError):
    """As many sandboxed runs are live as the host's memory is meant to carry."""

    code = "ADMISSION_CEILING"
    status = 503
    exit_status = 30
    remedy = "wait for a run to end, then start again"


class IsolationUnavailable(SplError):
    """A layer of isolation cannot be confirmed; `layer` and `remedy` stand in the answer."""

    code = "ISOLATION_UNAVAILABLE"
    status = 503
    exit_status = 31
    remedy = "mend the layer the message names; nothing runs with less"


class WorkConcurrencyExceeded(SplError):
    """As many runs of this actor are going on as its tier allows; `limit` and `running` stand in the answer."""

    code = "WORK_CONCURRENCY_EXCEEDED"
    status = 429
    exit_status = 36
    remedy = "wait for one of them to end, or stop one"


class WorkDailyCountExceeded(SplError):
    """This actor has started as many runs today (UTC) as its tier allows."""

    code = "WORK_DAILY_COUNT_EXCEEDED"
    status = 429
    exit_status = 37
    remedy = "start again after midnight UTC, or ask the operator for another tier"


class WorkDailyCapExceeded(SplError):
    """This actor's runs have cost as much today (UTC) as its tier allows."""

    code = "WORK_DAILY_CAP_EXCEEDED"
    status = 429
    exit_status = 38
    remedy = "start again after midnight UTC, or ask the operator for another tier"


class ModelUnpriced(SplError):
    """A run with a ceiling asks for a model that nobody has given a price."""

    code = "MODEL_UNPRICED"
    status = 422
    exit_status = 39
    remedy = "give the model a price in config.toml (0 is a price) and start the daemon anew, or name another model"


class RunFinished(SplError):
    """The run has ended; nothing more can be done in it."""

    code = "RUN_FINISHED"
    status = 409
    exit_status = 32
    remedy = "start another run"


class RunNotCompleted(SplError):
    """A run that `spl run` waited for ended without completing; only the command line says this."""

    code = "RUN_NOT_COMPLETED"
    status = 409
    exit_status = 33
    remedy = "'spl why THREAD' tells how it came to that"


class EscapeFailed(SplError):
    """An attempt of the escape suite was not stopped as it must be, or a layer's absence was not noticed.

    Only the command line says this.
    """

    code = "ESCAPE_FAILED"
    exit_status = 50
    remedy = (
        "run nobody's work on this host until each red row is explained; 'spl doctor' looks for what it lacks"
    )


class EscapeUnfinished(SplError):
    """The escape suite could not be made to its end, so that nothing is known; only the command line says this."""

    code = "ESCAPE_UNFINISHED"
    exit_status = 51
    remedy = "mend what the message names, then make it again"


class CallNotInReply(SplError):
    """The model's last reply holds no call with this id."""

    code = "CALL_NOT_IN_REPLY"
    status = 409
    exit_status = 34
    remedy = "propose only calls of the last reply"


class CallNotAllowed(SplError):
    """The call has no verdict `allow`."""

    code = "CALL_NOT_ALLOWED"
    status = 409
    exit_status = 34
    remedy = "propose the call first and run it only when it is allowed"


class CallAlreadyRun(SplError):
    """The call has its result already."""

    code = "CALL_ALREADY_RUN"
    status = 409
    exit_status = 34
    remedy = "a call runs once; take the result that stands on the thread"


class ProviderFailed(SplError):
    """The model's provider gave no usable reply."""

    code = "PROVIDER_FAILED"
    status = 502
    exit_status = 35
    remedy = "check the provider's settings and its own status"


# --- the log: exit 40-49 ---


class IngestFailed(SplError):
    """A record the log cannot take: a used or past clock (`DuplicateClock`), a bad parent, a bad name."""

    code = "INGEST_FAILED"
    status = 400
    exit_status = 40
    remedy = "correct what the message names; a clock that is left out is given the next one"


class StoreUnavailable(SplError):
    """The log cannot be written or read; nothing was acknowledged."""

    code = "STORE_UNAVAILABLE"
    status = 503
    exit_status = 41
    remedy = "mend what the message names (space, permissions, the file itself), then try again"


class StoreDamaged(StoreUnavailable):
    """The log's file is not what was written to it, or is gone: nothing is added to it any more."""

    code = "STORE_DAMAGED"
    exit_status = 42
    remedy = "stop the daemon, then put a backup in its place with 'spl restore'"


class StoreNewer(StoreUnavailable):
    """The log is of a format that a later release has written; nothing of it is read or changed."""

    code = "STORE_NEWER"
    exit_status = 45
    remedy = (
        "install the later release again, or put a backup of a format that this one reads in its place with "
        "'spl restore PATH', which loses what was written since"
    )


class NotVerified(SplError):
    """`spl verify` found a record, a chain or a tally that is not as it must be; only the command line says this."""

    code = "NOT_VERIFIED"
    status = 422
    exit_status = 43
    remedy = "believe nothing that the findings name; compare with a backup or an earlier export"


class BackupFailed(SplError):
    """A backup could not be made, or one that is there cannot be restored; only the command line says this."""

    code = "BACKUP_FAILED"
    status = 503
    exit_status = 44
    remedy = "mend what the message names, or name another backup"


def table() -> list[type[SplError]]:
    """Give every error class in the order of this file."""
    found: list[type[SplError]] = []
    pending: list[type[SplError]] = [SplError]
    while pending:
        current = pending.pop(0)
        subclasses = current.__subclasses__()
        found += [cls for cls in subclasses if "code" in vars(cls) or cls is Internal]
        pending += subclasses
    return found
