"""How many draft tokens to ask for. Pure: the same counts give the same number, on whichever coordinator.

The number may depend on what was committed and on nothing that a draft token of the coming round says.
"""

from collections.abc import Callable

from coordinator.session import Usage

DEFAULT_GAMMA = 4

Policy = Callable[[Usage], int]
"""From the counts of the answer so far to the draft tokens wanted next."""


def policy_of(gamma: int | None) -> Policy:
    """Return the policy a request asks for.

    Args:
        gamma: draft tokens a round, 0 for off; None leaves the choice to us.
    """
    wanted = DEFAULT_GAMMA if gamma is None else gamma
    return lambda _: wanted


def within_answer(gamma: int, remaining: int, max_gamma: int) -> int:
    """Limit gamma to what a round may commit.

    Args:
        gamma: draft tokens wanted.
        remaining: tokens the answer may still have, at least 1; the target adds one of them itself.
        max_gamma: draft tokens a round may have at most.
    """
    return min(gamma, remaining - 1, max_gamma)


def within_draft(gamma: int, base_length: int, context_length: int, max_gamma: int) -> int:
    """Limit gamma to what the draft can propose; 0 when the session has outgrown it.

    The draft never feeds the last draft token, so its context may end one before it.

    Args:
        gamma: draft tokens wanted.
        base_length: committed tokens.
        context_length: tokens the draft can hold.
        max_gamma: draft tokens it proposes at most.
    """
    return max(0, min(gamma, context_length - base_length + 1, max_gamma))
