"""Incremental detokenisation and stop strings: exact for any tokens, whatever the chunking."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.text import ByteDetokenizer, RunDetokenizer, TextStream
from coordinator.tokenizer import ByteTokenizer

WORDS = ["a", " the", "b", "ab", "c", "stop", "€", " ", "\n"]


def bytes_stream(stops=()):
    return TextStream(ByteTokenizer().detokenizer(), stops)


def words_stream(stops=(), words=WORDS):
    return TextStream(ByteDetokenizer(lambda token: words[token].encode()), stops)


def feed_all(stream, tokens):
    pieces = []
    for token in tokens:
        pieces.append(stream.feed(token))
        if stream.matched is not None:
            break
    return pieces, stream.finish()


@given(st.lists(st.integers(0, 300)))
def test_pieces_concatenate_to_the_whole_text_of_any_bytes(tokens):
    pieces, rest = feed_all(bytes_stream(), tokens)
    assert "".join(pieces) + rest == bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def test_a_character_split_over_tokens_appears_with_its_last_byte():
    pieces, rest = feed_all(bytes_stream(), list("a🙂b".encode()))
    assert pieces == ["a", "", "", "", "🙂", "b"]
    assert rest == ""


def test_an_unfinished_character_is_not_lost_at_the_end():
    pieces, rest = feed_all(bytes_stream(), list("a🙂".encode())[:-1])
    assert "".join(pieces) + rest == "a\ufffd"


def test_runs_of_byte_tokens_are_text_or_replacements_as_a_whole():
    pieces = {1: 0xE2, 2: 0x82, 3: 0xAC, 4: 0xFF, 5: "x", 6: None}
    valid, rest = feed_all(TextStream(RunDetokenizer(pieces.get)), [1, 2, 6, 3, 5])
    assert "".join(valid) + rest == "€x"
    broken, rest = feed_all(TextStream(RunDetokenizer(pieces.get)), [1, 2, 3, 4, 5])
    assert "".join(broken) + rest == "\ufffd" * 4 + "x"


def test_a_stop_of_byte_tokens_is_found_with_its_last_byte():
    pieces = {1: 0xE2, 2: 0x82, 3: 0xAC, 5: "x"}
    stream = TextStream(RunDetokenizer(pieces.get), ["x€"])
    texts, rest = feed_all(stream, [5, 5, 1, 2, 3, 5])
    assert (stream.matched, texts, rest) == ("x€", ["", "x", "", "", ""], "")


def test_a_stop_split_over_tokens_is_held_back_and_cut():
    stream = words_stream(["stop\nb"])
    texts, rest = feed_all(stream, [0, 5, 8, 2, 0])
    assert (stream.matched, texts, rest) == ("stop\nb", ["a", "", "", ""], "")


def test_held_back_text_comes_when_it_was_no_stop():
    stream = words_stream(["stop\nb"])
    texts, rest = feed_all(stream, [5, 8, 0, 5])
    assert texts == ["", "", "stop\na", ""]
    assert rest == "stop"


def test_of_stops_completed_by_one_token_the_first_character_by_character_counts():
    stream = words_stream(["xabc", "ab", "b"], words=["xabc"])
    texts, rest = feed_all(stream, [0])
    assert (stream.matched, texts, rest) == ("ab", ["x"], "")


def test_one_stop_the_prefix_of_another():
    stream = words_stream(["abc", "ab"])
    texts, _ = feed_all(stream, [4, 0, 2, 4])
    assert (stream.matched, texts) == ("ab", ["c", "", ""])


def test_a_replacement_is_not_taken_for_a_stop_while_its_character_is_unfinished():
    stream = bytes_stream(["\ufffd"])
    texts, _ = feed_all(stream, list("€".encode()))
    assert stream.matched is None
    assert "".join(texts) == "€"


@given(
    st.lists(st.integers(0, len(WORDS) - 1), max_size=30),
    st.lists(st.text("abc st€", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=2),
)
def test_text_ends_before_the_stop_that_is_completed_first(tokens, stops, slices):
    whole = "".join(WORDS[token] for token in tokens)
    stops = [*stops, *filter(None, (whole[start : start + length] for start, length in slices))]
    stream = words_stream(stops)
    texts, rest = feed_all(stream, tokens)
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    if ends:
        assert "".join(texts) + rest == whole[: min(ends)[1]]
        assert len("".join(WORDS[token] for token in tokens[: len(texts) - 1])) < min(ends)[0]
    else:
        assert stream.matched is None
        assert "".join(texts) + rest == whole
