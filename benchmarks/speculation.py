"""The arithmetic of speculation on recorded answers: acceptance by position, costs, speed-ups. Pure.

With draft tokens that stand with the chances a_1, a_2, … (each given the ones before it), a round commits
E = 1 + a_1 + a_1·a_2 + … tokens for the time of its proposal and one target pass over gamma + 1 tokens, where plain
decoding needs E passes over one token (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, by position).
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.recording import Recording, Round

# The pace of fewer tokens says nothing.
MIN_DECODED_TOKENS = 8

Pair = tuple[Recording, Recording]
"""Answers to one prompt in one run: with gamma 0, and speculating."""


def acceptance_by_position(rounds: Iterable[Round]) -> list[dict[str, float]]:
    """Count how often each draft token of a round stood, given that the ones before it did.

    Proposals may differ in length: a round counts at position i only when it had more than i draft tokens.

    Returns:
        One entry a position, the first one for the first draft token: rounds that reached it, rounds that accepted it,
        and their ratio. Ends with the last position that was reached.
    """
    reached: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for one in rounds:
        for position in range(min(one.gamma, one.accept_index + 1)):
            reached[position] += 1
            accepted[position] += position < one.accept_index
    return [
        {"reached": reached[position], "accepted": accepted[position], "rate": accepted[position] / reached[position]}
        for position in range(len(reached))
    ]


def pass_seconds(recordings: Iterable[Recording]) -> dict[int, float]:
    """Return the mean seconds of a target pass by the number of tokens in it, the prompt's passes left out."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for recording in recordings:
        for one in recording.decoding:
            seconds[one.gamma + 1].append(one.target.model)
    return {tokens: statistics.fmean(found) for tokens, found in sorted(seconds.items())}


def pace(recording: Recording) -> float:
    """Return tokens a second between the first tokens and the last."""
    return recording.decoded_tokens / recording.decoding_seconds


def model_pace(recording: Recording) -> float:
    """Return tokens a second if nothing took time but the models."""
    return recording.decoded_tokens / recording.model_seconds


def overall_pace(recording: Recording) -> float:
    """Return tokens a second from the request to the last tokens."""
    return len(recording.token_ids) / recording.seconds


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return median and quartiles; None for no values."""
    if not values:
        return None
    if len(values) == 1:
        return dict.fromkeys(("low", "median", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"low": low, "median": median, "high": high}


def pace_figures(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Sum up answers of one way of decoding: counts and pace.

    Args:
        recordings: at least one.
    """
    rounds = [one for recording in recordings for one in recording.decoding]
    long = [recording for recording in recordings if recording.decoded_tokens >= MIN_DECODED_TOKENS]
    return {
        "answers": len(recordings),
        "tokens": sum(len(recording.token_ids) for recording in recordings),
        "rounds": len(rounds),
        "fallback_rounds": sum(one.fell_back for recording in recordings for one in recording.rounds),
        "first_token_seconds": spread([recording.rounds[0].arrived for recording in recordings]),
        "tokens_a_second": spread([pace(recording) for recording in long]),
        "tokens_a_second_overall": spread([overall_pace(recording) for recording in recordings]),
        "tokens_a_round": _mean(one.emitted for one in rounds),
    }


def cost_figures(recordings: Sequence[Recording]) -> dict[str, float | None]:
    """Return the mean milliseconds of a call and inside the model servers, over the rounds after each first one."""
    rounds = [one for recording in recordings for one in recording.decoding]
    return {
        "propose_call": _milliseconds(one.propose_seconds for one in rounds),
        "draft": _milliseconds(one.draft.model for one in rounds),
        "draft_token": _a_draft_token(rounds),
        "verify_call": _milliseconds(one.verify_seconds for one in rounds),
        "target": _milliseconds(one.target.model for one in rounds),
        "target_forward": _milliseconds(one.target.forward for one in rounds),
    }


def comparison(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Compare answers with others to the same prompts, by the pace after the first tokens.

    Args:
        pairs: first the other, then the answer; at least one.
    """
    found = list(pairs)
    measured = [pace(answer) / pace(other) for other, answer in _long(found)]
    return {
        "compared": len(measured),
        "speedup": spread(measured),
        "speedup_overall": spread([overall_pace(answer) / overall_pace(other) for other, answer in found]),
        "speedups": measured,
    }


def _long(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if min(one.decoded_tokens for one in pair) >= MIN_DECODED_TOKENS]


def speculation_figures(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Compare speculating answers with plain ones.

    Args:
        pairs: at least one.

    Returns:
        Figures by name. ``speedup`` is the pace after the first tokens against the plain answer's to the same prompt,
        ``expected_speedup`` the same ratio if nothing took time but the models, ``efficiency`` the one over the other.
    """
    compared = comparison(pairs)
    expected = [model_pace(speculative) / model_pace(plain) for plain, speculative in _long(pairs)]
    recordings = [speculative for _, speculative in pairs]
    rounds = [one for recording in recordings for one in recording.decoding]
    return {
        **compared,
        "acceptance": acceptance_by_position(one for recording in recordings for one in recording.rounds),
        "draft_tokens_a_round": _mean(one.gamma for one in rounds),
        "rounds_without_draft_tokens": sum(not one.gamma for one in rounds),
        "expected_speedup": spread(expected),
        "efficiency": spread([real / ideal for real, ideal in zip(compared["speedups"], expected, strict=True)]),
    }


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the index at which two answers part; None where they are equal."""
    if list(one) == list(other):
        return None
    parted = (index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return next(parted, min(len(one), len(other)))


def _a_draft_token(rounds: Sequence[Round]) -> float | None:
    drafted = sum(one.gamma for one in rounds)
    return 1000 * sum(one.draft.model for one in rounds) / drafted if drafted else None


def _milliseconds(seconds: Iterable[float]) -> float | None:
    mean = _mean(seconds)
    return None if mean is None else 1000 * mean


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None
