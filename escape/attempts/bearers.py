"""Out by the worker socket: a door without a credential, with one that is none, with another run's."""

from __future__ import annotations

import sys

from escape.attempts._knocking import (
    ANOTHERS,
    ANYONES,
    DOORS,
    INFER,
    INVALID,
    NOBODY,
    PLAN,
    POSTS,
    PROPOSE,
    RECORDS,
    RUN,
    all_refused,
    ask,
    codes,
    credential,
    kept,
    knock,
    message,
    pour,
)
from escape.inside import stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from escape.attempt import Attempt
    from escape.inside import World


def _bearers(*bearers: Callable[[str], str]) -> Callable[[World], str]:
    def chain(world: World) -> str:
        own = credential(world)
        asked = [message(world, line, bearer=bearer(own)) for line in DOORS for bearer in bearers]
        return all_refused(world, asked, "a door opened")

    return chain


def _constant(*bearers: str) -> Callable[[World], str]:
    return _bearers(*((lambda _, each=each: each) for each in bearers))


_NO_SCHEMES = _bearers(
    *(
        (lambda own, scheme=scheme: f"{scheme}{own}")
        for scheme in ("", "Basic ", "Token ", "Digest ", "Negotiate ")
    ),
    *(
        (lambda own, scheme=scheme: f"{scheme}{own}")
        for scheme in ("Bearer", "Bearer:", "Bearer\t", "Bearer=", "X ")
    ),
    lambda own: f"Basic Bearer {own}",
)
_ALTERED = _bearers(
    *((lambda own, at=at: f"Bearer {own[:at]}") for at in (-1, -8, 8, 0)),
    lambda own: f"Bearer {own[1:]}",
    lambda own: f"Bearer {own.upper()}",
    lambda own: f"Bearer {own.swapcase()}",
    lambda own: f"Bearer {own[:-1]}{'A' if own[-1] != 'A' else 'B'}",
    lambda own: f"Bearer {own}=",
    lambda own: f"Bearer {own}x",
    lambda own: f"Bearer {own} x",
    lambda own: f"Bearer {own},",
    lambda own: f"Bearer {own}, Bearer {own}",
    lambda own: f"Bearer {own}{own}",
    lambda own: f'Bearer "{own}"',
    lambda own: f"Bearer Bearer {own}",
    lambda own: f"Bearer {own}\xff",
    lambda own: f"Bearer {own}\xa0",
    lambda own: f"Bearer \xa0{own}",
    lambda own: f"Bearer \xef\xbb\xbf{own}",
    lambda own: f"Bearer {own[8:]}",
    lambda own: f"Bearer {''.join(f'%{ord(letter):x}' for letter in own)}",
)
_GUESSED = _constant(
    f"Bearer spl_run_{'A' * 43}",
    f"Bearer spl_run_{'0' * 43}",
    f"Bearer spl_local_00000000_{'A' * 43}",
    f"Bearer spl_member_00000000_{'A' * 43}",
    *(
        "Bearer null",
        "Bearer None",
        "Bearer undefined",
        "Bearer *",
        "Bearer 0",
        "Bearer ' OR 1=1 --",
        "Bearer root",
    ),
    f"Bearer {'A' * 10_000}",
    # The SHA-256 of nothing, for a look-up by hash that is given the hash.
    "Bearer e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)


def _nonce(world: World) -> str:
    said = [each for each in (*sys.argv, *sys.orig_argv) if 8 <= len(each) <= 200 and " " not in each]
    if not said:
        return stopped("no argument to try")
    # argv holds the launch's nonce; a credential that could be read there would be one for everyone (see proc(5)).
    words = dict.fromkeys(way(each) for each in said for way in (str, str.upper, lambda word: word[::-1]))
    asked = [message(world, line, bearer=f"Bearer {each}") for each in words for line in DOORS]
    return all_refused(world, asked, "the launch's nonce opens a door")


def _bearer_elsewhere(world: World) -> str:
    own = credential(world)
    headers = (
        f"Proxy-Authorization: Bearer {own}", f"X-Authorization: Bearer {own}",
        f"Cookie: authorization={own}", f"Cookie: access_token={own}; Authorization=Bearer {own}",
        f"X-Api-Key: {own}", f"X-Auth-Token: {own}", f"WWW-Authenticate: Bearer {own}",
        f"Authentication: Bearer {own}", f"Sec-WebSocket-Protocol: {own}",
    )  # fmt: skip
    asked = [message(world, line, None, each, bearer="") for each in headers for line in DOORS]
    asked += [message(world, line, {"credential": own, "authorization": own}, bearer="") for line in POSTS]
    return all_refused(world, asked, "a bearer was taken from elsewhere")


def _two_bearers(world: World) -> str:
    own = credential(world)
    seconds = ("Bearer", "Bearer x", f"Basic {own}", f"Bearer {world.neighbour_credential}")
    asked = [
        message(world, line, None, f"Authorization: Bearer {own}", bearer=each)
        for each in seconds
        for line in DOORS
    ]
    return all_refused(world, asked, "one of two bearers was chosen")


def _neighbours(line: str) -> Callable[[World], str]:
    bodies: dict[str, object] = {
        INFER: {"messages": [{"role": "user", "content": "Whose are you?"}]},
        RECORDS: {"kind": PLAN, "body": {"text": "from another run"}},
    }

    def chain(world: World) -> str:
        body = None if line == RUN else bodies.get(line, {"call_id": "call_1_1"})
        answers = pour(world, message(world, line, body, bearer=f"Bearer {world.neighbour_credential}"))
        if codes(answers) == NOBODY:
            stopped(NOBODY)
        # Any other answer is the other run's: that its model asked for no such call, for one.
        return f"another run's door opened: {codes(answers)}"

    return chain


def _neighbour_beside_own(world: World) -> str:
    theirs = f"Authorization: Bearer {world.neighbour_credential}"
    answers = pour(world, message(world, RUN, None, theirs))
    if any(said.get("thread") == world.neighbour_thread for _, said in answers):
        return "taken for the other run"
    return "one of two bearers was chosen" if codes(answers) == "200" else stopped(codes(answers))


def _neighbour_on_own_connection(world: World) -> str:
    first = kept(message(world, PROPOSE, {"no": 1}))
    theirs = [message(world, line, {}, bearer=f"Bearer {world.neighbour_credential}") for line in DOORS]
    return all_refused(world, (first + each for each in theirs), "a connection was believed")


def _second_connection(world: World) -> str:
    status, said = ask(world, RUN)
    return stopped(f"works: {status}" if said["thread"] != world.neighbour_thread else "another's thread")


_ROWS = (
    ("none", "knocks without a bearer", _constant("")),
    ("scheme", "gives its credential in every other scheme", _NO_SCHEMES),
    ("altered", "gives its credential shortened, doubled, in capitals", _ALTERED),
    ("guessed", "guesses tokens of every shape there is", _GUESSED),
    ("nonce", "gives what its command line holds, the launch's nonce", _nonce),
    ("elsewhere", "gives its credential in cookies, other headers and bodies", _bearer_elsewhere),
)

ATTEMPTS: tuple[Attempt, ...] = (
    *(knock(f"bearers.{name}", sentence, chain, NOBODY, escape=ANYONES) for name, sentence, chain in _ROWS),
    knock("bearers.two", "gives another bearer behind its own", _two_bearers, NOBODY, escape=ANOTHERS),
    *(
        knock(
            f"bearers.neighbour.{line.rpartition('/')[2]}",
            "knocks with another run's live credential",
            _neighbours(line),
            NOBODY,
            escape=ANOTHERS,
        )
        for line in DOORS
    ),
    knock(
        "bearers.neighbour.beside",
        "gives another run's live credential in front of its own",
        _neighbour_beside_own,
        NOBODY,
        escape=ANOTHERS,
    ),
    knock(
        "bearers.neighbour.kept",
        "uses another run's live credential on a connection that its own has opened",
        _neighbour_on_own_connection,
        f"{INVALID} {NOBODY}",
        escape=ANOTHERS,
    ),
    knock(
        "bearers.second",
        "uses its credential on a second connection",
        _second_connection,
        "works: 200",
        escape="a run has as many connections as its process makes, each of them its own",
        allowed="a credential is its process's, not a connection's",
    ),
)
