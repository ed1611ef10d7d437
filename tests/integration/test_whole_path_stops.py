"""Where answers end over the whole path: at every place of a block, in everything that is kept of them.

The draft is the target itself, so that every block is accepted whole and the tokens after a stop were accepted, too.
"""

import struct
from functools import cache
from itertools import accumulate, chain, product

import pytest
import pytest_asyncio

from coordinator.tokenizer import ByteTokenizer
from specdec.model.loading import load_model
from tests.integration.whole_path import COUPLED, LENGTH, STOP, whole_path_of

MODEL = "synthetic:seed=5,order=3,vocabulary=128"  # every token is one ASCII character, 127 ends an answer
EOS = 127
PROMPT = [3, 1, 4]
WAYS = {"greedy": {"temperature": 0.0}, "coupled": {"temperature": 1.0, "seed": 8}}
GAMMAS = range(5)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server):
    async with whole_path_of(redis_server.url, MODEL, MODEL) as path:
        yield path


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def free(path):
    """What each way answers when nothing stops it."""
    return {way: await path.answer(**request(way, 0, ignore_eos=True)) for way in WAYS}


def request(way, gamma, **params):
    return {
        "token_ids": PROMPT,
        "sampling_params": WAYS[way] | {"max_new_tokens": 20, "logprobs": 1} | params,
        "speculation": {"gamma": gamma, "verification": COUPLED},
    }


@cache
def prompt_that_ends_at(place):
    """Return a prompt whose greedy answer has the end token first at a place."""
    model = load_model(MODEL)
    for prompt in product(range(EOS), repeat=2):
        tokens = list(prompt)
        while EOS not in tokens and len(tokens) <= place + len(prompt):
            tokens.append(int(model.law(tokens).argmax()))
        if tokens[-1] == EOS and len(tokens) == place + len(prompt) + 1:
            return list(prompt)
    raise AssertionError(f"no answer ends at {place}")


def text_of(tokens):
    return bytes(tokens).decode()


def first_places(tokens):
    """Places of tokens that were not there before: a stop id may be made of them."""
    return [place for place, token in enumerate(tokens) if token not in tokens[:place]]


async def ends(path, answer, tokens, text, prompt=PROMPT):
    """Check that everything there is of a stopped answer ends with the last of ``tokens``."""
    assert answer.tokens == tokens
    assert answer.text == text
    assert answer.last.finish_reason == STOP
    assert [each.token_id for each in answer.logprobs] == tokens
    assert len(answer.sources) == len(tokens)
    assert answer.usage.completion_tokens == len(tokens)
    assert answer.usage.spec_accepted_tokens == sum(answer.usage.accepted_per_position) <= len(tokens)
    assert answer.last.session_length == len(prompt) + len(tokens)
    session_id = answer.last.session_id
    session = await path.session(session_id)
    committed = [*prompt, *tokens]
    assert list(session.token_ids) == committed
    assert (session.text, session.usage, session.matched_stop) == (text, answer.usage, answer.last.matched_stop)
    redis = path.coordinator.servicer._store._redis
    stored = await redis.get(f"specdec:{{{session_id}}}:tokens")
    assert stored == struct.pack(f"<{len(committed)}I", *committed)
    await path.caches_released()
    for server in (path.target, path.draft):
        held = server.cached(session_id)
        assert held == committed[: len(held)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gamma", GAMMAS)
async def test_a_stop_id_at_every_place_of_a_block_ends_everything_there(path, free, gamma, way):
    whole = free[way].tokens
    places = [place for place in first_places(whole) if place <= 2 * gamma + 2]
    assert {place % (gamma + 1) for place in places} == set(range(gamma + 1))
    for place in places:
        answer = await path.answer(**request(way, gamma, stop_token_ids=[whole[place]]))
        await ends(path, answer, whole[: place + 1], text_of(whole[:place]))
        assert answer.last.matched_stop == text_of([whole[place]])


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_the_end_token_at_every_place_of_a_block_ends_everything_there(path, gamma):
    for place in range(gamma + 3):
        prompt = prompt_that_ends_at(place)
        answer = await path.answer(**request("greedy", gamma) | {"token_ids": prompt})
        assert answer.tokens.index(EOS) == place
        await ends(path, answer, answer.tokens, text_of(answer.tokens[:-1]), prompt)
        ignored = await path.answer(**request("greedy", gamma, ignore_eos=True) | {"token_ids": prompt})
        assert (ignored.tokens[: place + 1], len(ignored.tokens)) == (answer.tokens, 20)


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_no_stop_comes_before_the_least_number_of_tokens(path, free, gamma):
    stop = free["greedy"].tokens[0]
    for least in range(gamma + 4):
        asked = {"min_new_tokens": least, "stop_token_ids": [stop]}
        answer = await path.answer(**request("greedy", gamma, **asked))
        plain = await path.answer(**request("greedy", 0, **asked))
        assert (answer.tokens, answer.text) == (plain.tokens, plain.text)
        assert stop not in answer.tokens[:least]
        assert len(answer.tokens) > least


async def test_a_least_number_of_tokens_with_a_vocabulary_of_ends_alone_is_refused(redis_server):
    tiny = "synthetic:vocabulary=8,order=1"
    async with whole_path_of(redis_server.url, tiny, tiny) as path:
        for way, gamma in product(WAYS, (0, 3)):
            asked = request(way, gamma, min_new_tokens=1, stop_token_ids=[*range(7)])
            shown, error = await path.failure(**asked | {"session_id": f"ends-{way}-{gamma}"})
            assert (error.code, error.field) == ("INVALID_ARGUMENT", "sampling_params.min_new_tokens")
            assert not shown.events
            one_left = await path.answer(**request(way, gamma, min_new_tokens=1, stop_token_ids=[*range(6)]))
            assert one_left.tokens[0] == 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gamma", GAMMAS)
async def test_stop_strings_at_every_place_and_of_every_length(path, free, gamma, way):
    whole = text_of(free[way].tokens)
    for size in (1, 2, gamma + 1, gamma + 3):
        for start in range(2 * gamma + 3):
            stop = whole[start : start + size]
            at = whole.index(stop)
            answer = await path.answer(**request(way, gamma, stop=[stop]))
            assert answer.last.matched_stop == stop
            assert answer.tokens == free[way].tokens[: at + size]
            assert answer.text == whole[:at]
            assert len(answer.logprobs) == answer.usage.completion_tokens == at + size
    await ends(path, answer, answer.tokens, answer.text)


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_of_several_stops_the_one_completed_first_counts(path, free, gamma):
    whole, tokens = text_of(free["coupled"].tokens), free["coupled"].tokens
    early, late = whole[5:8], whole[3:12]  # begins later and is completed first
    answer = await path.answer(**request("coupled", gamma, stop=["never", late, early]))
    await ends(path, answer, tokens[:8], whole[:5])
    prefix = await path.answer(**request("coupled", gamma, stop=[late, late[:2]]))
    await ends(path, prefix, tokens[:5], whole[:3])
    both = await path.answer(**request("coupled", gamma, stop=[whole[4:8]], stop_token_ids=[tokens[6]]))
    assert tokens.index(tokens[6]) == 6
    await ends(path, both, tokens[:7], whole[:6])


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_a_stop_at_the_limit_is_a_stop_and_one_past_it_is_not(path, free, gamma):
    whole, tokens = text_of(free["coupled"].tokens), free["coupled"].tokens
    for limit in range(1, gamma + 3):
        stop = whole[max(0, limit - 2) : limit]
        answer = await path.answer(**request("coupled", gamma, stop=[stop], max_new_tokens=limit))
        await ends(path, answer, tokens[:limit], whole[: max(0, limit - 2)])
        past = whole[limit - 1 : limit + 1]
        cut = await path.answer(**request("coupled", gamma, stop=[past], max_new_tokens=limit))
        assert (cut.last.finish_reason, cut.tokens, cut.text) == (LENGTH, tokens[:limit], whole[:limit])


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_a_stopped_session_goes_on_as_if_the_tokens_after_the_stop_had_never_been(path, free, gamma):
    tokens = free["coupled"].tokens
    asked = request("coupled", gamma, stop_token_ids=[tokens[1]])
    assert tokens.index(tokens[1]) == 1
    stopped = await path.answer(session_id=f"stopped-{gamma}", **asked)
    more = {"sampling_params": WAYS["coupled"] | {"max_new_tokens": 9, "ignore_eos": True}}
    more |= {"speculation": {"gamma": gamma, "verification": COUPLED}}
    # The very token that was accepted after the stop, then another than followed it.
    turn = [tokens[2], tokens[3] ^ 1]
    continued = await path.answer(session_id=stopped.last.session_id, token_ids=turn, **more)
    fresh = await path.answer(token_ids=[*PROMPT, *stopped.tokens, *turn], **more)
    assert (continued.tokens, continued.rounds) == (fresh.tokens, fresh.rounds)
    assert all(accepted == drafted for drafted, accepted in continued.rounds)


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_an_answer_of_one_token_ends_with_the_token_of_the_prefill(path, free, gamma):
    first = free["greedy"].tokens[0]
    by_id = await path.answer(**request("greedy", gamma, stop_token_ids=[first]))
    await ends(path, by_id, [first], "")
    by_text = await path.answer(**request("greedy", gamma, stop=[text_of([first])]))
    await ends(path, by_text, [first], "")
    by_limit = await path.answer(**request("greedy", gamma, max_new_tokens=1))
    assert (by_limit.tokens, by_limit.text, by_limit.last.finish_reason) == ([first], text_of([first]), LENGTH)


async def test_texts_of_tokens_are_the_same_in_every_block(path, free):
    tokenizer = ByteTokenizer()
    assert text_of(free["coupled"].tokens) == "".join(map(tokenizer.token_text, free["coupled"].tokens))
    stop = [free["coupled"].text[9:15]]
    pieces = set()
    for gamma in GAMMAS:
        answer = await path.answer(**request("coupled", gamma, stop=stop))
        pieces.add(tuple(chain.from_iterable(event.token_texts for event in answer.events)))
        shown = list(accumulate(event.text for event in answer.events))
        assert all(free["coupled"].text[:9].startswith(text) for text in shown)
    assert len(pieces) == 1
