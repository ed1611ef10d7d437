"""Sessions as clients use them: continued, resumed, looked at, stopped, deleted, by several at once."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import grpc
import pytest
import transformers

from specdec.v1 import common_pb2
from specdec.v1 import generation_pb2 as v1
from tests.e2e.calls import SECONDS, Caller, text_of, token_ids_of
from tests.tiny_models import EOS, VOCABULARY

COUPLED = common_pb2.VERIFICATION_COUPLED
LETTERS = {VOCABULARY.index(letter): 100.0 for letter in "abcdefgh"}


def params(tokens, **more):
    return {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True} | more


def letters(tokens, **more):
    """Return parameters of an answer that is made of a few letters, in no obvious order."""
    return params(tokens, temperature=1.0, seed=5, logit_bias=LETTERS, **more)


@pytest.fixture(scope="session")
def tokenizer(tiny_target):
    return transformers.AutoTokenizer.from_pretrained(tiny_target)


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["prompt", "token_ids", "messages"])
def test_a_finished_session_continues(caller, tokenizer, kind):
    first = caller.events(messages=[{"role": "user", "content": "hello"}], sampling_params=params(9))
    session_id, held = first[-1].session_id, caller.session(first[-1].session_id).token_ids
    more, written = {
        "prompt": (" and more", " and more"),
        "token_ids": (ids_of(tokenizer, " and more"), " and more"),
        # The turn that the answer left open is closed first.
        "messages": (
            [{"role": "user", "content": "and more"}],
            "<eos>\n<bos>user: and more<eos>\n<bos>assistant: ",
        ),
    }[kind]
    second = caller.events(session_id=session_id, sampling_params=params(9), **{kind: more})
    expected = [*held, *ids_of(tokenizer, written)]
    session = caller.session(session_id)
    assert session.token_ids[: session.prompt_length] == expected
    assert session.token_ids[session.prompt_length :] == token_ids_of(second)
    # It says what a new session says that is given all of it at once.
    assert token_ids_of(second) == caller.tokens(token_ids=expected, sampling_params=params(9))
    usage = second[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(expected), 9)
    # The caches were kept warm: all but the last token of the first answer is there still.
    assert usage.cached_tokens == len(held) - 1


def test_a_turn_that_has_ended_is_not_closed_again(caller, tokenizer):
    messages = [{"role": "user", "content": "hello"}]
    ending = {EOS: 100.0}
    first = caller.events(messages=messages, sampling_params={"temperature": 0.0, "logit_bias": ending})
    assert token_ids_of(first) == [EOS]
    assert (first[-1].finish_reason, first[-1].matched_stop, text_of(first)) == (v1.FINISH_REASON_STOP, "<eos>", "")
    second = caller.events(session_id=first[-1].session_id, messages=messages, sampling_params=params(3))
    held = caller.session(first[-1].session_id).token_ids
    opening = "<bos>user: hello<eos>\n<bos>assistant: "
    assert held[: second[-1].usage.prompt_tokens] == ids_of(tokenizer, f"{opening}<eos>\n{opening}")


@pytest.mark.parametrize("gamma", [0, 3])
def test_a_finished_answer_is_repeated_from_any_token_on(caller, gamma):
    stop = {"stop": ["zz"]}  # never comes, and text is held back for it all the same
    events = caller.events(prompt="so", sampling_params=letters(12, **stop), speculation={"gamma": gamma})
    tokens, texts = token_ids_of(events), [text for event in events for text in event.token_texts]
    assert (len(tokens), "".join(texts)) == (12, text_of(events))
    for index in range(13):
        resumed = caller.events(session_id=events[-1].session_id, resume_from=index)
        assert token_ids_of(resumed) == tokens[index:]
        assert text_of(resumed) == "".join(texts[index:])
        assert [source for event in resumed for source in event.sources] == sources_of(events)[index:]
        last = resumed[-1]
        assert (last.finish_reason, last.session_length) == (events[-1].finish_reason, events[-1].session_length)
        assert last.usage == events[-1].usage


def sources_of(events):
    return [source for event in events for source in event.sources]


def test_more_than_was_committed_cannot_be_resumed(caller):
    last = caller.events(prompt="so", sampling_params=params(4))[-1]
    problem = caller.refusal(session_id=last.session_id, resume_from=5)
    assert (problem.code, problem.reason, problem.field) == ("DATA_LOSS", "DATA_LOST", "resume_from")
    assert caller.refusal(session_id="unheard-of", resume_from=0).code == "NOT_FOUND"


def test_a_repeated_request_is_not_appended_twice(caller):
    request = {"session_id": "once", "prompt": "so", "sampling_params": params(4)}
    first = caller.events(**request, expected_length=0)[-1]
    assert first.session_length == 6
    problem = caller.refusal(**request, expected_length=0)
    assert (problem.code, problem.reason, problem.field) == ("ABORTED", "LENGTH_MISMATCH", "expected_length")
    assert caller.refusal(**request, expected_length=7).reason == "LENGTH_MISMATCH"
    assert caller.events(**request, expected_length=6)[-1].session_length == 12
    absent = request | {"session_id": "not-yet-there"}
    assert caller.refusal(**absent, expected_length=1).reason == "LENGTH_MISMATCH"


def test_a_session_says_what_it_holds(caller):
    asked = letters(10, stop=["ab", "cd"], top_k=7)
    events = caller.events(prompt="so", sampling_params=asked, speculation={"gamma": 2, "verification": COUPLED})
    session = caller.session(events[-1].session_id)
    assert session.state == v1.SESSION_STATE_FINISHED
    assert session.token_ids == [*session.token_ids[:2], *token_ids_of(events)]
    assert session.prompt_length == 2
    assert session.text == text_of(events)
    assert session.sources == sources_of(events)
    assert (session.sampling_params.seed, session.sampling_params.top_k) == (5, 7)
    assert session.sampling_params.stop == ["ab", "cd"]
    assert (session.speculation.gamma, session.speculation.verification) == (2, COUPLED)
    assert (session.finish_reason, session.matched_stop) == (events[-1].finish_reason, events[-1].matched_stop)
    assert session.usage == events[-1].usage


def test_a_deleted_session_is_gone_and_its_name_is_free(caller):
    request = {"session_id": "short-lived", "prompt": "so", "sampling_params": params(4)}
    tokens = caller.tokens(**request)
    caller.stub.DeleteSession(v1.DeleteSessionRequest(session_id="short-lived"), timeout=SECONDS)
    for call, message in (
        (caller.stub.GetSession, v1.GetSessionRequest(session_id="short-lived")),
        (caller.stub.DeleteSession, v1.DeleteSessionRequest(session_id="short-lived")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(message, timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caller.refusal(session_id="short-lived", resume_from=0).code == "NOT_FOUND"
    assert caller.tokens(**request, expected_length=0) == tokens


@pytest.mark.parametrize("gamma", [0, 2, 5])
def test_a_stop_string_ends_an_answer_across_rounds(caller, gamma):
    request = {"prompt": "so", "speculation": {"gamma": gamma, "verification": COUPLED}}
    free = caller.events(**request, sampling_params=letters(40))
    whole = text_of(free)
    assert len(whole) == len(token_ids_of(free)) == 40
    # Stops that begin with the last letter of a round and end within the next.
    ends = [event.index + len(event.token_ids) for event in free[4:9]]
    for stop in {whole[end - 1 : end + 2] for end in ends}:
        at = whole.index(stop)
        events = caller.events(**request, sampling_params=letters(40, stop=["zzz", stop]))
        assert text_of(events) == whole[:at]
        assert token_ids_of(events) == token_ids_of(free)[: at + 3]
        assert (events[-1].finish_reason, events[-1].matched_stop) == (v1.FINISH_REASON_STOP, stop)
        assert events[-1].session_length == 2 + at + 3
        assert events[-1].usage.completion_tokens == at + 3
        # What might begin the stop is never shown before that is known.
        assert all(whole[:at].startswith(text_of(events[: index + 1])) for index in range(len(events)))


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_characters_of_several_tokens_stream_whole(caller, tokenizer, gamma):
    bytes_of = dict(zip(ids_of(tokenizer, "ä€"), "ä€".encode(), strict=True))
    sampled = params(60, temperature=1.0, seed=3, logit_bias=dict.fromkeys(bytes_of, 100.0))
    events = caller.events(prompt="so", sampling_params=sampled, speculation={"gamma": gamma})
    spelled = bytes(bytes_of[token] for token in token_ids_of(events))
    assert text_of(events) == spelled.decode("utf-8", "replace")
    # A round ended within a character, which came whole with the next one.
    split = [later.text[0] for event, later in pairwise(events) if not event.token_texts[-1] and later.text]
    assert set(split) - {"\ufffd"}


def test_two_clients_get_what_each_would_get_alone(system):
    callers = [Caller(system.address("coordinator")) for _ in range(2)]
    requests = [
        {"prompt": prompt, "sampling_params": letters(60), "speculation": {"gamma": gamma}}
        for prompt, gamma in (("first", 3), ("second, and longer", 5))
    ]
    alone = [caller.tokens(**request) for caller, request in zip(callers, requests, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        together = [pool.submit(caller.tokens, **request) for caller, request in zip(callers, requests, strict=True)]
        assert [each.result() for each in together] == alone
    assert alone[0] != alone[1]
    for caller in callers:
        caller.channel.close()
