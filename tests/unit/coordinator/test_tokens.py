"""The file of bearer tokens: whose is which, what is wrong with it, what changes while it is in use."""

import os
from hashlib import sha256
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from coordinator.doors import Caller, Doors
from coordinator.settings import CoordinatorSettings
from coordinator.tokens import UNREADABLE_SECONDS, Tokens
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


@pytest.mark.parametrize("sound", [line("ann", "new"), ""], ids=["others", "nothing else"])
@pytest.mark.parametrize(
    "wrong", [b"ann:hunter2\n", b"\xff\xfe\n", f"bob:{sha256(b'new').hexdigest()}\n".encode(), b""]
)
def test_a_token_that_is_gone_is_revoked_whatever_else_is_wrong(path, sound, wrong):
    path.write_text(line("ann", "hunter2") + line("ann", "new"))
    tokens = Tokens(str(path))
    path.write_bytes(sound.encode() + wrong)
    with capture_logs() as logged:
        found = [tokens.principal_of(token) for token in ("hunter2", "new")]
    assert found == [None, "ann" if sound else "bob" if wrong.startswith(b"bob") else None]
    assert "hunter2" not in str(logged)
    errors = [each for each in logged if each["log_level"] == "error"]
    unsound = wrong and (sound or not wrong.startswith(b"bob"))
    assert [each["lines"] for each in errors if "lines" in each] == ([[2 if sound else 1]] if unsound else [])
    assert len(errors) == bool(unsound) + (found == [None, None])


@pytest.mark.parametrize("state", ["deleted", "no file"])
def test_a_file_that_cannot_be_read_counts_for_a_minute(path, state):
    path.write_text(line("ann", "old"))
    now = [0.0]
    tokens = Tokens(str(path), clock=lambda: now[0])
    path.unlink()
    if state == "no file":
        path.mkdir()
    with capture_logs() as logged:
        now[0] = 1000.0
        assert tokens.principal_of("old") == "ann"
        now[0] += UNREADABLE_SECONDS
        assert tokens.principal_of("old") == "ann"
        now[0] += 1.0
        assert [tokens.principal_of("old") for _ in range(3)] == [None] * 3
    assert [each["log_level"] for each in logged] == ["error"] * 2, "when it is noticed, when they are revoked"
    if state == "no file":
        path.rmdir()
    path.write_text(line("ann", "old"))
    assert tokens.principal_of("old") == "ann"
    path.unlink()
    assert tokens.principal_of("old") == "ann", "the minute begins anew"


def test_a_file_that_may_no_longer_be_read_is_noticed_though_it_is_the_same(path, monkeypatch):
    path.write_text(line("ann", "old"))
    now = [0.0]
    tokens = Tokens(str(path), clock=lambda: now[0])
    path.chmod(0)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_text", refused)  # those who run the tests may be allowed everything
    assert tokens.principal_of("old") == "ann"
    now[0] = UNREADABLE_SECONDS + 1
    assert tokens.principal_of("old") is None


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
