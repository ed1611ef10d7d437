"""The arithmetic of speculation on rounds made by hand."""

import pytest

from benchmarks.recording import Inside, Recording, Round
from benchmarks.speculation import (
    acceptance_by_position,
    comparison,
    cost_figures,
    first_difference,
    pace_figures,
    pass_seconds,
    speculation_figures,
    spread,
)

PROMPT = (1, 2, 3)


def round_of(gamma, accept_index, **more):
    return Round(gamma, accept_index, more.pop("emitted", accept_index + 1), more.pop("arrived", 0.0), **more)


def recording(gammas, *, draft_token=0.0, one_pass, overhead=0.0):
    """An answer whose draft tokens all stand; its first round, of the prompt, takes a second."""
    rounds, now = [round_of(gammas[0], gammas[0], arrived=1.0, target=Inside(forward=1.0))], 1.0
    for gamma in gammas[1:]:
        draft, target = draft_token * gamma, one_pass(gamma + 1)
        now += draft + target + overhead
        rounds.append(round_of(gamma, gamma, arrived=now, draft=Inside(forward=draft), target=Inside(forward=target)))
    tokens = tuple(range(sum(one.emitted for one in rounds)))
    return Recording(PROMPT, tokens, tuple(rounds))


def plain(seconds, tokens=11, overhead=0.0):
    return recording([0] * tokens, one_pass=lambda _: seconds, overhead=overhead)


def test_acceptance_counts_a_position_only_where_it_was_reached():
    rounds = [
        round_of(3, 3),  # all stand
        round_of(3, 1),  # the second is refused, the third says nothing
        round_of(3, 0),
        round_of(1, 1),  # shortened: says nothing of the second
        round_of(2, 1),
        round_of(0, 0),  # nothing was proposed
    ]
    assert acceptance_by_position(rounds) == [
        {"reached": 5, "accepted": 4, "rate": 0.8},
        {"reached": 3, "accepted": 1, "rate": 1 / 3},
        {"reached": 1, "accepted": 1, "rate": 1.0},
    ]


def test_acceptance_of_rounds_without_draft_tokens_is_empty():
    assert acceptance_by_position([round_of(0, 0)] * 3) == []


def test_acceptance_is_that_before_a_stop_cut_the_round():
    assert acceptance_by_position([round_of(2, 2, emitted=1)])[1] == {"reached": 1, "accepted": 1, "rate": 1.0}


def test_expected_speedup_is_tokens_a_round_times_one_pass_over_the_rounds_cost():
    # Five tokens a round for a pass of 0.2 and four draft tokens of 0.02, where plain decoding takes 0.1 each.
    speculating = recording([4] * 6, draft_token=0.02, one_pass=lambda _: 0.2)
    figures = speculation_figures([(plain(0.1), speculating)])
    assert figures["expected_speedup"]["median"] == pytest.approx(5 * 0.1 / (4 * 0.02 + 0.2))
    assert figures["speedup"]["median"] == pytest.approx(5 * 0.1 / (4 * 0.02 + 0.2))
    assert figures["efficiency"]["median"] == pytest.approx(1.0)
    assert pace_figures([speculating])["tokens_a_round"] == 5
    assert figures["draft_tokens_a_round"] == 4


def test_what_the_models_do_not_take_lowers_the_efficiency_alone():
    speculating = recording([4] * 6, draft_token=0.02, one_pass=lambda _: 0.2, overhead=0.07)
    figures = speculation_figures([(plain(0.1), speculating)])
    assert figures["expected_speedup"]["median"] == pytest.approx(5 * 0.1 / 0.28)
    assert figures["efficiency"]["median"] == pytest.approx(0.28 / 0.35)


def test_ragged_proposals_pay_for_the_passes_they_had():
    speculating = recording([4, 4, 0, 0, 2, 4, 0], draft_token=0.01, one_pass=lambda tokens: 0.1 + 0.01 * tokens)
    figures = speculation_figures([(plain(0.11), speculating)])
    seconds = 2 * (0.04 + 0.15) + 3 * 0.11 + (0.02 + 0.13)
    assert figures["expected_speedup"]["median"] == pytest.approx(16 / seconds * 0.11)
    assert figures["rounds_without_draft_tokens"] == 3
    assert pass_seconds([speculating]) == pytest.approx({1: 0.11, 3: 0.13, 5: 0.15})


def test_speedup_is_the_median_of_the_ratios_on_the_same_prompt():
    # Ratios 2, 1 and 4; the ratio of the medians would be 1.
    pairs = [(plain(0.2), plain(0.1)), (plain(0.1), plain(0.1)), (plain(0.4), plain(0.1))]
    figures = speculation_figures(pairs)
    assert figures["speedup"] == pytest.approx({"low": 1.5, "median": 2.0, "high": 3.0})
    assert figures["speedups"] == pytest.approx([2.0, 1.0, 4.0])


def test_an_answer_that_ends_at_once_is_not_compared_but_counted():
    short = plain(0.1, tokens=1)
    figures = speculation_figures([(plain(0.2), plain(0.1)), (short, plain(0.1)), (plain(0.1), short)])
    assert figures["compared"] == 1
    assert figures["speedup"]["median"] == pytest.approx(2.0)
    assert pace_figures([short, plain(0.1)])["answers"] == 2


def test_without_a_comparable_answer_there_is_no_speedup():
    short = plain(0.1, tokens=1)
    figures = speculation_figures([(short, short)])
    assert figures["speedup"] is None
    assert pace_figures([short])["tokens_a_round"] is None


def test_pace_leaves_the_prompt_out_and_the_overall_pace_does_not():
    figures = pace_figures([plain(0.1)])
    assert figures["tokens_a_second"]["median"] == pytest.approx(10.0)
    assert figures["tokens_a_second_overall"]["median"] == pytest.approx(11 / 2)
    assert figures["first_token_seconds"]["median"] == 1.0
    assert figures["tokens_a_round"] == 1
    costs = cost_figures([plain(0.1)])
    assert costs["target"] == pytest.approx(100.0)
    assert costs["draft_token"] is None


def test_a_round_that_fell_back_is_counted_even_when_it_is_the_first():
    fallen = Recording(PROMPT, (1, 2), (round_of(0, 0, fell_back=True), round_of(0, 0, arrived=0.1)))
    assert pace_figures([fallen])["fallback_rounds"] == 1


def test_answers_that_know_only_what_came_when_are_compared():
    library = Recording(PROMPT, tuple(range(11)), tuple(Round(0, 0, 1, 1 + 0.2 * place) for place in range(11)))
    assert comparison([(plain(0.1), library)])["speedup"]["median"] == pytest.approx(0.5)


def test_spread_of_one_value_and_of_none():
    assert spread([3.0]) == {"low": 3.0, "median": 3.0, "high": 3.0}
    assert spread([]) is None


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 2, 3), (1, 5, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (), None)],
)
def test_first_difference(one, other, index):
    assert first_difference(one, other) == index
