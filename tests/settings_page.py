"""The page that lists every setting, made from the fields of spl/settings.py, and what is decided while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spl.settings import PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

INTRODUCTION: Final = """\
# Settings

There are two kinds. What the daemon is started with stands in a file, in variables or in flags, and does not change
while it runs. What is decided [while it runs](#while-it-runs) stands in records.

## At the start

The first of these that says something wins:

1. a flag of `spl serve`: `--home`, `--port`, `--provider`, `--provider-url`, `--model`;
2. a variable, `SPL_` and the name in capitals;
3. `config.toml` in the home;
4. the default.

A value that is not valid and a name that is no setting are errors that name the flag, the variable, or the file and its
key, also where another source would have won; nothing is started then. `home` cannot stand in `config.toml`, which lies
in it. A whole file, for a machine with a model of its own:

```toml
port = 9100
provider = "openai"
provider_url = "http://127.0.0.1:11434/v1"
model = "llama3.2"
prices."llama3.2" = { input = 0, output = 0 }
max_output_tokens = 4096
backups_kept = 7
log_format = "json"
```

In the file a value has a type: `"9100"` is no port. Below a `[table]` a line belongs to that, so put none above a
setting.

`SPL_URL` and `SPL_TOKEN` are the command line's (see [commands.md](commands.md)); the daemon does not read them. Keys
of providers are no settings: [providers.md](providers.md#keys).

| key of config.toml | variable | default | meaning |
|---|---|---|---|
"""

LIVE: Final = """
## While it runs

Records on `th_engine_config`, written as `did:sync:system:engine` with the scope `config:write`. The newest of each
topic is in force for the next run, a rule's for the next call, and runs already going keep what else they began with.
`spl config` writes them, and shows what the running daemon took:

```
spl serve --daemon
spl config set-transport sandboxed
spl know --thread th_engine_config --actor did:sync:system:engine --act LEARN \\
  --body '{"kind":"core.engine.config.v1","topic":"work_loop_transport","transport":"in_process"}'
spl config show
```

| topic | fields | what it decides |
|---|---|---|
"""

TOPICS: Final[Mapping[str, tuple[str, str]]] = {
    "work_loop_transport": (
        "`transport`",
        "where the operator's own runs go: `in_process`, the default and what anything else reads as, or `sandboxed`",
    ),
    "work_loop_transport_members": ("`transport`", "where everyone else's go, `sandboxed` by default"),
    "permission_rule": (
        "`name`, `action`, `priority`, `expression`, `enabled`?",
        (
            "a rule over the calls of all runs, from the next call on ([judgment.md](judgment.md#rules)). One whose "
            "`expression` does not compile is 400 `EXPRESSION_INVALID`, with `line`, `column` and an `excerpt`; `null` "
            "takes the rule of that name away"
        ),
    ),
    "actor_tier": (
        "`actor`, `tier`",
        "the tier of an actor's next runs: `trial`, `paid` or `team`. `null` takes it back: it is `trial` again",
    ),
    "work_loop_profile": (
        "`profile`, `tier`?",
        (
            "the profile that confines sandboxed runs, `worker` by default. With `tier` (`trial`, `paid`, `team`, "
            "`operator`) it is for that tier's runs and goes before the one for all. `null` takes a choice back: a "
            "tier goes by the one for all again, all by `worker`"
        ),
    ),
    "admission_capacity": (
        "`capacity`",
        (
            "how many sandboxed runs go on at once, 0 to 4096; with 0 none is started. `null` takes it back: the "
            "setting `admission_capacity` decides, or else the host's memory"
        ),
    ),
    "standby_workers": (
        "`workers`",
        (
            "how many [standby workers](confinement.md#standby-workers) of each profile in use there are to be, 0 to "
            "64; with 0 there are none. `null` takes it back: the setting `standby_workers` decides"
        ),
    ),
}

REST: Final = """
A tier's ceilings are changed by a record of the kind `core.engine.tier.v1` with `tier` and any of `max_turns`,
`wall_clock_secs`, `token_budget`, `default_budget_usd`, which hold for each run, and `daily_cost_usd`, `daily_runs` and
`concurrent_runs`, which hold for all of an actor's, by the day in UTC; `null` gives one back the value it is shipped
with. A start past one of the last three is 429 `WORK_DAILY_CAP_EXCEEDED`, `WORK_DAILY_COUNT_EXCEEDED` or
`WORK_CONCURRENCY_EXCEEDED`. A request narrows its tier's ceilings and tools, and widens none.

A profile that cannot be used, here or anywhere, is refused when it is chosen, with 422 `PROFILE_INVALID`, and one below
the floor with 422 `PROFILE_BELOW_FLOOR`: the message names file, line and sentence of the first breach, `breaches` is
their number, and nothing is written. A shipped name is refused too while a file of your own bears it. A profile of
your own is read anew at each start, so an edited file is in force for the next run. One that has become unusable, or
fallen below the floor, refuses each start with `ISOLATION_UNAVAILABLE`, by the layer `profile` or that of the floor's
row; nothing falls back to another profile. The shipped ones are what they were when the daemon started.

Made by `make docs` from spl/settings.py and tests/settings_page.py.
"""


def page() -> str:
    """Give the text of docs/settings.md."""
    settings = "".join(_row(name, field) for name, field in Settings.model_fields.items())
    topics = "".join(f"| `{topic}` | {fields} | {text} |\n" for topic, (fields, text) in TOPICS.items())
    return INTRODUCTION + settings + LIVE + topics + REST


def _row(name: str, field: FieldInfo) -> str:
    key = "none" if name == "home" else f"`{name}`"
    default = "unset" if field.default is None else f"`{field.default}`"
    return f"| {key} | `{PREFIX}{name.upper()}` | {default} | {field.description} |\n"
