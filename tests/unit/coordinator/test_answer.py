"""Where an answer ends: stops before limits, exactly, at every place of a block."""

import pytest

from coordinator.answer import Answer
from coordinator.session import FinishReason
from coordinator.text import ByteDetokenizer, TextStream

EOS = 300


def answer(limit=100, stops=(), stop_ids=(EOS,)):
    stream = TextStream(ByteDetokenizer(lambda token: bytes([token]) if token < 256 else b""), stops)
    return Answer(stream, stop_ids=stop_ids, limit=limit, token_text=lambda token: f"<{token}>")


def ids(text):
    return list(text.encode())


@pytest.mark.parametrize("place", range(5))
def test_an_eos_anywhere_in_a_block_ends_it_there(place):
    block = ids("abcde")
    block[place] = EOS
    grown = answer()
    texts = grown.take(block)
    assert len(texts) == grown.length == place + 1
    assert "".join(texts) == "abcde"[:place]
    assert (grown.finish_reason, grown.matched_stop) == (FinishReason.STOP, "<300>")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_holds_exactly(limit):
    grown = answer(limit)
    assert len(grown.take(ids("abcdefgh"))) == limit
    assert (grown.finish_reason, grown.matched_stop) == (FinishReason.LENGTH, None)


def test_a_stop_at_the_limit_is_a_stop():
    by_id = answer(3)
    by_id.take([*ids("ab"), EOS])
    by_string = answer(3, stops=["bc"])
    texts = by_string.take(ids("abc"))
    assert by_id.finish_reason is by_string.finish_reason is FinishReason.STOP
    assert (texts, by_string.matched_stop) == (["a", "", ""], "bc")


def test_a_stop_string_over_several_blocks_and_what_follows_it():
    grown = answer(stops=["stop"])
    texts = grown.take(ids("a s")) + grown.take(ids("to")) + grown.take(ids("p and more"))
    assert "".join(texts) == "a "
    assert (grown.length, grown.matched_stop) == (6, "stop")


def test_the_end_sets_free_what_was_held_back():
    grown = answer(4, stops=["stop"])
    assert grown.take(ids("asto")) == ["a", "", "", "sto"]
    ended = answer(stops=["stop"])
    assert ended.take([*ids("sto"), EOS]) == ["", "", "", "sto"]


def test_a_stop_token_with_a_text_is_not_shown():
    grown = answer(stop_ids=ids("."))
    assert "".join(grown.take(ids("ab.c"))) == "ab"


def test_texts_do_not_depend_on_the_blocks():
    tokens = ids("über 🙂 sto stop")
    at_once, one_by_one = answer(stops=["stop"]), answer(stops=["stop"])
    assert at_once.take(tokens) == [text for token in tokens for text in one_by_one.take([token])]
