"""Caches grow in steps, keep what they hold, and are cut without copying."""

import pytest
import torch

from specdec.model.kv_cache import STEP, TensorCache


def append(cache, *numbers):
    """Append one token a number in two layers, as a forward pass does; return what the second layer then sees."""
    cache.reserve(cache.length + len(numbers))
    keys = torch.tensor(numbers, dtype=torch.float32).view(1, -1, 1).expand(2, -1, 3)
    for layer in range(2):
        seen = cache.append(layer, keys, -keys[..., :1])
    cache.length += len(numbers)
    return seen


def test_capacity_grows_in_steps_and_never_shrinks():
    cache = TensorCache()
    assert (cache.capacity, cache.capacity_for(0), cache.capacity_for(1)) == (0, 0, STEP)
    append(cache, *range(STEP + 1))
    assert cache.capacity == cache.capacity_for(3) == 2 * STEP
    cache.cut(1)
    assert cache.capacity == cache.capacity_for(2 * STEP) == 2 * STEP
    assert cache.capacity_for(2 * STEP + 1) == 3 * STEP


def test_growing_keeps_what_is_held():
    cache = TensorCache()
    append(cache, *range(STEP))
    keys, values = append(cache, 7, 8)
    assert keys[1, :, 2].tolist() == [*range(STEP), 7, 8]
    assert values[0, :, 0].tolist() == [-number for number in [*range(STEP), 7, 8]]


def test_what_is_appended_after_a_cut_takes_the_place_of_what_was_cut():
    cache = TensorCache()
    append(cache, 1, 2, 3, 4)
    before = append(cache, 5)[0].data_ptr()
    cache.cut(2)
    keys, _ = append(cache, 9)
    assert keys[0, :, 0].tolist() == [1, 2, 9]
    assert keys.data_ptr() == before


def test_a_pass_that_failed_leaves_no_trace():
    cache = TensorCache()
    append(cache, 1, 2)
    cache.reserve(2 + STEP)
    cache.append(0, torch.full((2, STEP, 3), 8.0), torch.full((2, STEP, 1), 8.0))  # the second layer never comes
    keys, _ = append(cache, 3)
    assert keys[0, :, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("length", [-1, 3])
def test_a_cut_cannot_lengthen(length):
    cache = TensorCache()
    append(cache, 1, 2)
    with pytest.raises(ValueError, match="cannot be cut"):
        cache.cut(length)
