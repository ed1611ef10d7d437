"""Where proposals end: what is learnt of their tokens by grade, and what bounds on it do."""

from functools import partial

import pytest

from draft_service.drafting import Draft, DraftLimits
from draft_service.lookup import LONGEST, Lookups
from draft_service.lookup_drafting import ComposedDraft, LookupDraft, matches, own_tokens
from draft_service.survival import (
    MODEL_PRIOR,
    PRIOR_TRIALS,
    Calibration,
    Proposed,
    Stop,
    TrackRecord,
    lookup_grade,
    model_grade,
)
from specdec.fence import Fence
from specdec.model.work import Done, Feed
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix

LIMITS = DraftLimits(vocabulary_size=100, context_length=64, support_size=4, end_token_ids=())


def taught(*rounds):
    """Return a calibration that has seen rounds of (grades, accept index), each a hundred times."""
    calibration = Calibration()
    for grades, accept_index in rounds:
        for _ in range(100):
            calibration.learn(grades, accept_index)
    return calibration


def prefix_of(tokens, start=0, session_id="s"):
    return CommittedPrefix(session_id, Fence(1, "0" * 32), start, b"", tuple(tokens[start:]), 1)


def test_grades_tell_models_from_lookups_and_none_lies_beyond_the_last():
    grades = [*map(model_grade, (0.0, 0.05, 0.1, 0.95, 1.0)), *map(lookup_grade, (0, 1, LONGEST))]
    assert grades == [0, 0, 1, 9, 9, 10, 11, 10 + LONGEST]
    assert all(0 < Calibration().rate(grade) < 1 for grade in grades)


def test_what_stood_and_what_fell_is_learnt_by_grade_and_the_untested_is_not():
    calibration = Calibration()
    assert calibration.rate(0) == calibration.rate(9) == calibration.usual == pytest.approx(MODEL_PRIOR)
    for _ in range(200):
        calibration.learn([9, 1, 5], 1)
    kept = MODEL_PRIOR * PRIOR_TRIALS
    assert calibration.rate(9) == pytest.approx((kept + 200) / (PRIOR_TRIALS + 200))
    assert calibration.rate(1) == pytest.approx(kept / (PRIOR_TRIALS + 200))
    assert calibration.rate(5) == pytest.approx(MODEL_PRIOR)
    assert calibration.usual == pytest.approx((kept + 200) / (PRIOR_TRIALS + 400))


def test_the_past_fades():
    calibration = Calibration()
    for stood in (1, 0):
        for _ in range(3000):
            calibration.learn([5], stood)
    assert calibration.rate(5) < 0.1


def test_what_is_left_out_again_and_again_is_tried_again():
    calibration = taught(([3], 0))
    assert calibration.rate(3) < 0.1
    for _ in range(500):
        calibration.leave_out(3)
    assert calibration.rate(3) > 0.6


def test_each_token_has_its_bound_and_the_last_bound_goes_for_all_that_follow():
    stop = Stop(taught(([9], 1)), bounds=(0.9, 0.5, 0.3))
    rate = stop.calibration.rate(9)
    assert stop.worth(0.9)
    assert not stop.worth(0.89)
    for bound in (0.5, 0.3, 0.3, 0.3):
        stop.add(9)
        assert stop.worth(bound / stop.survival + 1e-9)
        assert not stop.worth(bound / stop.survival - 1e-9)
    assert stop.survival == pytest.approx(rate**4)


def test_without_bounds_nothing_ends_a_proposal():
    stop = Stop(taught(([0], 0)))
    for _ in range(50):
        assert stop.takes(0)
        stop.add(0)
    assert not stop.over


def test_a_model_never_leaves_out_a_token_it_has_drawn():
    stop = Stop(taught(([1, 1], 0), ([9], 1)), bounds=(1.0, 1.0))
    assert not stop.over  # before the first
    draft = Draft(prefix_of([1, 2]), SamplingParams(), 4, Verification.TOKEN, LIMITS, stop)
    assert isinstance(draft.begin([1, 2]), Feed)
    stop.add(1)
    done = draft.take(7, (7, 8), (0.75, 0.25))
    assert isinstance(done, Done)
    assert done.result.draft_tokens == (7,)


def test_a_model_goes_on_while_it_is_sure():
    stop = Stop(taught(([9], 1), ([1], 0)), bounds=(0.0, 0.3))
    draft = Draft(prefix_of([1, 2]), SamplingParams(), 4, Verification.TOKEN, LIMITS, stop)
    draft.begin([1, 2])
    for grade, ends in [(9, False), (9, False), (1, True)]:
        stop.add(grade)
        assert isinstance(draft.take(7, (7,), (1.0,)), Done) is ends


def lookup(committed, stop, gamma=4):
    source = partial(own_tokens, Lookups(2, 8, 1000))
    params = SamplingParams(temperature=1.0, seed=3)
    draft = LookupDraft(prefix_of(committed), params, gamma, Verification.TOKEN, LIMITS, stop, source=source)
    return draft.begin(list(committed)).result.draft_tokens


def test_a_lookup_leaves_out_what_is_not_worth_it_and_goes_by_how_much_matched():
    long, short = (1, 2, 3, 4, 5, 1, 2, 3, 4), (1, 2, 3, 9, 8, 1, 2)
    calibration = taught(([lookup_grade(2)], 0), *(([lookup_grade(matched)], 1) for matched in range(3, LONGEST + 1)))
    assert lookup(long, Stop(calibration, bounds=(0.5,))) == (5, 1, 2, 3)
    stop = Stop(calibration, bounds=(0.5,))
    assert lookup(short, stop) == ()
    assert (stop.grades, stop.left_out) == ([], [lookup_grade(2)])
    assert lookup(short, Stop(calibration, bounds=(0.0,))) == lookup(short, Stop()) == (3, 9, 8, 1)


@pytest.mark.parametrize(("bound", "asks"), [(0.3, True), (0.4, False)])
def test_a_model_is_asked_after_a_lookup_only_for_a_token_that_is_worth_it(bound, asks):
    # 3 followed (1, 2) and stands at 0.5. A longer match would at 0.57, which is worth neither bound, any token at 0.7.
    committed, stop = (1, 2, 3, 1, 2), Stop(bounds=(0.0, bound))
    params, source = SamplingParams(temperature=1.0, seed=3), partial(matches, Lookups(2, 8, 1000))
    draft = ComposedDraft(prefix_of(committed), params, 4, Verification.TOKEN, LIMITS, stop, source=source)
    outcome = draft.begin(list(committed))
    assert draft.draft_tokens == [3]
    assert outcome == (Feed([3], 1) if asks else draft.done())


def of_lookups(record, bounds=(0.5,)):
    return record.stop(Verification.TOKEN, greedy=False, bounds=bounds)


def answered(record, committed, draft_tokens, grade, bounds=(0.5,), session_id="s"):
    stop = of_lookups(record, bounds)
    for _ in draft_tokens:
        stop.add(grade)
    record.note(session_id, Proposed(len(committed), draft_tokens, stop))


@pytest.mark.parametrize(("block", "tested", "stood"), [((5, 6, 7), 2, 2), ((5, 9), 2, 1), ((9,), 1, 0)])
def test_the_next_call_of_a_session_says_what_stood(block, tested, stood):
    record = TrackRecord(4)
    for _ in range(2):  # a repeated call says it once
        answered(record, [1, 2], (5, 6), 3)
        record.learn(prefix_of([1, 2]))
    answered(record, [1, 2], (5, 6), 3)
    record.learn(prefix_of([1, 2, *block], start=1))
    record.learn(prefix_of([1, 2, *block], start=1))
    calibration = of_lookups(record).calibration
    assert calibration.rate(3) == pytest.approx((PRIOR_TRIALS * MODEL_PRIOR + stood) / (PRIOR_TRIALS + tested))


@pytest.mark.parametrize("start_and_committed", [(0, [1, 2, 5, 6, 7, 8]), (3, [1, 2, 5, 6])])
def test_more_than_a_round_or_a_part_of_it_says_nothing(start_and_committed):
    start, committed = start_and_committed
    record = TrackRecord(4)
    answered(record, [1, 2], (5, 6), 3)
    record.learn(prefix_of(committed, start))
    assert of_lookups(record).calibration.rate(3) == pytest.approx(MODEL_PRIOR)


def test_calls_with_bounds_learn_from_each_other_alone():
    record = TrackRecord(4)
    for _ in range(50):
        answered(record, [1, 2], (5,), 3, bounds=())
        record.learn(prefix_of([1, 2, 9]))
    assert of_lookups(record, bounds=()).calibration.rate(3) < 0.2
    assert of_lookups(record).calibration.rate(3) == pytest.approx(MODEL_PRIOR)


def test_the_sessions_that_are_followed_are_bounded():
    record = TrackRecord(2)
    for name in "abc":
        answered(record, [1, 2], (5,), 3, session_id=name)
    record.learn(prefix_of([1, 2, 9], session_id="a"))
    assert of_lookups(record).calibration.rate(3) == pytest.approx(MODEL_PRIOR)
    record.learn(prefix_of([1, 2, 9], session_id="c"))
    assert of_lookups(record).calibration.rate(3) < MODEL_PRIOR
