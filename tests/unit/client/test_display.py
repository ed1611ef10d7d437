"""Marks follow the token's source; text on a terminal is harmless; standard output holds the text alone."""

import io
import sys

import pytest

from client.display import Display, marked, pieces
from client.measurement import Measurement
from specdec.v1 import generation_pb2 as v1

ACCEPTED, CORRECTION = v1.TOKEN_SOURCE_ACCEPTED, v1.TOKEN_SOURCE_CORRECTION
EVENT = v1.GenerateResponse(
    token_ids=[1, 2, 3], sources=[ACCEPTED, ACCEPTED, CORRECTION], token_texts=["He", "", "llo\n"], text="Hello\n"
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def at_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown(event, **form):
    Display(**{"show_tokens": False, "json": False, **form}).show(event)
    return sys.stdout.getvalue()


def test_pieces_pair_text_with_source():
    assert pieces(EVENT) == [("He", ACCEPTED), ("llo\n", CORRECTION)]


def test_pieces_without_token_texts_have_no_source():
    assert pieces(v1.GenerateResponse(token_ids=[1], sources=[ACCEPTED], text="a")) == [("a", 0)]
    assert pieces(v1.GenerateResponse(token_ids=[1], sources=[ACCEPTED], token_texts=["b"], text="a")) == [("a", 0)]
    assert pieces(v1.GenerateResponse()) == []


def test_marked():
    assert marked("a", ACCEPTED, colour=False) == "[a]"
    assert marked("a", ACCEPTED, colour=True) == "\x1b[32ma\x1b[0m"
    assert marked("a", v1.TOKEN_SOURCE_UNSPECIFIED, colour=True) == "a"


def test_colours_on_a_terminal(monkeypatch):
    at_a_terminal(monkeypatch)
    assert shown(EVENT, show_tokens=True) == "\x1b[32mHe\x1b[0m\x1b[31mllo\n\x1b[0m"


def test_no_color_gives_brackets(monkeypatch):
    at_a_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(EVENT, show_tokens=True) == "[He]<llo\n>"


def test_terminal_gets_no_control_characters(monkeypatch):
    at_a_terminal(monkeypatch)
    assert shown(v1.GenerateResponse(text="a\x1b[2J\x9b\tb\n")) == "a\ufffd[2J\ufffd\tb\n"


def test_pipe_gets_the_text_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert shown(v1.GenerateResponse(text="a\x1b[2J\r\n")) == "a\x1b[2J\r\n"


def test_open_line_is_closed_once(capsys):
    display = Display(show_tokens=False, json=False)
    display.show(v1.GenerateResponse(text="a"))
    display.end_line()
    display.end_line()
    assert capsys.readouterr().out == "a\n"


@pytest.mark.parametrize(("form", "legend"), [({}, False), ({"show_tokens": True}, True)])
def test_legend_goes_to_standard_error(capsys, form, legend):
    Display(**{"show_tokens": False, "json": False, **form}).legend()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("[accepted], <correction>, {bonus}, (target only)" in captured.err) == legend


def test_legend_names_colours_on_a_terminal(monkeypatch):
    at_a_terminal(monkeypatch)
    Display(show_tokens=True, json=False).legend()
    assert "\x1b[32maccepted (green)\x1b[0m" in sys.stderr.getvalue()


@pytest.mark.parametrize(("plain_text", "same"), [("a", True), ("b", False)])
def test_comparison_says_what_was_gained(capsys, plain_text, same):
    fast, slow = Measurement(tokens=30, seconds=1.5, text="a"), Measurement(tokens=30, seconds=3.0, text=plain_text)
    Display(show_tokens=False, json=False).comparison(fast, slow)
    err = capsys.readouterr().err
    assert "2.00x" in err
    assert ("Sampled text" in err) != same
