"""However sessions share calls of attention, each gets what it gets alone, and no pass waits for the device."""

import random
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from specdec.model import agreement
from specdec.model.attention import RAGGED, groupings
from specdec.model.attention_calls import NeighbourCall, PageCall, Span
from specdec.model.flash_call import flash_calls
from specdec.model.kv_cache import STEP
from specdec.model.language_model import Branches, Segment
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_models import VOCABULARY, write_tiny_model

WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


def varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa, seqused_k):
    """What torch's variable-length attention does, one session after the other; it has no CPU kernel."""
    assert window_size == (-1, 0)
    assert all(numbers.dtype == torch.int32 for numbers in (cu_seq_q, cu_seq_k, seqused_k))
    results = []
    for index, used in enumerate(seqused_k.tolist()):
        rows, start = query[cu_seq_q[index] : cu_seq_q[index + 1]], int(cu_seq_k[index])
        assert len(rows) <= max_q
        assert used <= min(max_k, int(cu_seq_k[index + 1]) - start)
        parts = [rows, key[start : start + used], value[start : start + used]]
        mask = torch.ones(len(rows), used, dtype=torch.bool).tril(used - len(rows))
        heads = [part.transpose(0, 1).unsqueeze(0) for part in parts]
        found = functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        results.append(found[0].transpose(0, 1))
    return torch.cat(results)


GROUPINGS = {"neighbours": NeighbourCall.calls, "pages": PageCall.calls, "flash": partial(flash_calls, kernel=varlen)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), context=1024)


@pytest.fixture
def model(folder):
    return load_model(folder, "cpu", "float64")


def sequence(length, seed):
    return random.Random(seed).choices(range(len(VOCABULARY)), k=length)


def prefilled(model, lengths):
    caches = [model.new_cache() for _ in lengths]
    model.forward([Segment(cache, sequence(length, length), 0) for cache, length in zip(caches, lengths, strict=True)])
    return caches


def ragged(caches):
    """Steps, verifications of several lengths, a chunk of a prompt and a tree, all in one pass."""
    feds = [1, 5, 3, 40, 1, 8, 9, 5]
    segments = [Segment(cache, sequence(fed, 50 + fed), min(fed, 6)) for cache, fed in zip(caches, feds, strict=False)]
    tree = Branches(caches[-1], [7, 8, 9, 10], 4, [caches[-1].length - 1, 20, caches[-1].length, 20])
    return [*segments, tree]


@pytest.mark.parametrize("name", GROUPINGS)
def test_sessions_that_share_calls_get_what_they_get_alone(model, name):
    lengths = [200, 230, 255, 300, 40, 33, 600, 30, 90]
    alone = [model.forward([segment])[0] for segment in ragged(prefilled(model, lengths))]
    model.grouping = GROUPINGS[name]
    together = model.forward(ragged(prefilled(model, lengths)))
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", GROUPINGS)
def test_a_batch_of_like_sessions_is_one_call_and_a_chunk_stands_alone(model, name):
    caches = prefilled(model, [100 + index for index in range(8)])
    feds = [5, 3, 8, 5, 2, 5, 5, 100]
    spans = [Span(Segment(cache, [0] * fed, 1), cache, cache.length) for cache, fed in zip(caches, feds, strict=True)]
    shared = [len(call.spans) for call in GROUPINGS[name](spans)]
    assert sorted(shared) == ([8] if name == "flash" else [1, 7])


@pytest.mark.parametrize("name", GROUPINGS)
def test_what_a_broken_pass_left_reaches_nobody(model, name):
    model.grouping = GROUPINGS[name]
    short, long = prefilled(model, [20, 250])
    gone, last = prefilled(model, [STEP, 10])
    with torch.inference_mode():
        for cache in (short, gone):  # cut entries of a session's own, and rows that somebody else will get
            for held in model.arena.layers[1]:
                held[cache.start + 15 : cache.start + 20] = float("nan")
    short.cut(15)
    del gone, cache
    newcomer = model.new_cache()
    found = model.forward([Segment(short, [1], 1), Segment(long, [1], 1), Segment(newcomer, [1], 1)])
    assert torch.cat(found).isfinite().all()
    assert newcomer.start < last.start


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in WAITING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["neighbours", "pages"])
def test_no_pass_waits_for_the_device(model, name, monkeypatch):
    model.grouping = GROUPINGS[name]
    caches = prefilled(model, [20, 30, 40])
    caches[0].cut(10)
    with Waits() as waits:
        model.forward(
            [Segment(caches[0], [1], 1), Segment(caches[1], [1, 2], 2), Branches(caches[2], [5, 6], 2, [3, 9])]
        )
    assert waits.count == 0
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, RAGGED, sdpa_mask)  # looks for packed sequences
    with Waits() as waits:
        model.forward([Segment(caches[0], [1], 1)])
    assert waits.count > 0


def test_a_device_has_its_ways_and_what_does_not_agree_serves_nobody(folder, monkeypatch, caplog):
    assert groupings(torch.device("cpu"), torch.float32) == [NeighbourCall.calls]
    assert groupings(torch.device("mps"), torch.bfloat16) == [PageCall.calls]

    def wrong(*args, **kwargs):
        return varlen(*args, **kwargs) * 1.5

    def missing(*args, **kwargs):
        raise RuntimeError("no kernel image")

    ways = [partial(flash_calls, kernel=wrong), partial(flash_calls, kernel=missing), PageCall.calls]
    monkeypatch.setattr(agreement, "groupings", lambda device, dtype: ways)
    assert load_model(folder, "cpu", "float64").grouping == PageCall.calls
    assert "differ from its own" in caplog.text
    assert "no kernel image" in caplog.text
    monkeypatch.setattr(agreement, "groupings", lambda device, dtype: ways[:1])
    with pytest.raises(ModelRefused, match="differ from its own"):
        load_model(folder, "cpu", "float64")
