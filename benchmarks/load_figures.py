"""What many answers at once come to: tokens a second in all, and what each of their readers waits. Pure."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.load_run import WARM_SHARE, Answered
from benchmarks.recording import Round
from benchmarks.speculation import MIN_DECODED_TOKENS, acceptance_by_position


def load_figures(runs: Sequence[Sequence[Answered]], seconds: float) -> dict[str, Any]:
    """Sum up runs of one kind; what came, was asked for or was refused in the warm-up of each is left out.

    Args:
        runs: what each brought, at least one.
        seconds: of each.

    Returns:
        Figures by name; ``tokens_a_second`` is the median over runs. An answer whose first tokens had not come when
        time was up counts with what it had waited.
    """
    warm = WARM_SHARE * seconds
    answers = [answer for run in runs for answer in run]
    asked = [answer for answer in answers if answer.begun >= warm]
    begun = [answer for answer in asked if not answer.refused]
    paces = [tokens_a_second(run, warm, seconds) for run in runs]
    rounds = [
        one for answer in answers for one in answer.recording.decoding if warm <= answer.begun + one.arrived < seconds
    ]
    drafted = sum(one.gamma for one in rounds)
    return {
        "answers": len(begun),
        "refused": sum(answer.refused for answer in asked),
        "waiting": sum(not answer.recording.rounds for answer in begun),
        "tokens_a_second": statistics.median(paces),
        "tokens_a_second_by_run": paces,
        "first_token_seconds": percentiles([first_token(answer, seconds) for answer in begun]),
        "token_seconds": percentiles([pace for answer in answers for pace in token_seconds(answer, warm, seconds)]),
        "rounds": len(rounds),
        "fallback_rounds": sum(one.fell_back for one in rounds),
        "draft_tokens_a_round": drafted / len(rounds) if rounds else None,
        "acceptance": acceptance_by_position(rounds),
        "round_ms": round_ms(rounds),
    }


def round_ms(rounds: Sequence[Round]) -> dict[str, float] | None:
    """Return where the time of a round's calls goes, in medians; None for no rounds."""
    parts = {
        "propose": [one.propose_seconds for one in rounds],
        "queue": [one.target.queue for one in rounds],
        "forward": [one.target.forward for one in rounds],
        "sampling": [one.target.sampling for one in rounds],
        "verify_else": [max(0.0, one.verify_seconds - one.target.queue - one.target.model) for one in rounds],
    }
    return {part: 1000 * statistics.median(seconds) for part, seconds in parts.items()} if rounds else None


def tokens_a_second(run: Sequence[Answered], start: float, end: float) -> float:
    """Return the tokens that came between two moments, a second."""
    came = [(answer.begun + one.arrived, one.emitted) for answer in run for one in answer.recording.rounds]
    return sum(tokens for moment, tokens in came if start <= moment < end) / (end - start)


def first_token(answer: Answered, end: float) -> float:
    """Return the seconds to the first tokens; what was waited at the end for those that had none."""
    rounds = answer.recording.rounds
    return rounds[0].arrived if rounds else end - answer.begun


def token_seconds(answer: Answered, start: float, end: float) -> list[float]:
    """Return the mean seconds of an answer's tokens after its first ones between two moments; nothing for too few."""
    came = [one for one in answer.recording.rounds if start <= answer.begun + one.arrived < end]
    later = sum(one.emitted for one in came[1:])
    return [(came[-1].arrived - came[0].arrived) / later] if later >= MIN_DECODED_TOKENS else []


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Return p50 and p99: the least value that at least so many of the values do not exceed; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{share}": ordered[math.ceil(share / 100 * len(ordered)) - 1] for share in (50, 99)}
