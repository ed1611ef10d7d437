"""The synthetic model's law is the one it says, through caches, cuts and batches."""

import time

import pytest
import torch

from specdec.model.kv_cache import STEP
from specdec.model.language_model import Branches, Segment
from specdec.model.refusal import ModelRefused
from specdec.model.synthetic import SyntheticModel, SyntheticSettings
from specdec.vocabulary import bytes_vocabulary, vocabulary_fingerprint

CPU = torch.device("cpu")


def model(name="synthetic:", dtype=torch.float64):
    return SyntheticModel(name, CPU, dtype)


def probabilities(logits):
    return logits.exp() / logits.exp().sum(dim=-1, keepdim=True)


def contexts(size):
    return [[token] for token in range(size)]


@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.67, 1.0])
@pytest.mark.parametrize("vocabulary", [2, 3, 8, 100])
def test_agreement_is_the_shared_mass_in_every_context(agreement, vocabulary):
    target = model(f"synthetic:vocabulary={vocabulary},seed=4")
    draft = model(f"synthetic:vocabulary={vocabulary},seed=4,agreement={agreement}")
    for context in contexts(vocabulary):
        p, q = target.law(context), draft.law(context)
        assert p.sum().item() == pytest.approx(1, abs=1e-12)
        assert q.sum().item() == pytest.approx(1, abs=1e-12)
        assert torch.minimum(p, q).sum().item() == pytest.approx(agreement, abs=1e-12)


def test_a_draft_fits_the_default_support():
    draft = model("synthetic:vocabulary=1000,agreement=0.5")
    assert max(int((draft.law([token]) > 0).sum()) for token in range(1000)) == 64


@pytest.mark.parametrize("order", [1, 2, 3])
def test_as_many_tokens_as_the_order_says_decide(order):
    laws = model(f"synthetic:vocabulary=7,seed=1,order={order}")
    base = [1, 2, 3, 4, 5]
    for back in range(1, len(base) + 1):
        changed = [*base]
        changed[-back] = 6
        assert torch.equal(laws.law(changed), laws.law(base)) == (back > order)


def test_seeds_differ_and_repeat():
    one, again, other = (model(f"synthetic:seed={seed}") for seed in (1, 1, 2))
    assert torch.equal(one.law([5]), again.law([5]))
    assert not torch.equal(one.law([5]), other.law([5]))
    assert (
        one.description.model_fingerprint == again.description.model_fingerprint != other.description.model_fingerprint
    )


def test_logits_are_the_law_for_ragged_segments_after_cuts():
    served = model("synthetic:vocabulary=16,seed=3,order=2")
    first, second = served.new_cache(), served.new_cache()
    assert [rows.shape for rows in served.forward([Segment(first, [1, 2, 3], 0), Segment(second, [9], 1)])] == [
        (0, 16),
        (1, 16),
    ]
    first.cut(1)
    rows, other = served.forward([Segment(first, [7, 8, 4], 3), Segment(second, [5, 6], 1)])
    expected = [served.law([1, 7]), served.law([1, 7, 8]), served.law([1, 7, 8, 4])]
    torch.testing.assert_close(probabilities(rows), torch.stack(expected), rtol=0, atol=1e-15)
    torch.testing.assert_close(probabilities(other)[0], served.law([9, 5, 6]), rtol=0, atol=1e-15)
    assert (first.length, first.capacity, second.length) == (4, STEP, 3)


def test_branches_see_their_own_ancestors_and_one_of_them_becomes_the_sequence():
    served = model("synthetic:vocabulary=16,seed=3,order=3")
    cache = served.new_cache()
    served.forward([Segment(cache, [1, 2, 3], 0)])
    rows, _ = served.forward([Branches(cache, [4, 5, 6], 3, [2, 1, 4]), Segment(served.new_cache(), [1], 1)])
    expected = [served.law(context) for context in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6])]
    torch.testing.assert_close(probabilities(rows), torch.stack(expected), rtol=0, atol=1e-15)
    assert (cache.length, cache.branches) == (3, [2, 1, 4])
    longer = Branches(cache, [7, 8], 1, [5, 3])
    assert list(longer.positions) == [4, 4]
    (rows,) = served.forward([longer])
    torch.testing.assert_close(probabilities(rows)[0], served.law([2, 3, 4, 8]), rtol=0, atol=1e-15)
    cache.adopt(6)  # 1 2 5 6 7
    assert (cache.length, cache.branches, cache.tokens[:5]) == (5, [], [1, 2, 5, 6, 7])
    (rows,) = served.forward([Segment(cache, [9], 1)])
    torch.testing.assert_close(probabilities(rows)[0], served.law([6, 7, 9]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("forget", [lambda cache: cache.cut(2), lambda cache: cache.adopt(1)])
def test_a_cut_and_an_adoption_within_the_sequence_forget_all_branches(forget):
    served = model("synthetic:vocabulary=16,order=2")
    cache = served.new_cache()
    served.forward([Segment(cache, [1, 2, 3], 0)])
    served.forward([Branches(cache, [4, 5], 2, [2, 3])])
    forget(cache)
    assert (cache.length, cache.branches) == (2, [])
    (rows,) = served.forward([Segment(cache, [9], 1)])
    torch.testing.assert_close(probabilities(rows)[0], served.law([2, 9]), rtol=0, atol=1e-15)


def test_branches_count_as_deep_as_they_are():
    served = model("synthetic:vocabulary=16,context=4")
    cache = served.new_cache()
    served.forward([Segment(cache, [1, 2, 3], 0)])
    served.forward([Branches(cache, [4, 5, 6], 3, [2, 2, 2])])
    with pytest.raises(ValueError, match="not within"):
        served.forward([Branches(cache, [7], 1, [5])])


def test_no_mass_is_exactly_none_and_finite_at_every_temperature():
    for dtype in (torch.float64, torch.float32):
        served = model("synthetic:vocabulary=16", dtype)
        (rows,) = served.forward([Segment(served.new_cache(), [3], 1)])
        assert rows.dtype == dtype
        assert torch.isfinite(rows / 1e-5).all()
        assert torch.equal(probabilities(rows / 100)[0] > 0, served.law([3]) > 0)


def test_a_pass_takes_at_least_its_time():
    served = model("synthetic:pass_ms=20,token_ms=5")
    started = time.perf_counter()
    served.forward([Segment(served.new_cache(), [1, 2], 0), Segment(served.new_cache(), [3], 1)])
    assert time.perf_counter() - started >= 0.035


@pytest.mark.parametrize(("tokens", "rows"), [([], 0), ([1], 2), ([1, 2, 3, 4, 5], 1)])
def test_segments_that_cannot_be_fed_are_refused(tokens, rows):
    served = model("synthetic:context=4")
    with pytest.raises(ValueError, match="not within"):
        served.forward([Segment(served.new_cache(), tokens, rows)])


def test_description():
    description = model("synthetic:vocabulary=300,context=99,seed=2").description
    assert description.eos_token_ids == (299,)
    assert (description.vocabulary_size, description.context_length, description.tokenizer) == (300, 99, "bytes")
    assert description.vocabulary_fingerprint == vocabulary_fingerprint(bytes_vocabulary(300), 300)
    slower = model("synthetic:vocabulary=300,context=99,seed=2,pass_ms=1").description
    assert slower.model_fingerprint == description.model_fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        "speed=1",
        "seed=x",
        "seed=-1",
        "agreement=1.5",
        "agreement=nan",
        "vocabulary=1",
        "seed=1,seed=2",
        "seed",
        "order=0",
    ],
)
def test_names_that_cannot_be_read_are_refused(settings):
    with pytest.raises(ModelRefused, match="synthetic:"):
        model(f"synthetic:{settings}")


def test_every_key_is_read():
    name = "synthetic:vocabulary=9,seed=1,agreement=0.5,context=7,pass_ms=2.5,token_ms=0.5,order=2"
    assert SyntheticSettings.parse(name) == SyntheticSettings(9, 1, 0.5, 7, 2.5, 0.5, 2)
