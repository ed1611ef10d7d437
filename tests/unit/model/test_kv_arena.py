"""Caches grow in steps within one arena, keep what they hold wherever it moves, and are cut without copying."""

import random
from itertools import pairwise

import pytest
import torch

from specdec.model.kv_arena import SLACK, Arena, TensorCache
from specdec.model.kv_cache import STEP

HEADS, SIZE, LAYERS = 2, 3, 2


def feed(arena, cache, *numbers):
    """Write one entry a number in two layers, as a forward pass does."""
    cache.reserve(cache.entries + len(numbers))
    rows = torch.tensor(cache.next_rows(len(numbers)))
    keys = torch.tensor(numbers, dtype=torch.float32).view(1, -1, 1).expand(HEADS, -1, SIZE)
    with torch.inference_mode():
        for layer in range(LAYERS):
            arena.write(layer, rows, keys, -keys[..., :1])
    cache.length += len(numbers)


def held(arena, cache):
    """Return what every head of every layer holds of a cache, which must all be the same."""
    part = slice(cache.start, cache.start + cache.entries)
    for keys, values in arena.layers:
        assert torch.equal(keys[part], -values[part].expand(-1, HEADS, SIZE))
        assert torch.equal(keys[part], arena.layers[0][0][part])
    return arena.layers[0][0][part, 0, 0].tolist()


@pytest.fixture
def arena():
    return Arena()


def test_capacity_grows_in_steps_and_never_shrinks(arena):
    cache = TensorCache(arena)
    assert (cache.capacity, cache.capacity_for(0), cache.capacity_for(1)) == (0, 0, STEP)
    feed(arena, cache, *range(STEP + 1))
    assert cache.capacity == cache.capacity_for(3) == 2 * STEP
    cache.cut(1)
    assert cache.capacity == cache.capacity_for(2 * STEP) == 2 * STEP
    assert cache.capacity_for(2 * STEP + 1) == 3 * STEP


def test_what_is_fed_after_a_cut_takes_the_place_of_what_was_cut(arena):
    cache = TensorCache(arena)
    feed(arena, cache, 1, 2, 3, 4, 5)
    cache.cut(2)
    feed(arena, cache, 9)
    assert held(arena, cache) == [1, 2, 9]


def test_a_pass_that_failed_leaves_no_trace(arena):
    cache = TensorCache(arena)
    feed(arena, cache, 1, 2)
    cache.reserve(2 + STEP)
    rows = torch.tensor(cache.next_rows(STEP))
    with torch.inference_mode():  # the second layer never comes
        arena.write(0, rows, torch.full((HEADS, STEP, SIZE), 8.0), torch.full((HEADS, STEP, 1), 8.0))
    feed(arena, cache, 3)
    assert held(arena, cache) == [1, 2, 3]


def test_sessions_that_come_grow_and_go_keep_what_they_hold_in_little_room(arena):
    chance = random.Random(4)
    sessions, most = {}, 0
    for turn in range(60):
        if sessions and chance.random() < 0.2:
            del sessions[chance.choice(list(sessions))]
        key = chance.randrange(12)
        cache, numbers = sessions.setdefault(key, (TensorCache(arena), []))
        cut = chance.randint(0, cache.length)
        cache.cut(cut)
        new = [float(turn)] * chance.randint(1, 300)
        numbers[cut:] = new
        feed(arena, cache, *new)
        assert all(held(arena, cache) == numbers for cache, numbers in sessions.values())
        extents = sorted((cache.start, cache.start + cache.capacity) for cache, _ in sessions.values())
        assert all(stop <= start for (_, stop), (start, _) in pairwise(extents))
        most = max(most, sum(cache.capacity for cache, _ in sessions.values()))
    assert extents[-1][1] <= arena.size <= most + most // SLACK
    assert len(arena.layers[0][0]) == arena.size


@pytest.mark.parametrize("length", [-1, 3])
def test_a_cut_cannot_lengthen(arena, length):
    cache = TensorCache(arena)
    feed(arena, cache, 1, 2)
    with pytest.raises(ValueError, match="cannot be cut"):
        cache.cut(length)
