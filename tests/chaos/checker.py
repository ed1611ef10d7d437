"""What must hold whatever broke, checked over a history; pure.

- A request ends in exactly one way: well, after one event that finishes it, or with a status and without one.
- A request fails only as documented, and can be taken up again to its end, unless Redis has lost the session.
- No two observations of a position of a session disagree: nothing is committed twice, nothing shown is not committed.
- Greedy and coupled answers are those of an undisturbed run: whole where they ended well, else their beginning.
"""

from collections.abc import Iterator

from tests.chaos.history import OK, History, Request, Stored, Stream

# What a client is told whose system is not there; it may come back.
AWAY = {"UNAVAILABLE"}
# What it is told of a session that Redis has lost, wholly or in part, or that is claimed while a claim is lost.
LOST = {"NOT_FOUND", "DATA_LOSS", "ABORTED", "FAILED_PRECONDITION"}


def violations(history: History) -> list[str]:
    """Return what does not hold, one line each."""
    lost = history.lost()
    found = list(history.seen_wrong)
    for stream in history.streams:
        found += _of_stream(stream)
    for request in history.requests:
        found += _of_request(request, history, lost)
        found += _of_text(request, history)
    found += _of_positions(history, lost)
    for (session_id, turn), requests in history.turns().items():
        if session_id not in lost:
            found += _of_turn(f"answer {turn} of {session_id}", requests, history.stored.get(session_id))
    return found


def _of_stream(stream: Stream) -> Iterator[str]:
    name = f"a stream of {stream.session_id}"
    if stream.after_finish:
        yield f"{name} went on after its finish"
    if stream.status == OK and not stream.finishes:
        yield f"{name} ended OK without a finish"
    if stream.status != OK and stream.finishes and stream.reason:  # without one it is the connection that broke
        yield f"{name} finished and then failed with {stream.reason}"
    for (index, tokens), (following, _) in zip(stream.shown, stream.shown[1:], strict=False):
        if following != index + len(tokens):
            yield f"{name} showed token {following} where {index + len(tokens)} was due"


def _of_request(request: Request, history: History, lost: set[str]) -> Iterator[str]:
    name = f"answer {request.turn} of {request.session_id} ({request.ask})"
    if request.after_finish or request.finishes != (request.outcome == OK):
        yield f"{name} ended {request.outcome} after {request.finishes} finishes and {request.after_finish} events more"
    allowed = (
        {OK} | AWAY | (LOST if request.session_id in lost else set()) | ({"ABORTED"} if request.repeated else set())
    )
    if request.outcome not in allowed:
        yield f"{name} failed with {request.outcome} {request.reason}"
    if request.outcome != OK and any(start <= request.ended <= end for start, end in history.rolling):
        yield f"{name} was lost by a rolling restart: {request.outcome} {request.reason}"


def _of_text(request: Request, history: History) -> Iterator[str]:
    expected = history.expected.get((request.ask, request.turn))
    if expected is None:
        return
    tokens, text = expected.tokens, expected.text
    if request.outcome != OK:
        tokens, text = tokens[: len(request.tokens)], text[: len(request.text)]
    if (tuple(request.tokens), request.text) != (tokens, text):
        yield f"answer {request.turn} of {request.session_id} ({request.ask}) is not that of an undisturbed run"


def _of_positions(history: History, lost: set[str]) -> Iterator[str]:
    """Compare what is stored, what passed and what clients have.

    What passed of a lost session counts only if its client got it: before that, the client may have it made anew. What
    may differ each time is made anew, too, where a client asks for an answer again from its beginning.
    """
    repeatable = {ask for ask, _ in history.expected}
    seen: dict[tuple[str, int], int] = {}
    observed = [(session_id, 0, stored.token_ids) for session_id, stored in history.stored.items()]
    for each in history.requests:
        if each.session_id not in lost or each.ask in repeatable:
            observed.append((each.session_id, each.prompt_length, tuple(each.tokens)))
    for stream in history.streams:
        if stream.session_id not in lost:
            observed += [(stream.session_id, stream.prompt_length + index, tokens) for index, tokens in stream.shown]
    for session_id, start, tokens in observed:
        for position, token in enumerate(tokens, start):
            held = seen.setdefault((session_id, position), token)
            if held != token:
                yield f"{session_id} has {held} and {token} at position {position}"


def _of_turn(name: str, requests: list[Request], stored: Stored | None) -> Iterator[str]:
    """Check an answer of a session that Redis has not lost."""
    last = requests[-1]
    if last.outcome != OK:
        yield f"{name} was never had to its end: {last.outcome} {last.reason}"
    shown = max(requests, key=lambda each: len(each.tokens))
    if stored is None:
        if shown.tokens:
            yield f"{name} was shown and is not stored"
        return
    if stored.prompt_length == last.prompt_length and not stored.text.startswith(shown.text):
        yield f"{name} was shown otherwise than it is stored"
    if len(stored.token_ids) < last.prompt_length + len(shown.tokens):
        yield f"{name} was shown further than it is stored"
