"""The named pairs answer through the three services, and speculation changes nothing of a greedy text."""

import pytest

from deploy.pairs import PAIRS
from deploy.system import System
from tests.e2e.calls import Caller, text_of, token_ids_of

# The first start may download and unpack gigabytes.
START_SECONDS = 3000.0
ASKED = {
    "smollm2": ("What is the capital of France?", "Paris"),
    "qwen2.5-coder": ("Write a Python function that adds two numbers. Answer with the code alone.", "def "),
}


@pytest.fixture(scope="module", params=PAIRS)
def named(request, tmp_path_factory):
    """Give each pair's name and a client of it."""
    pair = PAIRS[request.param]
    environment = {"COORDINATOR_PEER_WAIT_SECONDS": "120"}
    folder = tmp_path_factory.mktemp("named")
    models = {"target": pair.target, "draft": pair.draft}
    with System(folder, **models, environment=environment, start_seconds=START_SECONDS) as system:
        caller = Caller(system.address("coordinator"))
        yield request.param, caller
        caller.channel.close()


def answer(caller, question, gamma):
    """Return tokens, text and accepted draft tokens of a greedy answer."""
    events = caller.events(
        messages=[{"role": "user", "content": question}],
        sampling_params={"temperature": 0.0, "max_new_tokens": 32},
        speculation={"gamma": gamma},
    )
    return token_ids_of(events), text_of(events), events[-1].usage.spec_accepted_tokens


@pytest.mark.long
def test_a_named_pair_answers_as_its_target_alone(named):
    name, caller = named
    question, expected = ASKED[name]
    plain_tokens, plain_text, _ = answer(caller, question, 0)
    tokens, text, accepted = answer(caller, question, 4)
    assert expected in plain_text
    assert (tokens, text) == (plain_tokens, plain_text)
    assert accepted > 0


@pytest.mark.long
def test_a_named_pairs_answer_ends_by_itself(named):
    _, caller = named
    messages = [{"role": "user", "content": "Say hello and nothing else."}]
    events = caller.events(messages=messages, sampling_params={"temperature": 0.0, "max_new_tokens": 64})
    assert events[-1].matched_stop == "<|im_end|>"
