"""What single calls get: right rows, right lengths, nothing fed twice."""

import pytest

from specdec.errors import InvalidParameter, PrefixMissing
from specdec.model.engine import Done
from tests.unit.engine.hash_model import (
    VOCABULARY,
    DraftWork,
    HashModel,
    KnowWork,
    MixedWork,
    OddWork,
    Running,
    VerifyWork,
    fresh_draft,
    fresh_mixed,
    fresh_verdict,
    prefix_of,
)


async def test_prompt_then_partial_then_full_accept_feed_only_what_is_new():
    model = HashModel()
    committed = [1, 2, 3, 4, 5]
    async with Running(model) as engine:
        answer = await engine.run(VerifyWork(prefix_of(committed)))
        assert answer.result == fresh_verdict(committed)
        assert (answer.cached_length, answer.reused_length, answer.fed_tokens) == (5, 0, 5)

        committed.append(answer.result[1])
        good = fresh_draft(committed, 4)
        wrong = [*good[:2], (good[2] + 1) % VOCABULARY, 0]
        answer = await engine.run(VerifyWork(prefix_of(committed, start=5), wrong))
        assert answer.result == fresh_verdict(committed, wrong)
        assert answer.result[:2] == (2, good[2])
        assert (answer.cached_length, answer.reused_length, answer.fed_tokens) == (8, 5, 5)
        assert engine._batching.caches.get("s").cache.length == 8

        committed += good[:3]
        good = fresh_draft(committed, 4)
        answer = await engine.run(VerifyWork(prefix_of(committed, start=8), good))
        assert answer.result == fresh_verdict(committed, good)
        assert answer.result[0] == 4
        assert (answer.cached_length, answer.reused_length, answer.fed_tokens) == (13, 8, 5)
    assert model.passes == [[(5, 1)], [(5, 5)], [(5, 5)]]


async def test_draft_keeps_what_it_drafted_and_feeds_its_last_token_after_a_full_accept():
    model = HashModel()
    committed = [1, 2, 3]
    async with Running(model) as engine:
        answer = await engine.run(DraftWork(prefix_of(committed), 4))
        assert answer.result == fresh_draft(committed, 4)
        assert (answer.cached_length, answer.passes, answer.fed_tokens) == (3, 4, 6)

        committed += [*answer.result, 9]  # all four stood, and a bonus token
        answer = await engine.run(DraftWork(prefix_of(committed, start=3), 4))
        assert answer.result == fresh_draft(committed, 4)
        assert (answer.reused_length, answer.cached_length) == (6, 8)
        assert model.passes[4] == [(2, 1)]

        committed += [answer.result[0], (answer.result[1] + 1) % VOCABULARY]  # one stood
        answer = await engine.run(DraftWork(prefix_of(committed, start=8), 3))
        assert answer.result == fresh_draft(committed, 3)
        assert model.passes[8] == [(1, 1)]


async def test_repeat_gives_the_same_answer_at_the_same_start_or_from_the_beginning():
    committed = [1, 2, 3, 4]
    async with Running(HashModel()) as engine:
        for work in (VerifyWork, DraftWork):
            await engine.run(VerifyWork(prefix_of(committed[:3])))
            extra = [7, 8] if work is VerifyWork else 3
            first = await engine.run(work(prefix_of(committed, start=3), extra))
            again = await engine.run(work(prefix_of(committed, start=3), extra))
            afresh = await engine.run(work(prefix_of(committed), extra))
            assert first.result == again.result == afresh.result
            assert first.cached_length == again.cached_length == afresh.cached_length
            assert afresh.reused_length == 4


async def test_missing_prefix_is_named_and_leaves_the_cache_alone():
    committed = [1, 2, 3, 4]
    async with Running(HashModel()) as engine:
        with pytest.raises(PrefixMissing):
            await engine.run(VerifyWork(prefix_of(committed, start=2)))
        await engine.run(VerifyWork(prefix_of(committed)))
        with pytest.raises(PrefixMissing):
            await engine.run(VerifyWork(prefix_of([1, 2, 9, 4, 5], start=4)))
        with pytest.raises(PrefixMissing):
            await engine.run(VerifyWork(prefix_of([1, 2, 3, 4, 5, 6], start=5)))
        answer = await engine.run(VerifyWork(prefix_of([1, 2, 3, 4, 5], start=4)))
        assert (answer.reused_length, answer.fed_tokens) == (4, 1)


async def test_start_at_the_last_commit_hashes_new_tokens_only(monkeypatch):
    hashed = []
    committed = [index % VOCABULARY for index in range(500)]
    async with Running(HashModel()) as engine:
        await engine.run(VerifyWork(prefix_of(committed)))
        work = VerifyWork(prefix_of([*committed, 3], start=500), [1, 2])
        monkeypatch.setattr("specdec.prefix.token_bytes", lambda tokens: hashed.append(len(tokens)) or b"")
        await engine.run(work)
        monkeypatch.undo()
        assert sum(hashed) <= 3
        await engine.close()
        engine._batching.caches.drop("s")  # its digest was made with a broken hash


async def test_ids_and_lengths_outside_the_model_are_refused_before_they_reach_it():
    model = HashModel(context_length=8)
    begun = []
    async with Running(model) as engine:
        for tokens, field in [([], "prefix.tokens"), ([1] * 9, "prefix.tokens"), ([VOCABULARY], "prefix.tokens")]:
            with pytest.raises(InvalidParameter) as refused:
                await engine.run(OddWork(prefix_of(tokens), begin=begun.append))
            assert refused.value.field == field
        for draft_tokens in ([1] * 6, [VOCABULARY], [-1]):
            with pytest.raises(InvalidParameter) as refused:
                await engine.run(VerifyWork(prefix_of([1, 2, 3]), draft_tokens))
            assert refused.value.field == "proposal.draft_tokens"
        with pytest.raises(InvalidParameter):
            await engine.run(DraftWork(prefix_of([1] * 8), 2))
        assert (await engine.run(VerifyWork(prefix_of([1, 2, 3], "full"), [1] * 5))).fed_tokens == 8
    assert begun == []
    assert all(count <= 8 for batch in model.passes for count, _ in batch)


async def test_work_that_needs_no_pass_is_answered_without_one():
    model = HashModel()
    async with Running(model) as engine:
        nothing = OddWork(prefix_of([1, 2]), begin=lambda committed: Done("none", 2, 2))
        answer = await engine.run(nothing)
        assert (answer.result, answer.cached_length, answer.reused_length, answer.passes) == ("none", 2, 0, 0)
        answer = await engine.run(VerifyWork(prefix_of([1, 2, 3], start=2)))
        assert answer.result == fresh_verdict([1, 2, 3])
        answer = await engine.run(nothing)
        assert (answer.cached_length, answer.reused_length) == (2, 2)
    assert model.passes == [[(3, 1)]]


async def test_what_is_known_need_not_be_sent_and_is_fed_when_a_work_asks_for_logits():
    model = HashModel()
    committed = [1, 2, 3, 4, 5]
    async with Running(model) as engine:
        assert (await engine.run(KnowWork(prefix_of(committed[:3])))).cached_length == 3
        assert (await engine.run(KnowWork(prefix_of(committed, start=3)))).cached_length == 5
        answer = await engine.run(MixedWork(prefix_of([*committed, 6], start=5), [7, 8], 4))
        assert answer.result == fresh_mixed([*committed, 6], [7, 8], 4)
        assert (answer.cached_length, answer.reused_length, answer.fed_tokens) == (6, 5, 10)
        answer = await engine.run(KnowWork(prefix_of([*committed, 6, 7, 9], start=6)))
        assert (answer.cached_length, answer.reused_length) == (8, 7)
        answer = await engine.run(VerifyWork(prefix_of([*committed, 6, 7, 9], start=8)))
        assert answer.result == fresh_verdict([*committed, 6, 7, 9])
        assert answer.fed_tokens == 1
        with pytest.raises(PrefixMissing):
            await engine.run(KnowWork(prefix_of([1, 2, 3, 4, 6, 6], start=6)))
    assert model.passes == [[(8, 1)], [(2, 1)], [(1, 1)]]


async def test_answer_says_what_it_took():
    async with Running(HashModel(), max_batch_tokens=4) as engine:
        answer = await engine.run(VerifyWork(prefix_of([1] * 10)))
        assert (answer.fed_tokens, answer.passes, answer.batch_size) == (10, 3, 1)
        assert min(answer.queue_seconds, answer.forward_seconds, answer.sampling_seconds) > 0
