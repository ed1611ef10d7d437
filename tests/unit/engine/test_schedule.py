"""How a pass is shared: bounded, complete, short feeds first, nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.model.schedule import SHORT_FEED, share_tokens

pendings = st.lists(st.integers(1, 300), min_size=1, max_size=40)
budgets = st.integers(2, 200)


@given(pendings, budgets)
def test_pass_is_bounded_and_full(pending, budget):
    shares = share_tokens(pending, budget)
    assert all(0 <= share <= count for share, count in zip(shares, pending, strict=True))
    assert sum(shares) == min(budget, sum(pending))


def test_short_feeds_go_whole_beside_a_prompt():
    assert share_tokens([1000, 5, 17, 1], 64) == [64 - 23, 5, 17, 1]


def test_prompt_gets_its_part_under_many_short_feeds():
    shares = share_tokens([SHORT_FEED] * 50 + [1000], 64)
    assert shares[-1] == 16
    assert shares[:3] == [32, 16, 0]


def test_prompts_share_evenly_and_a_small_one_leaves_the_rest():
    assert share_tokens([500, 500, 40], 160) == [60, 60, 40]


@given(st.lists(st.integers(1, 80), min_size=1, max_size=30), st.integers(2, 64))
def test_everyone_is_served_within_a_cycle_while_others_never_end(pending, budget):
    waiting = list(range(len(pending)))
    unserved = set(waiting)
    for _ in range(4 * len(pending) + sum(count for count in pending if count <= SHORT_FEED)):
        shares = share_tokens([pending[index] for index in waiting], budget)
        served = [index for index, share in zip(waiting, shares, strict=True) if share]
        unserved -= set(served)
        waiting = [index for index in waiting if index not in served] + served
    assert not unserved
