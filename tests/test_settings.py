from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from spl.errors import HomeUnsafe, SettingsInvalid
from spl.settings import Settings, load


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"SPL_HOME": str(tmp_path), "PATH": "/usr/bin"}


@pytest.mark.claim("I14")
def test_without_anything_the_defaults_are_in_force() -> None:
    settings = load({}, {})
    assert settings == Settings(home=Path("~/.syncro").expanduser())
    assert (settings.port, settings.provider, settings.max_body_bytes) == (9100, None, 1024 * 1024)
    assert (settings.provider_url, settings.model, settings.prices) == (None, None, {})
    assert (settings.provider_seconds, settings.max_output_tokens) == (300, 8192)
    assert (settings.probe_seconds, settings.stop_grace_seconds) == (10, 5)
    assert (settings.credential_grace_seconds, settings.admission_capacity) == (30, None)
    assert settings.log_format == "auto"


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "config.toml").write_text('port = 1\nprovider = "script:a"\nlog_format = "json"\n')
    environ |= {"SPL_PORT": "2", "SPL_PROVIDER": "script:b"}
    settings = load({"port": 3, "provider": None}, environ)
    assert (settings.port, settings.provider, settings.log_format) == (3, "script:b", "json")


def test_the_file_is_that_of_the_home_which_the_flag_names(tmp_path: Path, environ: dict[str, str]) -> None:
    other = tmp_path / "other"
    other.mkdir(0o700)
    (other / "config.toml").write_text("port = 7\n")
    settings = load({"home": str(other)}, environ)
    assert (settings.home, settings.port) == (other, 7)


@pytest.mark.parametrize("uids", ["60600-60600", "1001-1002", "61000-61183", "65536-65537", "100000-165535"])
def test_a_range_of_uids_has_at_least_one_and_none_that_is_someone_elses(
    environ: dict[str, str], uids: str
) -> None:
    assert load({}, environ | {"SPL_WORKER_UIDS": uids}).worker_uids == uids


def test_settings_do_not_change_once_made(environ: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        load({}, environ).port = 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("port", "65536", "less than or equal to 65535"),
        ("port", "-1", "greater than or equal to 0"),
        ("port", "http", "valid integer"),
        ("port", "", "valid integer"),
        ("provider", "gpt", "it must be 'anthropic', 'openai', 'echo' or 'script:PATH'"),
        ("provider", "script:", "it must be 'anthropic', 'openai', 'echo' or 'script:PATH'"),
        ("model", " ", "it must be a line of text"),
        ("provider_url", "", "it must be a line of text"),
        ("provider_seconds", "0", "greater than 0"),
        ("max_output_tokens", "15", "greater than or equal to 16"),
        ("prices", "{}", "it is a table of config.toml"),
        ("max_body_bytes", "0", "greater than or equal to 1024"),
        ("probe_seconds", "nan", "finite|greater"),
        ("probe_seconds", "inf", "finite|less"),
        ("stop_grace_seconds", "0", "greater than 0"),
        ("worker_uids", "60600-", "the first and the last uid, as '60600-60855'"),
        ("worker_uids", "a-b", "the first and the last uid"),
        ("worker_uids", "60601-60600", "the first uid must not be above the last"),
        ("worker_uids", "0-10", "uids up to 1000"),
        ("worker_uids", "1000-1100", "uids up to 1000"),
        ("worker_uids", "61000-61184", "systemd's dynamic users"),
        ("worker_uids", "65535-65600", "systemd's dynamic users"),
        ("worker_uids", "2000000000-4000000000", "at most 65536 uids"),
        ("worker_uids", "100000-165536", "at most 65536 uids"),
        ("credential_grace_seconds", "-1", "greater than 0"),
        ("admission_capacity", "-1", "greater than or equal to 0"),
        ("log_format", "xml", "'auto', 'console' or 'json'"),
    ],
)
def test_a_value_that_is_not_valid_is_refused_with_where_it_came_from(
    tmp_path: Path, environ: dict[str, str], name: str, value: str, reason: str
) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(SettingsInvalid, match=rf"^{flag} cannot be '{value}': .*({reason})"):
        load({name: value}, environ)
    variable = f"SPL_{name.upper()}"
    with pytest.raises(SettingsInvalid, match=rf"^the variable {variable} cannot be '{value}': .*({reason})"):
        load({}, {**environ, variable: value})
    # As the file would hold it: a number where a number can be meant.
    said = value if value in {"nan", "inf"} or value.lstrip("-").isdigit() else f"'{value}'"
    (tmp_path / "config.toml").write_text(f"{name} = {said}\n")
    with pytest.raises(
        SettingsInvalid, match=rf"^the key '{name}' of '.*config.toml' cannot be .*({reason})"
    ):
        load({}, environ)


@pytest.mark.parametrize("name", ["prot", "home", "token", "url"])
def test_a_key_that_is_no_setting_is_refused_with_its_file(
    tmp_path: Path, environ: dict[str, str], name: str
) -> None:
    (tmp_path / "config.toml").write_text(f'{name} = "x"\n')
    with pytest.raises(SettingsInvalid, match=rf"the key '{name}' of '.*config\.toml' is not a setting"):
        load({}, environ)


def test_a_misspelt_variable_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match="the variable SPL_PROT is not a setting"):
        load({}, {**environ, "SPL_PROT": "9"})


def test_the_clients_variables_are_left_alone(environ: dict[str, str]) -> None:
    assert load({}, {**environ, "SPL_TOKEN": "secret", "SPL_URL": "http://h:1"}) == load({}, environ)


def test_a_file_that_is_not_toml_is_refused_with_the_line(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_text("port = 1\nport\n")
    with pytest.raises(SettingsInvalid, match=r"config\.toml' is not valid TOML: .*line 2"):
        load({}, environ)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsInvalid, match=r"config\.toml' is not valid TOML"):
        load({}, environ)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(SettingsInvalid, match=r"config\.toml' is no regular file"):
        load({}, environ)


def test_a_file_that_leads_nowhere_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.toml").symlink_to("nowhere")
    with pytest.raises(SettingsInvalid, match=r"config\.toml' is no regular file, or a link to nothing"):
        load({}, environ)


@pytest.mark.parametrize(
    "line", ["port = true", "port = '9100'", "port = 9100.0", "provider = 7", "probe_seconds = '1'"]
)
def test_a_value_of_another_type_is_refused_in_the_file(
    tmp_path: Path, environ: dict[str, str], line: str
) -> None:
    (tmp_path / "config.toml").write_text(f"{line}\n")
    with pytest.raises(SettingsInvalid, match=r"^the key .* cannot be .*valid"):
        load({}, environ)


def test_a_value_that_is_overridden_must_be_valid_too(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_text("port = 70000\n")
    with pytest.raises(SettingsInvalid, match=r"the key 'port' of .* cannot be 70000"):
        load({"port": 9100}, environ)


def test_an_empty_home_is_refused() -> None:
    with pytest.raises(HomeUnsafe, match="empty"):
        load({"home": ""}, {})


def test_the_file_of_a_home_open_to_others_is_not_believed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "config.toml").write_text('provider = "script:/somewhere"\n')
    with pytest.raises(HomeUnsafe, match="its mode is 0755, not 0700"):
        load({"home": str(home)}, {})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (f"port = {'[' * 5000}", "is nested too deeply to be read"),
        (f"port = 0x{'f' * 4000}", "cannot be what is too large to be shown: "),
        # How deep Python itself writes differs from release to release.
        (f"port{'.a' * 8000} = 1", "cannot be "),
        ("#" * 16385, "is longer than 16384 bytes"),
        ("port = inf", "cannot be inf: "),
        ("port = 1979-05-27", "cannot be datetime.date(1979, 5, 27): "),
    ],
)
def test_what_no_reader_could_show_or_take_is_refused_in_a_sentence(
    tmp_path: Path, environ: dict[str, str], said: str, reason: str
) -> None:
    (tmp_path / "config.toml").write_text(said)
    with pytest.raises(SettingsInvalid, match=r"config\.toml") as caught:
        load({}, environ)
    assert reason in caught.value.message


def test_a_variable_whose_name_is_two_lines_is_refused_in_one(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match=r"^the variable 'SPL_A\\nB' is not a setting$"):
        load({}, environ | {"SPL_A\nB": "1"})


def test_the_price_of_a_model_is_written_in_the_file_by_its_name_and_zero_is_one(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "config.toml").write_text(
        'prices."llama3.2" = { input = 0, output = 0.0 }\n[prices."x/y"]\ninput = 0.1\noutput = 2\ncached = 0.05\n'
    )

    prices = load({"home": str(tmp_path)}, environ).prices

    assert {name: (price.input, price.output, price.cached) for name, price in prices.items()} == {
        "llama3.2": (0, 0, None),
        "x/y": (0.1, 2, 0.05),
    }


@pytest.mark.parametrize(
    "line",
    [
        "prices = 1", 'prices."m" = 1', 'prices."m" = { input = 1 }', 'prices."m" = { input = -1, output = 0 }',
        'prices."m" = { input = true, output = 0 }', 'prices."m" = { input = nan, output = 0 }',
        'prices."m" = { input = inf, output = 0 }', 'prices."m" = { input = "1", output = 0 }',
        'prices."m" = { input = 1, output = 1, per = "million" }', 'prices."" = { input = 1, output = 1 }',
        'prices."a\\nb" = { input = 1, output = 1 }',
    ],
)  # fmt: skip
def test_a_price_that_is_none_is_refused_by_its_file(
    tmp_path: Path, environ: dict[str, str], line: str
) -> None:
    (tmp_path / "config.toml").write_text(line + "\n")

    with pytest.raises(SettingsInvalid, match=r"the key 'prices' of .*config\.toml"):
        load({"home": str(tmp_path)}, environ)
