"""Fuzzes the way from text to tokens and back. ``python -m tests.fuzz.text_path``."""

from coordinator.text import ByteDetokenizer, Detokenizer, RunDetokenizer, TextStream
from coordinator.tokenizer import ModelTokenizer
from specdec.errors import InvalidParameter
from tests.unit.coordinator.test_tokenizer import MAKERS

BYTES = b"ab st\xe2\x82\xac\xff\xf0\x9f\x99\x82"  # what the pieces of the detokenisers are made of
TOKENIZERS = [ModelTokenizer(maker) for maker in MAKERS.values()]


def fuzz(data: bytes) -> None:
    """Take the first byte as the number of bytes that are stops, the rest as tokens, or as a conversation."""
    size, rest = (data[0] % 24, data[1:]) if data else (0, b"")
    stops = [stop for stop in rest[:size].decode("utf-8", "replace").split("|") if stop][:16]
    tokens = list(rest[size:])
    for detokenizer in (_bytes, _run):
        _stream(detokenizer, tokens, stops)
    _chat(rest.decode("utf-8", "replace"), tokens)


def _stream(make: "type[Detokenizer]", tokens: list[int], stops: list[str]) -> None:
    """What is released is the text up to the stop that is completed first, and never taken back."""
    whole = TextStream(make())
    text = "".join(map(whole.feed, tokens)) + whole.finish()
    stream, released = TextStream(make(), stops), ""
    for token in tokens:
        released += stream.feed(token)
        assert text.startswith(released) or stream.matched
        if stream.matched is not None:
            break
    released += stream.finish()
    if stream.matched is None:
        assert released == text
    else:
        assert stream.matched in stops
        assert not any(stop in released for stop in stops)


def _chat(text: str, committed: list[int]) -> None:
    """A conversation is tokens, or is refused by name; tokens of a session before it may be any."""
    role, _, content = text.partition("|")
    messages = [{"role": role, "content": content}, {"role": "user", "content": text}]
    for tokenizer in TOKENIZERS:
        for before in ([], committed[:8]):
            try:
                ids = tokenizer.encode_chat(messages, before)
            except InvalidParameter as error:
                if error.field != "messages":
                    raise
            else:
                assert all(isinstance(token, int) for token in ids)
        tokenizer.encode(text, begin=not committed)


def _bytes() -> Detokenizer:
    return ByteDetokenizer(lambda token: BYTES[token % 16 : token % 16 + 1 + token // 100])


def _run() -> Detokenizer:
    def piece(token: int) -> str | int | None:
        return (BYTES[token % len(BYTES)], chr(97 + token % 5), None)[token % 3]

    return RunDetokenizer(piece)


if __name__ == "__main__":
    from tests.fuzz.coverage_guided import run

    run(fuzz, ["coordinator.text", "coordinator.tokenizer"])
