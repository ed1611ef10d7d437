"""Settings: where they come from, and every mistake shown at once."""

import os

import pytest
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.serving.settings import CommaList, ServiceSettings, SettingRow, describe


class ToySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TOY_")

    model: str
    """What to serve."""
    port: int = 50052
    """Port for calls."""
    draft_support_size: int = Field(default=64, ge=1, description="Entries of a draft distribution at most.")
    addresses: CommaList = ("localhost:1", "localhost:2")
    """Where the others are."""
    token: SecretStr = SecretStr("")
    """Shared secret."""
    warm: bool = False
    """Keep warm."""

    @model_validator(mode="after")
    def _fit(self):
        if self.model == "tiny" and self.warm:
            raise ValueError("tiny cannot be warm")
        return self


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("TOY_"):
            monkeypatch.delenv(name)


def problems_of(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        ToySettings.load(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_defaults_environment_and_flags_in_rising_order(monkeypatch):
    monkeypatch.setenv("TOY_MODEL", "a")
    monkeypatch.setenv("TOY_DRAFT_SUPPORT_SIZE", "32")
    monkeypatch.setenv("TOY_ADDRESSES", "a:1, b:2 ,c:3")
    settings = ToySettings.load(["--draft-support-size", "16", "--warm=true", "--metrics-port", "-1"])
    assert settings.model == "a"
    assert settings.host == "127.0.0.1"
    assert settings.port == 50052
    assert settings.draft_support_size == 16
    assert settings.addresses == ("a:1", "b:2", "c:3")
    assert settings.warm is True
    assert settings.metrics_port == -1


def test_unprefixed_variables_and_other_prefixes_do_not_matter(monkeypatch):
    monkeypatch.setenv("PORT", "7")
    monkeypatch.setenv("TOYS_PORT", "8")
    assert ToySettings.load(["--model", "a"]).port == 50052


def test_empty_list_is_empty_and_empty_entries_are_refused(capsys):
    assert ToySettings.load(["--model", "a", "--addresses", ""]).addresses == ()
    [problem] = problems_of(["--model", "a", "--addresses", "a:1,,b:2"], capsys)
    assert problem.startswith("--addresses: ")


def test_settings_are_read_once():
    settings = ToySettings.load(["--model", "a"])
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 3


def test_all_mistakes_are_shown_at_once(monkeypatch, capsys):
    monkeypatch.setenv("TOY_PROT", "1")
    monkeypatch.setenv("TOY_DRAFT_SUPPORT_SIZE", "0")
    monkeypatch.setenv("TOY_LOG_LEVEL", "loud")
    problems = problems_of(["--prot", "1", "--port", "many", "--warm"], capsys)
    assert sorted(problem.partition(":")[0] for problem in problems) == [
        "--port",
        "--prot",
        "--warm",
        "1",
        "TOY_DRAFT_SUPPORT_SIZE",
        "TOY_LOG_LEVEL",
        "TOY_MODEL",
        "TOY_PROT",
    ]
    text = "\n".join(problems)
    assert "TOY_PROT: unknown variable" in text
    assert "TOY_MODEL: is required (or --model)" in text
    assert "got 'many'" in text
    assert "'debug', 'info', 'warning' or 'error'" in text


def test_flags_are_not_abbreviated(capsys):
    problems = problems_of(["--model", "a", "--drain", "3"], capsys)
    assert problems[0] == "--drain: unknown flag or argument"


def test_rules_over_several_fields_are_shown(capsys):
    [problem] = problems_of(["--model", "tiny", "--warm", "yes"], capsys)
    assert "tiny cannot be warm" in problem


def test_secrets_stay_out_of_messages_and_output(monkeypatch, capsys):
    class Secretive(ToySettings):
        token: SecretStr = Field(min_length=20)

    monkeypatch.setenv("TOY_TOKEN", "hunter2")
    with pytest.raises(SystemExit):
        Secretive.load(["--model", "a"])
    printed = capsys.readouterr().err
    assert "TOY_TOKEN" in printed
    assert "hunter2" not in printed
    settings = ToySettings.load(["--model", "a"])
    assert "hunter2" not in repr(settings)
    assert settings.token.get_secret_value() == "hunter2"


def test_help_lists_every_flag(capsys):
    with pytest.raises(SystemExit) as caught:
        ToySettings.load(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(row.flag in shown and row.environment in shown for row in describe(ToySettings))


def test_table_of_settings():
    rows = {row.name: row for row in describe(ToySettings)}
    assert rows["model"] == SettingRow("model", "TOY_MODEL", "--model", "required", "What to serve.")
    assert rows["draft_support_size"] == SettingRow(
        "draft_support_size",
        "TOY_DRAFT_SUPPORT_SIZE",
        "--draft-support-size",
        "64",
        "Entries of a draft distribution at most.",
    )
    assert rows["addresses"].default == "localhost:1,localhost:2"
    assert rows["warm"].default == "false"
    assert rows["token"].default == ""
    assert rows["host"].meaning != ""
    assert all(row.meaning for row in rows.values())


@pytest.mark.parametrize("value", ["-2", "65536", "1.5", ""])
def test_ports_in_range(value, capsys):
    [problem] = problems_of(["--model", "a", f"--metrics-port={value}"], capsys)
    assert problem.startswith("--metrics-port: ")
