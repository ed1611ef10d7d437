"""The loop of an answer: blocks cut at stops, commit before show, overlap, fallback, cancel at every phase."""

import asyncio

import pytest

from coordinator import generation
from coordinator.rounds import Fallback
from coordinator.session import FinishReason
from coordinator.tasks import stop
from specdec.errors import InvalidProposal, PeerUnavailable, StaleFence
from tests.recorded_spans import recorded_spans
from tests.steps import take_steps
from tests.unit.coordinator.fakes import EOS, WRONG, World

TEXT = "the quick brown fox jumps over the lazy dog"


@pytest.mark.parametrize("gamma", [0, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("wrong_at", [0, 1, 3, 99])
async def test_the_text_is_the_targets_whatever_the_draft(gamma, wrong_at):
    world = World([*TEXT.encode(), EOS], gamma=gamma, wrong_at=wrong_at)
    await world.run()
    assert world.text == TEXT
    assert world.store.tokens == world.session.tokens == [1, 2, 3, *TEXT.encode(), EOS]
    assert (world.store.finish_reason, world.shown[-1].ending.matched_stop) == (FinishReason.STOP, "<300>")
    assert [event.ending for event in world.shown[:-1]] == [None] * (len(world.shown) - 1)
    assert [event.index for event in world.shown] == [
        sum(len(event.token_ids) for event in world.shown[:place]) for place in range(len(world.shown))
    ]


async def test_sources_name_where_each_token_came_from():
    for wrong_at, sources in ((99, "AAAAB"), (2, "AAC"), (0, "C")):
        world = World(TEXT, wrong_at=wrong_at, max_new_tokens=10)
        await world.run()
        assert world.sources.startswith(sources)
    without = World(TEXT, gamma=0, max_new_tokens=3)
    await without.run()
    assert without.sources == "TTT"


@pytest.mark.parametrize("limit", range(1, 9))
async def test_the_limit_holds_exactly_and_no_more_is_asked_for(limit):
    world = World(TEXT, max_new_tokens=limit)
    await world.run()
    assert len(world.tokens) == limit
    assert world.shown[-1].ending.reason is FinishReason.LENGTH
    assert all(gamma <= limit - 1 for gamma in world.draft.asked)


@pytest.mark.parametrize("place", range(6))
async def test_everything_ends_with_the_token_that_completes_a_stop(place):
    text = [*b"abcdefgh"]
    text[place] = EOS
    world = World(text)
    await world.run()
    usage, emitted = world.shown[-1].ending.usage, place + 1
    assert world.tokens == text[:emitted] == world.store.tokens[3:]
    assert usage.completion_tokens == emitted
    assert usage.spec_accepted_tokens == sum(usage.accepted_per_position) == world.sources.count("A")
    assert [logprob for event in world.shown for logprob in event.logprobs] == [
        f"logprob {index}" for index in range(emitted)
    ]
    assert world.shown[-1].ending.session_length == 3 + emitted


async def test_a_stop_string_over_two_rounds_is_cut_from_the_text_alone():
    world = World("abcSTOPdefgh", stops=["cSTOPd"], gamma=3)
    await world.run()
    assert (world.text, bytes(world.tokens)) == ("ab", b"abcSTOPd")
    assert world.shown[-1].ending.matched_stop == "cSTOPd"


async def test_usage_counts_every_round():
    world = World(TEXT, gamma=4, wrong_at=2, max_new_tokens=9)
    await world.run()
    usage = world.shown[-1].ending.usage
    assert (usage.rounds, usage.spec_rounds, usage.spec_draft_tokens) == (3, 3, 10)
    assert (usage.spec_accepted_tokens, usage.accepted_per_position) == (6, [3, 3, 0, 0])
    assert (usage.prompt_tokens, usage.cached_tokens) == (3, 3)


async def test_the_commit_of_a_round_overlaps_the_whole_next_round():
    world = World(TEXT, max_new_tokens=15)
    world.timeline.hold("commit 5")
    running = asyncio.create_task(world.run())
    await world.timeline.reached("verify 5")
    for _ in range(50):
        await asyncio.sleep(0)
    assert "show 5" not in world.timeline.events
    assert "propose 10" not in world.timeline.events  # at most one round is uncommitted
    world.timeline.gates["commit 5"].set()
    await running
    assert len(world.tokens) == 15


async def test_tokens_are_shown_while_the_next_round_runs():
    world = World(TEXT, max_new_tokens=15)
    world.timeline.hold("verify 5")
    running = asyncio.create_task(world.run())
    await world.timeline.reached("show 5")
    world.timeline.gates["verify 5"].set()
    await running


async def test_a_reader_that_does_not_read_holds_the_loop_up():
    world = World(TEXT)
    world.timeline.hold("show 5")
    running = asyncio.create_task(world.run())
    await world.timeline.reached("verify 5")
    for _ in range(50):
        await asyncio.sleep(0)
    assert "propose 10" not in world.timeline.events
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("unread", ["show 5", "show 15"], ids=["in between", "the end"])
async def test_caches_rest_while_nobody_reads_and_only_between_two_rounds(monkeypatch, unread):
    monkeypatch.setattr(generation, "UNREAD_SECONDS", 0)
    world = World(TEXT, max_new_tokens=15)
    shown = int(unread.split()[1])
    world.timeline.hold(unread)
    world.timeline.hold(f"verify {shown}")
    running = asyncio.create_task(world.run())
    await world.timeline.reached(unread)
    if shown < 15:
        await world.timeline.reached("verify 5")
        for _ in range(50):
            await asyncio.sleep(0)
        assert "rest 5" not in world.timeline.events  # a call is running
        world.timeline.gates["verify 5"].set()
    await world.timeline.reached(f"rest {shown}")
    assert not world.store.left
    world.timeline.gates[unread].set()
    await running
    assert world.text == TEXT[:15]


async def test_caches_stay_while_the_answer_is_read():
    world = World(TEXT, max_new_tokens=15)
    await world.run()
    assert not [event for event in world.timeline.events if event.startswith("rest")]


async def test_no_round_starts_after_a_finish():
    world = World([*b"abc", EOS, *b"defghij"])
    await world.run()
    assert [event for event in world.timeline.events if event.startswith(("propose", "verify"))] == [
        "propose 0",
        "verify 0",
    ]


async def test_nothing_is_shown_and_no_round_started_after_a_failed_commit():
    world = World(TEXT)
    world.store.errors = [PeerUnavailable("redis is away")]
    with pytest.raises(PeerUnavailable):
        await world.run()
    assert world.shown == []
    assert "propose 10" not in world.timeline.events
    assert world.store.left


async def test_output_is_held_while_the_store_is_away_and_goes_on_when_it_is_back(monkeypatch):
    monkeypatch.setattr(generation, "COMMIT_AGAIN_SECONDS", 0)
    world = World(TEXT, max_new_tokens=15, patience=60)
    world.store.errors = [PeerUnavailable("redis is away")] * 3
    await world.run()
    assert world.text == TEXT[:15]
    events = world.timeline.events
    first = events.index("show 5")
    assert events[:first].count("commit 5") == 4
    assert "propose 10" not in events[:first]


async def test_a_commit_is_not_tried_again_when_there_is_no_time_for_another_try_like_the_last(monkeypatch):
    world = World(TEXT, patience=60)
    clock, late = asyncio.get_running_loop().time, 0.0

    async def hanging(session):
        nonlocal late
        late += 40
        raise PeerUnavailable("redis has not answered")

    world.store.commit = hanging
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + late)
    with pytest.raises(PeerUnavailable):
        await world.run()
    assert late == 40
    assert world.store.left


async def test_a_draft_that_fails_means_rounds_without_draft_tokens():
    world = World([*b"abcd", EOS])
    world.draft.fallback = Fallback.DRAFT_OVERLOADED
    await world.run()
    assert world.sources == "TTTTT"
    assert {event.round.drafted.fallback for event in world.shown} == {Fallback.DRAFT_OVERLOADED}
    assert world.shown[-1].ending.usage.spec_rounds == 0


async def test_after_a_refused_proposal_the_answer_goes_on_without_any():
    world = World([*TEXT.encode(), EOS])
    world.target.errors[5] = [InvalidProposal("not drawn so")]
    await world.run()
    assert world.text == TEXT
    first, *others = [event.round.drafted.fallback for event in world.shown]
    assert (first, set(others)) == (None, {Fallback.INVALID_PROPOSAL})
    assert {source.name for event in world.shown[1:] for source in event.sources} == {"TARGET_ONLY"}
    assert len(world.draft.asked) == 2


async def test_a_draft_whose_proposal_never_reached_the_target_is_not_asked_again_either():
    world = World([*b"abcd", EOS])
    world.draft.fallback = Fallback.INVALID_PROPOSAL
    await world.run()
    assert world.sources == "TTTTT"
    assert len(world.draft.asked) == 1
    assert {event.round.drafted.fallback for event in world.shown} == {Fallback.INVALID_PROPOSAL}


async def test_a_target_that_fails_ends_the_stream_after_what_was_committed():
    world = World(TEXT)
    world.target.errors[5] = [PeerUnavailable("gone")]
    with pytest.raises(PeerUnavailable):
        await world.run()
    assert bytes(world.tokens) == TEXT.encode()[:5] == bytes(world.store.tokens[3:])
    assert world.store.left


@pytest.mark.parametrize("phase", ["propose 0", "verify 0", "commit 5", "show 5", "propose 5", "verify 5", "commit 10"])
async def test_a_cancel_at_any_phase_gives_the_claim_up_at_once(phase):
    world = World(TEXT)
    world.timeline.hold(phase)
    running = asyncio.create_task(world.run())
    await world.timeline.reached(phase)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):  # whatever hangs
        await running
    assert world.store.left
    assert world.timeline.events[-1] == "leave"
    assert world.store.tokens == [1, 2, 3, *TEXT.encode()][: len(world.store.tokens)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_lease_is_renewed_and_its_loss_ends_the_answer():
    world = World(TEXT, renew_seconds=0.001)
    world.timeline.hold("verify 0")
    running = asyncio.create_task(world.run())
    await world.timeline.reached("renew")
    await world.store.resume("s", "", "f" * 32, above=0)
    with pytest.raises(StaleFence):
        await running


async def test_a_claim_the_target_knows_a_higher_one_of_is_raised_when_the_store_says_it_is_ours():
    world = World([*TEXT.encode(), EOS])
    world.target.errors[0] = [StaleFence("seen", metadata={"counter": "7", "owner": "e" * 32})]
    await world.run()
    assert world.text == TEXT
    assert world.session.fence.counter == 8


async def test_a_claim_that_was_taken_over_ends_the_answer():
    world = World(TEXT)
    world.target.errors[0] = [StaleFence("seen", metadata={"counter": "7", "owner": "e" * 32})]
    await world.store.resume("s", "", "e" * 32, above=6)
    with pytest.raises(StaleFence):
        await world.run()
    assert world.shown == []


async def test_an_answer_that_the_resumed_tokens_end_is_only_finished():
    world = World(TEXT, stops=["th"])
    world.session.tokens += b"th"
    world.session.sources += bytes(2)
    assert world.answer.take(b"th") == ["", ""]
    await world.run()
    assert (world.shown[-1].token_ids, world.store.finish_reason) == ((), FinishReason.STOP)
    assert "verify 2" not in world.timeline.events


async def test_wrong_draft_tokens_are_never_committed():
    world = World([*TEXT.encode(), EOS], wrong_at=1, gamma=8)
    await world.run()
    assert WRONG not in world.store.tokens


async def test_a_draft_that_remembers_a_higher_claim_is_asked_again_under_a_new_one():
    world = World([*TEXT.encode(), EOS])
    world.draft.errors = [StaleFence("seen higher", metadata={"counter": "7", "owner": "f" * 32})]
    await world.run()
    assert world.text == TEXT
    assert world.session.fence.counter == 8
    assert {event.round.drafted.fallback for event in world.shown} == {None}


async def test_a_cancel_that_comes_twice_gives_the_claim_up_all_the_same():
    for steps in range(8):
        world = World(TEXT)
        world.timeline.hold("verify 5")
        running = asyncio.create_task(world.run())
        await world.timeline.reached("verify 5")
        running.cancel()
        await take_steps(steps)
        running.cancel()
        await asyncio.wait((running,))
        assert world.store.left


async def test_every_round_ends_its_span_at_whatever_step_it_is_cancelled():
    for steps in range(60):
        world = World(TEXT)
        with recorded_spans() as spans:
            running = asyncio.create_task(world.run())
            await take_steps(steps)
            await stop(running)
            ended = [span.attributes["specdec.round"] for span in spans.get_finished_spans() if span.name == "round"]
        assert len(ended) >= sum(event.startswith("propose") for event in world.timeline.events)
        assert world.store.left


async def test_the_lease_is_not_renewed_under_the_claim_that_is_being_raised():
    world = World([*TEXT.encode(), EOS], renew_seconds=0)
    world.target.errors[0] = [StaleFence("seen", metadata={"counter": "7", "owner": "e" * 32})]
    resume = world.store.resume

    async def answered_late(*args, **kwargs):
        claimed = await resume(*args, **kwargs)
        for _ in range(20):
            await asyncio.sleep(0)
        return claimed

    world.store.resume = answered_late
    await world.run()
    assert world.text == TEXT
