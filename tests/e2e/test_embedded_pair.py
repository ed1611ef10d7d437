"""The default pair says what Hugging Face says of its target, SmolLM2-135M-Instruct, alone; near-ties are proven."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
import transformers

from deploy.pairs import DEFAULT_PAIR, PAIRS
from specdec.model.checkpoint import find_checkpoint
from specdec.parameters import SamplingParams
from specdec.v1 import common_pb2
from tests.e2e.calls import Caller
from tests.e2e.restarts import answers_across_a_restart, restartable
from tests.prompts import PROMPTS
from tests.reference import NEAR_TIE, Answer, Reference

PAIR = PAIRS[DEFAULT_PAIR]
GAMMAS = (0, 1, 4, 8)
TOGETHER = 8
END = 2  # <|im_end|>, the model's end-of-sequence token
NEWLINE, THE, COMMA = 198, 260, 28
BIAS = {NEWLINE: -100.0, THE: -2.5, COMMA: 3.0}
# Exact in float32, as they are carried.
SAMPLING = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 0.75, "top_p": 0.875},
    {"temperature": 1.0, "min_p": 0.0625},
    {"temperature": 1.0, "repetition_penalty": 1.25},
    {"temperature": 0.75, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"temperature": 1.0, "logit_bias": BIAS},
    {"temperature": 1.0, "logit_bias": {END: 8.0}, "min_new_tokens": 10},
    {"temperature": 1.25, "top_k": 50, "top_p": 0.9375, "repetition_penalty": 1.125, "logit_bias": {THE: 1.0}},
]


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(find_checkpoint(PAIR.target).folder)


@pytest.fixture(scope="module")
def reference(tokenizer):
    folder = find_checkpoint(PAIR.target).folder
    return Reference(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), len(tokenizer))


def running(folder, draft):
    environment = {"OMP_NUM_THREADS": "1", "COORDINATOR_PEER_WAIT_SECONDS": "120"}
    return restartable(folder, target=PAIR.target, draft=draft, environment=environment)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with running(tmp_path_factory.mktemp("pair"), PAIR.draft) as system:
        yield system


@pytest.fixture(scope="module")
def other_pair(tmp_path_factory):
    """The same target with a draft that is wrong nearly always."""
    with running(tmp_path_factory.mktemp("other-pair"), f"layers:8:{PAIR.target}") as system:
        yield system


@pytest.fixture
def caller(pair):
    caller = Caller(pair.address("coordinator"))
    yield caller
    caller.channel.close()


def processors(number, new_tokens):
    """Return what a prompt is decoded with: parameters of ours, and the same for Hugging Face's ``generate``."""
    late = 3 * new_tokens // 4
    return [
        ({}, {}),
        ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"logit_bias": BIAS}, {"sequence_bias": {(token,): bias for token, bias in BIAS.items()}}),
        # The end would come at once if it were not banned, and comes when it no longer is.
        (
            {"logit_bias": {END: 50.0}, "min_new_tokens": late},
            {"sequence_bias": {(END,): 50.0}, "min_new_tokens": late},
        ),
        (
            {"repetition_penalty": 0.875, "logit_bias": {THE: -2.5}, "min_new_tokens": new_tokens},
            {"repetition_penalty": 0.875, "sequence_bias": {(THE,): -2.5}, "min_new_tokens": new_tokens},
        ),
    ][number % 5]


def check_greedy(caller, reference, tokenizer, prompts, new_tokens):
    """Answer prompts, several at once, while the reference answers them one by one.

    Every gamma meets all processors.
    """

    def request(number):
        params, _ = processors(number, new_tokens)
        return {
            "prompt": prompts[number],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": new_tokens} | params,
            "speculation": {"gamma": GAMMAS[number % len(GAMMAS)]},
        }

    def expected(number):
        _, options = processors(number, new_tokens)
        return reference.greedy_answer(tokenizer(prompts[number]).input_ids, new_tokens, **options)

    for start in range(0, len(prompts), TOGETHER):
        numbers = range(start, min(start + TOGETHER, len(prompts)))
        with ThreadPoolExecutor(1) as beside:
            answers = [beside.submit(expected, number) for number in numbers]
            found = caller.tokens_of_all([request(number) for number in numbers])
        for answer, tokens in zip(answers, found, strict=True):
            answer.result().assert_same(tokens)


def test_greedy_equals_hugging_face(caller, reference, tokenizer):
    check_greedy(caller, reference, tokenizer, PROMPTS[:8], 16)


@pytest.mark.long
def test_greedy_equals_hugging_face_for_all_prompts(caller, reference, tokenizer):
    check_greedy(caller, reference, tokenizer, PROMPTS, 128)


def seeded(number, gamma):
    return {
        "prompt": PROMPTS[number],
        "sampling_params": params_of(number),
        "speculation": {"gamma": gamma, "verification": common_pb2.VERIFICATION_COUPLED},
    }


def params_of(number):
    return {"seed": 1000 + number, "max_new_tokens": 32} | SAMPLING[number]


@pytest.fixture(scope="module")
def chosen(reference, tokenizer):
    """Give what the target alone chooses with a seed's noise."""

    @cache
    def answer(number):
        return reference.coupled_answer(
            tokenizer(PROMPTS[number]).input_ids, SamplingParams(**params_of(number)), (END,)
        )

    return answer


def check_seeded(chosen, found):
    """Compare the answers to the first requests."""
    for number, tokens in enumerate(found):
        chosen(number).assert_same(tokens)


def test_a_seeded_answer_is_what_the_noise_chooses(caller, chosen):
    check_seeded(chosen, caller.tokens_of_all([seeded(number, gamma) for number, gamma in enumerate((0, 4))]))


@pytest.mark.long
def test_a_seeded_answer_is_the_same_alone_at_any_gamma(caller, chosen):
    for gamma in GAMMAS:
        check_seeded(chosen, [caller.tokens(**seeded(number, gamma)) for number in range(len(SAMPLING))])


@pytest.mark.long
@pytest.mark.parametrize("system", ["pair", "other_pair"])
def test_a_seeded_answer_is_the_same_in_a_batch_with_any_draft(request, chosen, system):
    caller = Caller(request.getfixturevalue(system).address("coordinator"))
    for shift in range(len(GAMMAS)):
        requests = [seeded(number, GAMMAS[(number + shift) % len(GAMMAS)]) for number in range(len(SAMPLING))]
        check_seeded(chosen, caller.tokens_of_all(requests))
    caller.channel.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["draft", "target", "coordinator", "redis"])
def test_a_seeded_answer_is_the_same_across_a_restart(pair, chosen, name):
    requests = [seeded(number, GAMMAS[number % len(GAMMAS)]) for number in range(len(SAMPLING))]
    check_seeded(chosen, answers_across_a_restart(pair, name, requests))


def test_what_counts_as_the_same_text():
    answer = Answer(tokens=[5, 6, 7], seconds=[1, 2, 3], gaps=[1.0, NEAR_TIE / 2, 1.0])
    answer.assert_same([5, 6, 7])
    answer.assert_same([5, 2, 9, 9])
    for other in ([5, 6, 3], [5, 3, 7], [1, 6, 7], [5, 6], [5, 6, 7, 8]):
        with pytest.raises(AssertionError):
            answer.assert_same(other)


def test_a_chat_answer_is_sensible_and_ends_by_itself(caller):
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    events = caller.events(messages=messages, sampling_params={"max_new_tokens": 40}, speculation={"gamma": 4})
    text = "".join(event.text for event in events)
    assert "Paris" in text
    assert "<|im_end|>" not in text
    assert events[-1].matched_stop == "<|im_end|>"
