"""What comes over the wire is what the target alone says; the same seed says it again."""

import pytest

from specdec.v1 import common_pb2
from tests.prompts import PROMPTS
from tests.tiny_models import EOS

TOKENS = 48
TOKEN, BLOCK, COUPLED = (
    common_pb2.VERIFICATION_TOKEN,
    common_pb2.VERIFICATION_BLOCK,
    common_pb2.VERIFICATION_COUPLED,
)


def prompt_ids(text):
    return [byte % 250 for byte in text.encode()][:60]


def request(text, gamma, verification=TOKEN, **params):
    return {
        "token_ids": prompt_ids(text),
        "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True} | params,
        "speculation": {"gamma": gamma, "verification": verification},
    }


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
def test_greedy_equals_hugging_face_with_several_sessions_at_once(caller, tiny_reference, gamma, verification):
    prompts = PROMPTS[:8]
    found = caller.tokens_of_all([request(text, gamma, verification, temperature=0.0) for text in prompts])
    tiny_reference.model.generation_config.eos_token_id = None
    for text, answer in zip(prompts, found, strict=True):
        assert answer == tiny_reference.greedy(prompt_ids(text), TOKENS)


def test_greedy_stops_where_hugging_face_stops(caller, tiny_reference):
    tiny_reference.model.generation_config.eos_token_id = None
    free = tiny_reference.greedy(prompt_ids(PROMPTS[1]), TOKENS)
    stop = free[len(free) // 2]
    expected = free[: free.index(stop) + 1]
    tiny_reference.model.generation_config.eos_token_id = stop
    assert tiny_reference.greedy(prompt_ids(PROMPTS[1]), TOKENS) == expected
    assert stop != EOS
    found = caller.tokens(**request(PROMPTS[1], 4, temperature=0.0, stop_token_ids=[stop]))
    assert found == expected


def test_drafts_are_accepted_now_and_then(caller):
    usage = caller.events(**request(PROMPTS[0], 4, temperature=0.0))[-1].usage
    assert usage.completion_tokens == TOKENS
    assert 0 < usage.spec_accepted_tokens < usage.spec_draft_tokens
    assert usage.spec_accepted_tokens == sum(usage.accepted_per_position)


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
@pytest.mark.parametrize("gamma", [0, 3])
def test_the_same_seed_gives_the_same_text_alone_and_beside_others(caller, gamma, verification):
    seeded = request(PROMPTS[2], gamma, verification, temperature=1.0, top_p=0.95, seed=42)
    alone = caller.tokens(**seeded)
    others = [request(text, 4, TOKEN, temperature=1.2) for text in PROMPTS[3:9]]
    beside, *rest = caller.tokens_of_all([seeded, *others])
    assert beside == alone
    assert all(answer != alone for answer in rest)


def test_unseeded_requests_draw_afresh(caller):
    free = request(PROMPTS[2], 4, temperature=1.0)
    assert len({tuple(answer) for answer in caller.tokens_of_all([free] * 4)}) == 4


def test_coupled_gives_the_same_text_at_any_gamma(caller):
    answers = [caller.tokens(**request(PROMPTS[4], gamma, COUPLED, temperature=1.0, seed=9)) for gamma in (0, 1, 4, 8)]
    assert answers[1:] == answers[:1] * 3


@pytest.mark.parametrize("name", ["draft", "target", "coordinator", "redis"])
def test_the_same_seed_gives_the_same_text_after_a_restart(system, caller, name):
    seeded = request(PROMPTS[5], 4, temperature=1.0, seed=3)
    session = {"session_id": f"across-a-restart-of-{name}"}
    first = caller.events(**seeded, **session)
    before = caller.tokens(**seeded)
    system.restart(name)
    assert caller.tokens(**seeded) == before
    assert [token for event in first for token in event.token_ids] == before
    # The session lives on: its next answer stands on the first.
    more = seeded | {"expected_length": first[-1].session_length}
    assert caller.events(**more, **session)[-1].session_length == first[-1].session_length + 60 + TOKENS - (
        60 - len(prompt_ids(PROMPTS[5]))
    )
