"""Trying a draft that has not read the text: it reads all of it first, and that is time, too."""

import random
from dataclasses import replace

from coordinator.experience import TRIAL_SHARE, Experience
from coordinator.gamma import Adaptive, Fixed
from tests.unit.coordinator.test_gamma import MAX_GAMMA, World

PROMPT = 90  # tokens
READING_SECONDS = 0.0018  # of the draft, a token
POOR = World(0.45, 0.042, (0.052, 0.058, 0.061, 0.080))
GOOD = World(0.9, 0.005, (0.052, 0.053))


def pace(world, policy, rounds, rng):
    """Return tokens and seconds of one answer; the draft reads what it lacks whenever it is asked."""
    length, held, tokens, seconds = PROMPT, 0, 0, 0.0
    for _ in range(rounds):
        round_ = world.round(policy.choose(MAX_GAMMA, length), rng)
        drafted = round_.drafted
        if drafted.asked:
            reading = READING_SECONDS * (length - held)
            drafted = replace(drafted, reused_length=held, seconds=drafted.seconds + reading)
            held = length
        read = replace(round_.verdict, reused_length=length)
        round_ = replace(round_, base_length=length, drafted=drafted, verdict=read)
        policy.observe(round_)
        length += len(round_.block)
        tokens += len(round_.block)
        seconds += drafted.seconds + round_.verdict.seconds
    policy.close()
    return tokens, seconds


def rate(world, policies, rounds, seed):
    rng = random.Random(seed)
    answers = [pace(world, policy, rounds, rng) for policy in policies]
    return sum(tokens for tokens, _ in answers) / sum(seconds for _, seconds in answers)


def learning_alone(count):
    experience = Experience()
    return [Adaptive(experience, shared=False) for _ in range(count)]


def test_short_answers_that_learn_alone_pay_for_few_readings():
    plain = rate(POOR, [Fixed(Experience(), 0, shared=False)], 2000, 1)
    assert rate(POOR, learning_alone(100), 40, 2) >= 0.97 * plain


def test_control_they_would_pay_more_for_one_each():
    plain = rate(POOR, [Fixed(Experience(), 0, shared=False)], 2000, 1)
    tried = [trying_once(Fixed(Experience(), 0, shared=False)) for _ in range(100)]
    assert rate(POOR, tried, 40, 2) < 0.97 * plain


def trying_once(policy):
    """Ask for one draft token in the fifth round, and for none in all others."""
    numbers = iter([0] * 4 + [1])
    policy.choose = lambda *_: next(numbers, 0)
    return policy


def test_a_good_draft_is_read_to_all_the_same():
    best = rate(GOOD, [Fixed(Experience(), 8, shared=False) for _ in range(100)], 40, 1)
    assert rate(GOOD, learning_alone(100), 40, 2) >= 0.9 * best


def test_a_trial_of_another_number_does_not_pay_for_a_reading_that_the_answer_needs_anyway():
    experience, rng = Experience(), random.Random(3)
    for _ in range(5):
        pace(GOOD, Adaptive(experience, shared=True), 40, rng)
    trials = 0
    for _ in range(8):
        experience.earn(9.0 / TRIAL_SHARE)
        before = experience.costs.trials
        policy = Adaptive(experience, shared=True)
        policy.choose(MAX_GAMMA, 10_000)
        trials += experience.costs.trials - before
        assert experience.pay(0.5), "reading takes 18 seconds"
    assert trials > 0
