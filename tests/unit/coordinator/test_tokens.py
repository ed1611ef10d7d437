"""The file of bearer tokens: whose is which, what is wrong with it, what changes while it is in use."""

import os
from hashlib import sha256
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from coordinator.doors import Caller, Doors
from coordinator.settings import CoordinatorSettings
from coordinator.tokens import Tokens
from specdec.errors import Unauthenticated
from tests.certificates import Authority


def line(principal, token):
    return f"{principal}:{sha256(token.encode()).hexdigest()}\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


def rewrite(path, text):
    """Replace the file as a mounted secret is replaced."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_several_tokens_of_one_principal_hold_at_once(path):
    path.write_text("# who may call\n\n" + line("ann", "old") + line("ann", "new") + line("bob", "his"))
    tokens = Tokens(str(path))
    assert [tokens.principal_of(token) for token in ("old", "new", "his")] == ["ann", "ann", "bob"]
    assert [tokens.principal_of(token) for token in ("", "ol", "oldd", "none")] == [None] * 4
    assert tokens.principal_of(sha256(b"old").hexdigest()) is None


def test_a_changed_file_counts_at_once(path):
    path.write_text(line("ann", "old"))
    tokens = Tokens(str(path))
    rewrite(path, line("ann", "old") + line("ann", "new"))
    assert [tokens.principal_of(token) for token in ("old", "new")] == ["ann", "ann"]
    rewrite(path, line("ann", "new"))
    assert [tokens.principal_of(token) for token in ("old", "new")] == [None, "ann"]


@pytest.mark.parametrize("broken", ["", "ann:secret\n", None])
def test_a_file_that_breaks_leaves_what_it_said(path, broken):
    path.write_text(line("ann", "old"))
    tokens = Tokens(str(path))
    if broken is None:
        path.unlink()
    else:
        rewrite(path, broken)
    assert tokens.principal_of("old") == "ann"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no token"),
        ("# nobody\n", "names no token"),
        ("hunter2\n", "line 1 "),
        (line("ann", "a") + "ann:hunter2\n", "line 2 "),
        (line("", "hunter2"), "line 1 "),
        (line("two words", "hunter2"), "line 1 "),
        (line("ann", "same") + line("bob", "same"), "line 2 "),
    ],
)
def test_what_is_wrong_is_told_without_what_stands_there(path, text, problem, capsys):
    path.write_text(text)
    with pytest.raises(SystemExit):
        CoordinatorSettings.load(["--tokens-file", str(path)])
    told = capsys.readouterr().err
    assert told.startswith("--tokens-file: ")
    assert problem in told
    assert "hunter2" not in told
    assert sha256(b"hunter2").hexdigest() not in told


@pytest.mark.parametrize("value", [b"Bearer \xff", "Bearer", "Bearer ", "Bearer  mine", "Bearer mine ", "mine", ""])
def test_what_is_no_bearer_token_is_nobodys(path, value):
    path.write_text(line("ann", "mine"))
    doors = Doors(CoordinatorSettings(tokens_file=str(path)))

    def admitted(value):
        metadata = (("authorization", value),)
        return doors.admit(SimpleNamespace(invocation_metadata=lambda: metadata, peer=lambda: "unix:"))

    assert admitted("Bearer mine") == Caller("ann", "ann")
    with pytest.raises(Unauthenticated):
        admitted(value)


def test_tokens_in_plaintext_are_warned_of(path, tmp_path):
    path.write_text(line("ann", "mine"))
    pair = Authority(tmp_path).issue("server")
    with capture_logs() as logged:
        Doors(CoordinatorSettings())
        Doors(CoordinatorSettings(tokens_file=str(path), tls_certificate=pair.certificate, tls_key=pair.key))
    assert not logged
    with capture_logs() as logged:
        Doors(CoordinatorSettings(tokens_file=str(path)))
    assert [each["log_level"] for each in logged] == ["warning"]


def test_a_file_that_is_not_there_is_told(path, capsys):
    with pytest.raises(SystemExit):
        CoordinatorSettings.load(["--tokens-file", str(path)])
    assert capsys.readouterr().err.startswith("--tokens-file: ")
