"""How a forward pass's tokens are shared among the sessions that have something to feed."""

from collections.abc import Sequence

SHORT_FEED = 32  # decoding and verification feed up to max_gamma + 1 tokens; what is longer is (part of) a prompt
PROMPT_PART = 4  # prompts get at least one in so many tokens of a pass, however much decoding there is


def share_tokens(pending: Sequence[int], budget: int) -> list[int]:
    """Choose how many tokens each session feeds in the next pass.

    Short feeds go first and whole; prompts share what is left evenly, and never less than a part of the pass. Where
    that is not enough for all, the first in order are served: callers put those who got nothing first next time, so
    that nobody starves.

    Args:
        pending: [n] tokens waiting in each session, at least 1, longest unserved first.
        budget: tokens of the pass, at least 2.

    Returns:
        [n] tokens to feed, each 0 to pending, together min(budget, sum(pending)) of them.
    """
    prompts = [index for index, count in enumerate(pending) if count > SHORT_FEED]
    reserved = min(sum(pending[index] for index in prompts), -(-budget // PROMPT_PART))
    left = budget - reserved
    shares = [0] * len(pending)
    for index, count in enumerate(pending):
        if count <= SHORT_FEED:
            shares[index] = min(count, left)
            left -= shares[index]
    left += reserved
    served = prompts[:left]  # at least a token each
    for rank, index in enumerate(sorted(served, key=lambda index: pending[index])):
        shares[index] = min(pending[index], -(-left // (len(served) - rank)))
        left -= shares[index]
    return shares
