"""The daemon's settings: flags before `SPL_…` variables before `config.toml` in the home before defaults."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from spl import home as homes
from spl.errors import SettingsInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "SPL_"
CLIENT_VARIABLES: Final = frozenset({"SPL_TOKEN", "SPL_URL"})
"""They tell `spl.client` which daemon to talk to; the daemon never looks at their values."""

# What nobody may be given: systemd's DynamicUser= takes from 61184 on (systemd.exec(5)), 65535 is (uid_t) -1 of old.
_FIRST_TAKEN, _LAST_TAKEN = 61184, 65535
_LAST_UID, _MOST_UIDS = (1 << 31) - 1, 1 << 16

_PLAIN = re.compile(r"[A-Za-z0-9_]{1,100}")
_MOST_BYTES = 16 << 10
"""Of config.toml: `tomllib` takes time by the square of a key's parts."""


def _check_provider(value: str) -> str:
    if value not in ("echo", "anthropic", "openai") and not (
        value.startswith("script:") and len(value) > len("script:")
    ):
        raise ValueError("it must be 'anthropic', 'openai', 'echo' or 'script:PATH'")
    return value


def _check_line(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise ValueError("it must be a line of text")
    return value


def _check_prices(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("it is a table of config.toml, and stands nowhere else")  # noqa: TRY004 - pydantic's way
    for name, price in value.items():
        if not isinstance(price, dict):
            raise ValueError(f"the price of {name!r} must be as {{ input = 0.1, output = 0.2 }}")  # noqa: TRY004
        known = price.keys() & ModelPrice.model_fields.keys()
        if not known and any(isinstance(each, dict) for each in price.values()):
            raise ValueError(f"put a model's name in quotes: prices.{name} stops at its first dot")
        if other := sorted(map(str, price.keys() - known)):
            raise ValueError(
                f"{other[0]!r} is no part of the price of {name!r}: it has input, output and cached, and what stands "
                f"below [prices...] belongs to that"
            )
    return value


def _check_uids(value: str) -> str:
    first, last = uid_range(value)
    if first > last:
        raise ValueError("the first uid must not be above the last")
    if first <= 1000:
        raise ValueError("uids up to 1000 are the system's and its first user's")
    if first <= _LAST_TAKEN and last >= _FIRST_TAKEN:
        raise ValueError(
            f"uids from {_FIRST_TAKEN} to {_LAST_TAKEN} are systemd's dynamic users, 'nobody' and none"
        )
    if last > _LAST_UID or last - first >= _MOST_UIDS:
        raise ValueError(f"it must end by {_LAST_UID} and hold at most {_MOST_UIDS} uids")
    return value


def uid_range(value: str) -> tuple[int, int]:
    """Give the first and the last uid of a range as the setting writes it; raises `ValueError`."""
    if not re.fullmatch(r"[0-9]{1,10}-[0-9]{1,10}", value):
        raise ValueError("it must be the first and the last uid, as '60600-60855'")
    first, last = value.split("-")
    return int(first), int(last)


_Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
_Line = Annotated[str, Field(max_length=200), AfterValidator(_check_line)]
_Usd = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """What a million tokens of one model cost, in US dollars; 0 is a price."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: _Usd
    output: _Usd
    cached: _Usd | None = None


class Settings(BaseSettings):
    """What one daemon runs with; `load` makes it, and it does not change while the daemon runs."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False)

    home: Path = Field(
        default=Path("~/.syncro"), description="the folder that holds everything; also SYNCROPEL_HOME"
    )
    port: int = Field(
        default=9100, ge=0, le=65535, description="the TCP port on 127.0.0.1; 0 lets the kernel choose one"
    )
    provider: Annotated[str, AfterValidator(_check_provider)] | None = Field(
        default=None,
        description="the model provider: `anthropic` (Messages API), `openai` (Chat Completions, also those of "
        "Ollama, vLLM, llama.cpp and others), `echo` (no model), or `script:PATH` to replay the replies of a file; "
        "unset, it is the one whose key is in `secrets/`, and `echo` where there is none",
    )
    provider_url: _Line | None = Field(
        default=None,
        description="where the provider answers, unless at its own address: for `openai` the base URL that ends in "
        "`/v1`, as `http://127.0.0.1:11434/v1`",
    )
    provider_seconds: _Seconds = Field(
        default=300.0, description="seconds that one model call may take before it is given up"
    )
    model: _Line | None = Field(
        default=None,
        description="the model of runs that name none; `anthropic` and `openai` need it",
    )
    max_output_tokens: int = Field(
        default=8192, ge=16, le=1_000_000, description="tokens, the most that one reply of a model may have"
    )
    prices: Annotated[dict[_Line, ModelPrice], Field(max_length=100), BeforeValidator(_check_prices)] = Field(
        default={},
        description="what a million tokens cost in US dollars, by model, where the shipped price list is wrong or "
        'silent: `prices."NAME" = { input = 0.1, output = 0.2 }`, with `cached` for input read from the provider\'s '
        "cache; 0 is a price; in `config.toml` alone",
    )
    max_body_bytes: int = Field(
        default=1024 * 1024, ge=1024, le=1024**3, description="bytes, the most a request's body may have"
    )
    probe_seconds: _Seconds = Field(
        default=10.0, description="seconds a confined worker may take to be ready before its start is refused"
    )
    stop_grace_seconds: _Seconds = Field(
        default=5.0, description="seconds that requests in flight are given to end when the daemon stops"
    )
    run_grace_seconds: _Seconds = Field(
        default=5.0,
        description="seconds that a run which is stopped, or past a ceiling, is given to come to its next step "
        "before it is broken off",
    )
    drain_seconds: float = Field(
        default=20.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="seconds that runs are given to come to their next step and leave when the daemon stops, before "
        "they are broken off; 0 breaks them off at once; `spl stop` waits 30 in all unless told otherwise",
    )
    credential_grace_seconds: _Seconds = Field(
        default=30.0, description="seconds a run's credential lives past its wall clock"
    )
    admission_capacity: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="how many sandboxed runs may go on at once; unset, the host's memory decides, and "
        "`spl config set-capacity` goes before both",
    )
    standby_workers: int = Field(
        default=2,
        ge=0,
        le=64,
        description="how many confined workers of each profile in use are made ahead of the runs that take them, some "
        "5 MiB each; 0 makes none; `spl config set-standby` goes before it",
    )
    worker_uids: Annotated[str, AfterValidator(_check_uids)] = Field(
        default="60600-60855",
        description="the uids that a root daemon's workers run as, one each: the first and the last",
    )
    heartbeat_seconds: _Seconds = Field(
        default=15.0, description="seconds after which an event stream that has nothing to tell says so"
    )
    backups_kept: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="how many of the backups that the daemon makes at its start are kept; 0 makes none",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="how the log is written; `auto` is `console` on a terminal, else `json`"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load` read and nothing else: it can say where each value came from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def load(flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """Give the settings in force for these flags (by field name; None means not given) and this environment.

    Raises SettingsInvalid, naming the flag, the variable or the file and key, for a value that is not valid
    and for a name that is no setting; HomeUnsafe for an empty home and for one that `Home.open` refuses.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    flag = given.pop("home", None)
    home = homes.locate(None if flag is None else str(flag), environ)
    if os.path.lexists(home):
        # Before a word of its config.toml is believed: in a home open to others it could be anyone's.
        homes.Home.open(home, create=False)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for source in (
        _file(home / "config.toml") if os.path.lexists(home) else {},
        _variables(environ),
        {name: (f"--{name.replace('_', '-')}", value) for name, value in given.items()},
    ):
        for name, (origin, value) in source.items():
            if name not in Settings.model_fields or name == "home":
                raise SettingsInvalid(f"{origin} is not a setting")
            _check(name, origin, value)
            values[name], origins[name] = value, origin
    try:
        return Settings(**{**values, "home": home})  # type: ignore[arg-type]
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise _invalid(origins.get(field, field), values.get(field), error) from None


def _check(name: str, origin: str, value: object) -> None:
    """Refuse a value by itself, also one that another source overrides.

    In the file a value has a type: `true` is no port, and a number is no text.
    """
    annotation: Any = Settings.model_fields[name].rebuild_annotation()
    try:
        TypeAdapter(annotation).validate_python(value, strict=origin.startswith("the key "))
    except ValidationError as error:
        raise _invalid(origin, value, error) from None


def _invalid(origin: str, value: object, error: ValidationError) -> SettingsInvalid:
    reason = error.errors()[0]["msg"].removeprefix("Value error, ")
    try:
        said = ascii(value)[:120]
    except (ValueError, RecursionError):
        # Python writes no number of over 4300 digits, though it reads one in hexadecimal; nor what is nested deeply.
        said = "what is too large to be shown"
    return SettingsInvalid(f"{origin} cannot be {said}: {reason}")


def _variables(environ: Mapping[str, str]) -> dict[str, tuple[str, object]]:
    return {
        # A name is any bytes but NUL and `=`: what is none that a setting could have is shown as Python writes it.
        name.removeprefix(PREFIX).lower(): (
            f"the variable {name if _PLAIN.fullmatch(name) else ascii(name)[:120]}",
            value,
        )
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in CLIENT_VARIABLES and name != "SPL_HOME"
    }


def _file(path: Path) -> dict[str, tuple[str, object]]:
    if os.path.lexists(path) and not os.path.isfile(path):
        raise SettingsInvalid(f"{str(path)!r} is no regular file, or a link to nothing")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise SettingsInvalid(f"{str(path)!r} is longer than {_MOST_BYTES} bytes")
        table: dict[str, Any] = tomllib.loads(data.decode())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsInvalid(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsInvalid(f"{str(path)!r} is not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsInvalid(f"{str(path)!r} is nested too deeply to be read") from None
    return {name: (f"the key {name!r} of {str(path)!r}", value) for name, value in table.items()}
