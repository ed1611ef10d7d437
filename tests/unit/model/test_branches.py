"""A tree of branches gives what each of its paths gives, fed one token after the other; one of them can be adopted."""

import pytest
import torch
import transformers

from specdec.model.language_model import Branches, Segment
from specdec.model.loading import load_model
from tests.tiny_models import write_tiny_model

SEQUENCE = [1, 2, 3, 4, 5, 6]
# Two passes: entries 6 … 10, then 11 … 13. Forks lie at the end of the sequence, within it, and within branches.
FIRST = ([10, 11, 12, 13, 14], [5, 6, 5, 8, 2])
SECOND = ([15, 16, 17], [7, 10, 12])
PATHS = {
    6: [*SEQUENCE, 10],
    7: [*SEQUENCE, 10, 11],
    8: [*SEQUENCE, 12],
    9: [*SEQUENCE, 12, 13],
    10: [1, 2, 3, 14],
    11: [*SEQUENCE, 10, 11, 15],
    12: [1, 2, 3, 14, 16],
    13: [1, 2, 3, 14, 16, 17],
}


@pytest.fixture(scope="module", params=["llama", "gpt2"])  # rotary and learned positions
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write_tiny_model(folder, request.param)
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).save_pretrained(folder)
    return load_model(str(folder), "cpu", "float64")


def linear(model, tokens, rows=1):
    """Feed a sequence as it comes, in a fresh cache."""
    return model.forward([Segment(model.new_cache(), tokens, rows)])[0]


def branched(model, second=SECOND):
    """Feed the tree in company; return its cache and the logits of all branch entries."""
    cache, other = model.new_cache(), model.new_cache()
    model.forward([Segment(cache, SEQUENCE, 0)])
    first, _ = model.forward([Branches(cache, FIRST[0], 5, FIRST[1]), Segment(other, [7, 7], 1)])
    _, rest = model.forward([Segment(other, [8], 1), Branches(cache, second[0], 3, second[1])])
    return cache, torch.cat([first, rest])


def test_every_branch_gives_what_its_path_gives(model):
    cache, found = branched(model)
    expected = torch.cat([linear(model, path) for path in PATHS.values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (cache.length, cache.branches) == (6, FIRST[1] + SECOND[1])


def test_a_wrong_parent_is_noticed(model):
    _, found = branched(model, second=(SECOND[0], [7, 10, 11]))
    assert (found[-1] - linear(model, PATHS[13])[0]).abs().max() > 1e-4


@pytest.mark.parametrize("index", [13, 9, 11, 4])
def test_an_adopted_path_continues_as_if_it_had_been_fed(model, index):
    cache, _ = branched(model)
    cache.adopt(index)
    path = PATHS.get(index, SEQUENCE[: index + 1])
    assert (cache.length, cache.branches) == (len(path), [])
    (found,) = model.forward([Segment(cache, [20, 21], 2)])
    torch.testing.assert_close(found, linear(model, [*path, 20, 21], 2), rtol=0, atol=1e-10)


def test_a_segment_forgets_the_branches_and_a_failed_pass_none(model, monkeypatch):
    cache, _ = branched(model)
    with monkeypatch.context() as patch:
        patch.setattr(model.network.lm_head, "forward", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.forward([Branches(cache, [30], 1, [13])])
    assert cache.branches == FIRST[1] + SECOND[1]
    (found,) = model.forward([Segment(cache, [20], 1)])
    assert (cache.length, cache.branches) == (7, [])
    torch.testing.assert_close(found, linear(model, [*SEQUENCE, 20]), rtol=0, atol=1e-10)


def test_branches_take_room_and_their_depth_counts_as_context(model):
    cache = model.new_cache()
    model.forward([Segment(cache, SEQUENCE * 41, 0)])
    model.forward([Branches(cache, [1] * 12, 0, [245] * 12)])
    assert cache.capacity == 512
    model.forward([Branches(cache, list(range(9)), 0, [246, *range(258, 266)])])
    with pytest.raises(ValueError, match="exceed the context"):
        model.forward([Branches(cache, [1], 1, [266])])
