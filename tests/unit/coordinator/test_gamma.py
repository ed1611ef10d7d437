"""The number of draft tokens: its limits, and the choice by measurement against worlds whose best answer is known."""

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from coordinator.experience import TRIAL_SHARE, Experience
from coordinator.gamma import FIRST_GAMMA, Adaptive, Fixed, may_share, policy_of, within_answer, within_draft
from coordinator.goodput import Acceptance, Prospect, least_survival, prospects
from coordinator.rounds import Drafted, Fallback, Round, Verdict
from specdec.parameters import SamplingParams, Verification

MAX_GAMMA = 16
LENGTH = 100  # committed tokens
RATES = (0, 2, 4, 8, 12)


def verdict(kept, seconds, pass_seconds, pass_tokens):
    """Return what a target says that keeps so many draft tokens."""
    told = {"seconds": seconds, "pass_seconds": pass_seconds, "pass_tokens": pass_tokens}
    return Verdict(kept, 7, reused_length=99, **told)


@dataclass(frozen=True)
class World:
    """A pair of models as the coordinator meets it: chances and seconds, without a clock.

    Attributes:
        stands: chance that a draft token stands when those before it do.
        draft_seconds: of a draft token.
        pass_seconds: of the target's pass over its own token and 0, 1, … draft tokens; a line beyond.
        goes_on: chance that the draft knows another token.
    """

    stands: float
    draft_seconds: float
    pass_seconds: tuple[float, ...]
    goes_on: float = 1.0
    call_seconds: float = 0.001

    def verify_seconds(self, tokens):
        known = self.pass_seconds
        beyond = max(0, tokens - len(known) + 1)
        return known[min(tokens, len(known) - 1)] + beyond * (known[-1] - known[-2])

    def round(self, asked, rng):
        proposed = kept = 0
        while proposed < asked and rng.random() < self.goes_on:
            proposed += 1
        while kept < proposed and rng.random() < self.stands:
            kept += 1
        noise = 1 + 0.05 * rng.random()
        propose = (self.call_seconds + proposed * self.draft_seconds) * noise if asked else 0.0
        drafted = Drafted([7] * proposed, asked=asked, reused_length=99, seconds=propose)
        forward = self.verify_seconds(proposed) * noise
        seconds = self.call_seconds * noise + forward
        return Round(0, 100, drafted, verdict(kept, seconds, forward, 1 + proposed))


WORLDS = {
    "textbook": World(0.67, 0.005, (0.030, 0.030)),
    "a good draft": World(0.9, 0.005, (0.030, 0.0305)),
    "a useless draft": World(0.05, 0.010, (0.030, 0.034)),
    "a dear pass": World(0.46, 0.020, (0.068, 0.100, 0.105, 0.110, 0.116, 0.122)),
    "a lookup on prose": World(0.1, 0.00001, (0.068, 0.080), goes_on=0.15),
    "a lookup on an edit": World(0.95, 0.00001, (0.068, 0.080), goes_on=0.97),
}


def tokens_a_second(world, policy, rounds, seed):
    """Return what a policy brings; an answer of so many rounds."""
    rng = random.Random(seed)
    tokens = seconds = 0.0
    for _ in range(rounds):
        round_ = world.round(policy.choose(MAX_GAMMA, LENGTH), rng)
        policy.observe(round_)
        tokens += len(round_.block)
        seconds += round_.drafted.seconds + round_.verdict.seconds
    policy.close()
    return tokens / seconds


@cache
def fixed_rates(world):
    return {gamma: tokens_a_second(world, Fixed(Experience(), gamma, shared=False), 2000, 1) for gamma in RATES}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_it_comes_near_the_best_fixed_gamma_and_never_far_below_none(world):
    fixed = fixed_rates(world)
    experience = Experience()
    tokens_a_second(world, Adaptive(experience, shared=True), 300, 2)
    adaptive = tokens_a_second(world, Adaptive(experience, shared=True), 3000, 3)
    assert adaptive >= 0.95 * max(fixed.values())
    assert adaptive >= 0.97 * fixed[0]


STEPS = World(0.82, 0.100, (0.378, 0.385, 0.391, 0.688, 0.698), call_seconds=0.004)  # kernels take rows in blocks


@pytest.mark.parametrize("world", [STEPS, WORLDS["a good draft"]], ids=["steps", "a good draft"])
def test_a_few_short_answers_are_enough(world):
    """Six answers of 16 rounds from nothing, the first not counted: to know all numbers would take longer."""
    best = max(tokens_a_second(world, Fixed(Experience(), gamma, shared=True), 2000, 1) for gamma in (*range(5), 8, 12))
    paces = []
    for beginning in range(0, 240, 6):
        experience = Experience()
        answers = [
            tokens_a_second(world, Adaptive(experience, shared=True), 16, seed)
            for seed in range(beginning, beginning + 6)
        ]
        paces += answers[1:]
    assert sum(paces) / len(paces) >= 0.95 * best


def test_one_round_without_luck_does_not_keep_drafting_away():
    experience, rng = Experience(), random.Random(7)
    policy = Adaptive(experience, shared=True)
    unlucky = WORLDS["textbook"].round(policy.choose(MAX_GAMMA, LENGTH), rng)
    policy.observe(replace(unlucky, verdict=replace(unlucky.verdict, accept_index=0)))
    asked = []
    for _ in range(60):
        asked.append(policy.choose(MAX_GAMMA, LENGTH))
        policy.observe(WORLDS["textbook"].round(asked[-1], rng))
    assert sum(gamma > 0 for gamma in asked) > 40


@pytest.mark.parametrize("slow", [0, 1], ids=["asked", "plain"])
@pytest.mark.parametrize("late", [0.2, 5.0])
def test_one_call_that_took_long_decides_nothing(slow, late):
    """A first call may have waited for a replica, or for a connection."""
    asked = {}
    for name in ("a good draft", "a useless draft"):
        experience, rng = Experience(), random.Random(7)
        policy = Adaptive(experience, shared=True)
        asked[name] = 0
        for number in range(1000):
            gamma = policy.choose(MAX_GAMMA, LENGTH)
            asked[name] += gamma > 0
            round_ = WORLDS[name].round(gamma, rng)
            seconds = round_.verdict.seconds + (late if number == slow else 0.0)
            policy.observe(replace(round_, verdict=replace(round_.verdict, seconds=seconds)))
    assert asked["a good draft"] > 900
    assert asked["a useless draft"] < 250


def test_a_target_that_says_nothing_of_its_passes_is_known_by_its_calls():
    experience, rng = Experience(), random.Random(3)
    policy = Adaptive(experience, shared=True)
    asked = 0
    for _ in range(200):
        gamma = policy.choose(MAX_GAMMA, LENGTH)
        asked += gamma > 0
        round_ = WORLDS["a good draft"].round(gamma, rng)
        policy.observe(replace(round_, verdict=verdict(round_.verdict.accept_index, round_.verdict.seconds, 0.0, 1)))
    assert asked > 150


def test_what_a_trial_may_lose_is_put_aside_first_and_a_full_budget_pays_anything():
    experience = Experience()
    assert experience.pay(-1.0)
    assert not experience.pay(0.01)
    experience.earn(0.5 / TRIAL_SHARE)
    assert experience.pay(0.4)
    assert not experience.pay(0.2)
    experience.earn(9.0 / TRIAL_SHARE)
    assert experience.pay(50.0)
    assert not experience.pay(0.001)
    assert experience.pay(0.0), "what costs nothing needs no budget, in debt either"


@pytest.mark.parametrize("slower", [1, 10, 100])
def test_drafting_comes_back_however_long_a_pass_takes(slower):
    good, bad = (
        replace(
            world,
            draft_seconds=slower * world.draft_seconds,
            pass_seconds=tuple(slower * seconds for seconds in world.pass_seconds),
        )
        for world in (WORLDS["a good draft"], WORLDS["a useless draft"])
    )
    experience, rng = Experience(), random.Random(5)
    policy = Adaptive(experience, shared=True)
    for world, rounds in ((bad, 600), (good, 600)):
        asked = []
        for _ in range(rounds):
            asked.append(policy.choose(MAX_GAMMA, LENGTH))
            policy.observe(world.round(asked[-1], rng))
    assert sorted(asked[300:])[150] >= 3


def test_the_worlds_ask_for_different_choices():
    """The control: no fixed gamma would pass in all of them."""
    for gamma in RATES:
        assert min(fixed_rates(world)[gamma] / max(fixed_rates(world).values()) for world in WORLDS.values()) < 0.9


def test_a_world_that_changes_is_followed_both_ways():
    good, bad = WORLDS["a good draft"], WORLDS["a useless draft"]
    experience = Experience()
    policy = Adaptive(experience, shared=True)
    for world, fewest, most in ((good, 4, 16), (bad, 0, 0), (good, 3, 16)):
        rng = random.Random(5)
        for _ in range(1500):
            policy.observe(world.round(policy.choose(MAX_GAMMA, LENGTH), rng))
        usual = sorted(policy.choose(MAX_GAMMA, LENGTH) for _ in range(9))[4]
        assert fewest <= usual <= most


def share_lost(world, policy, rounds, rng):
    """Return how much of its time a policy loses against plain decoding."""
    seconds = plain = 0.0
    for _ in range(rounds):
        round_ = world.round(policy.choose(MAX_GAMMA, LENGTH), rng)
        policy.observe(round_)
        seconds += round_.drafted.seconds + round_.verdict.seconds
        plain += len(round_.block) * (world.verify_seconds(0) + world.call_seconds) * 1.025
    return 1 - plain / seconds


def test_trials_lose_no_more_than_their_share():
    world, policy = WORLDS["a useless draft"], Adaptive(Experience(), shared=True)
    assert share_lost(world, policy, 5000, random.Random(4)) < 2 * TRIAL_SHARE


def test_trials_lose_their_share_of_the_time_of_answers_that_try_alone():
    experience, world, rng = Experience(), WORLDS["a useless draft"], random.Random(4)
    for _ in range(2000):  # others, whose gamma is fixed
        fixed = Fixed(experience, 0, shared=True)
        fixed.observe(world.round(fixed.choose(MAX_GAMMA, LENGTH), rng))
        fixed.close()
    assert share_lost(world, Adaptive(experience, shared=True), 400, rng) < 3 * TRIAL_SHARE


def test_what_is_no_round_of_its_kind_teaches_no_duration():
    experience = Experience()
    policy = Adaptive(experience, shared=True)
    prompt = Round(0, 500, Drafted(), replace(verdict(0, 9.0, 9.0, 400), reused_length=0))
    behind = Drafted([7], asked=1, reused_length=100, seconds=9.0)
    catching_up = Round(1, 500, behind, replace(verdict(1, 0.1, 0.09, 2), reused_length=499))
    away = Drafted(fallback=Fallback.DRAFT_UNAVAILABLE, seconds=9.0)
    fallback = Round(2, 500, away, replace(verdict(0, 0.2, 0.19, 1), reused_length=499))
    for round_ in (prompt, catching_up, fallback):
        policy.observe(round_)
    costs = experience.costs
    assert not costs.propose.means
    assert {tokens: mean.seconds for tokens, mean in costs.passes.means.items()} == {2: 0.09, 1: 0.19}
    assert costs.pass_tokens.rounds == 2
    assert experience.acceptance.positions[0].stood == 1


def test_an_answer_begins_with_the_gamma_that_earlier_ones_came_to():
    experience, rng = Experience(), random.Random(6)
    firsts = []
    for _ in range(5):
        policy = Adaptive(experience, shared=True)
        for number in range(30):
            gamma = policy.choose(MAX_GAMMA, LENGTH)
            firsts += [gamma] if number == 0 else []
            policy.observe(WORLDS["a useless draft"].round(gamma, rng))
        policy.close()
    assert firsts == [FIRST_GAMMA, 0, 0, 0, 0]


def test_a_draft_that_was_away_is_taken_up_when_it_comes():
    experience = Experience()
    policy = Adaptive(experience, shared=True)
    for number in range(50):
        away = Drafted(fallback=Fallback.DRAFT_UNAVAILABLE) if policy.choose(MAX_GAMMA, LENGTH) else Drafted()
        policy.observe(Round(number, 100, away, verdict(0, 0.03, 0.03, 1)))
    assert policy.choose(MAX_GAMMA, LENGTH) > 0
    rng = random.Random(3)
    for _ in range(200):
        policy.observe(WORLDS["a good draft"].round(policy.choose(MAX_GAMMA, LENGTH), rng))
    assert policy.choose(MAX_GAMMA, LENGTH) >= 4


def test_answers_count_as_load_while_they_decode():
    experience = Experience()
    policies = [Fixed(experience, 0, shared=False) for _ in range(3)]
    assert experience.decoding == 0
    for policy in policies:
        policy.observe(WORLDS["textbook"].round(0, random.Random(0)))
        policy.observe(WORLDS["textbook"].round(0, random.Random(0)))
    assert experience.decoding == 3
    for policy in policies:
        policy.close()
        policy.close()
    assert experience.decoding == 0


def test_an_answer_begins_with_what_others_have_seen_and_goes_by_its_own():
    fleet, own = Acceptance(), Acceptance()
    for _ in range(200):
        fleet.observe(2, 2, 2)
    assert prospects(own, fleet, 2)[2].stood == pytest.approx(2.0, abs=0.05)
    for _ in range(200):
        own.observe(2, 2, 0)
    assert prospects(own, fleet, 2)[2].stood < 0.4


def test_little_is_weighed_against_the_position_before_and_a_coin():
    little = Acceptance()
    little.observe(1, 1, 0)
    assert [each.stood for each in prospects(little, Acceptance(), 2)] == pytest.approx([0, 1 / 4, 1 / 4 + 1 / 16])
    little.observe(1, 1, 1)
    assert prospects(Acceptance(), Acceptance(), 2)[2].stood == pytest.approx(3 / 4)


def test_later_positions_count_only_where_the_earlier_stood():
    acceptance = Acceptance()
    acceptance.observe(3, 3, 1)
    assert [position.asked for position in acceptance.positions] == [1, 1, 0]
    assert [position.stood for position in acceptance.positions] == [1, 0, 0]


def test_an_answer_that_learns_for_itself_leaves_the_fleet_as_it_is():
    """Two sessions of one seed have the same draws: what one of them saw may not choose gamma for the other."""
    experience = Experience()
    policy = Adaptive(experience, shared=False)
    for _ in range(20):
        policy.observe(WORLDS["a good draft"].round(policy.choose(MAX_GAMMA, LENGTH), random.Random(1)))
    assert not experience.acceptance.positions
    assert experience.costs.pass_tokens.rounds == 20


def test_a_token_is_worth_the_time_it_takes_and_the_first_what_it_leads_to():
    expected = [Prospect(*each) for each in ((0, 0), (0.5, 0.4), (1.0, 0.7), (1.5, 1.0))]
    seconds = {0.0: 0.041, 1.0: 0.061, 3.0: 0.067}.__getitem__
    begin, go_on = least_survival(expected, seconds, 3, 25.0)
    assert begin == pytest.approx(25.0 * 0.026 / 2.5)  # three tokens, of which 2.5 stand
    assert go_on == pytest.approx(25.0 * 0.003)
    assert least_survival(expected, seconds, 3, 1e9) == [1.0, 1.0]  # and not more
    assert least_survival(expected, lambda tokens: -tokens, 3, 25.0) == [0.0, 0.0]  # and not less


def test_what_tokens_beyond_gamma_would_take_ends_no_proposal():
    expected = [Prospect(0, 0), Prospect(1.0, 0.8), Prospect(2.0, 1.4)]
    seconds = {0.0: 0.38, 1.0: 0.50, 2.0: 0.60, 3.0: 1.00}.__getitem__  # a pass over four tokens is dear
    assert least_survival(expected, seconds, 2, 4.0) == pytest.approx([4.0 * 0.22 / 1.75, 0.4])


def test_nothing_is_taken_to_lead_anywhere_while_nothing_has_stood():
    nothing = [Prospect(0, 0), Prospect(0, 0)]
    assert least_survival(nothing, lambda tokens: 0.02 * tokens, 1, 25.0) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_answers_that_learn_together_bound_what_is_proposed_and_others_do_not(world):
    shared, alone = (Adaptive(Experience(), shared=shared) for shared in (True, False))
    fixed = Fixed(Experience(), 4, shared=True)
    assert (shared.min_survival, alone.min_survival, fixed.min_survival) == ([0.0], [], [])
    for number in range(400):
        for policy in (shared, alone, fixed):
            policy.observe(world.round(policy.choose(MAX_GAMMA, LENGTH), random.Random(number)))
    assert (alone.min_survival, fixed.min_survival) == ([], [])
    begin, go_on = shared.min_survival
    assert 0 < begin <= 1
    assert 0 <= go_on <= 1


@pytest.mark.parametrize("verification", Verification)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fresh_seed", [True, False])
def test_answers_that_may_have_the_draws_of_others_learn_alone(verification, temperature, fresh_seed):
    alone = temperature and not fresh_seed and verification is not Verification.COUPLED
    params = SamplingParams(temperature=temperature)
    assert may_share(params, verification, fresh_seed=fresh_seed) is not bool(alone)


def test_a_fixed_gamma_stays():
    assert policy_of(7, Experience(), shared=False).choose(16, LENGTH) == 7
    assert policy_of(7, Experience(), shared=False).choose(5, LENGTH) == 5
    assert isinstance(policy_of(None, Experience(), shared=False), Adaptive)


@pytest.mark.parametrize(("remaining", "gamma"), [(1, 0), (2, 1), (5, 4), (6, 5), (100, 8)])
def test_a_round_never_commits_more_than_the_answer_may_have(remaining, gamma):
    assert within_answer(8, remaining) == gamma


@pytest.mark.parametrize(("base_length", "gamma"), [(10, 8), (94, 7), (100, 1), (101, 0), (150, 0)])
def test_the_draft_is_not_asked_past_its_context(base_length, gamma):
    assert within_draft(8, base_length, context_length=100, max_gamma=16) == gamma
