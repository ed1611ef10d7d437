"""A packed pass says what the unbatched Hugging Face model says, for sessions of any lengths."""

import random

import pytest
import torch
import transformers

from specdec.model.attention import RAGGED, ragged_attention
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from tests.tiny_models import VOCABULARY, write_tiny_model

SIZE = len(VOCABULARY)
# Beside the architectures of the tests' tiny models, those whose layers happen to allow it: other projections, other
# norms, learned positions, experts; Gemma 2 and 3 once every layer is full and nothing is capped.
FULL = {"layer_types": ["full_attention"] * 2, "sliding_window": 4096}
CASES = {
    "llama": {},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "qwen2": {},
    "qwen3": {},
    "mistral": {},
    "gemma": {},
    "gemma2": FULL | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 24},
    "gemma3_text": FULL | {"query_pre_attn_scalar": 24},
    "gpt2": {},
    "phi3": {},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2},
    "mixtral": {},
}
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


def write(folder, case):
    """Write a tiny model; the usual one is changed by rewriting its weights under another configuration."""
    architecture = case.split("-")[0]
    write_tiny_model(folder, architecture)
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in CASES[case].items():
        setattr(config, name, value)
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    written = {}

    def folder(case):
        if case not in written:
            written[case] = write(tmp_path_factory.mktemp(case), case)
        return written[case]

    return folder


class Reference:
    """The network with its own attention, one sequence at a time, without any cache."""

    def __init__(self, folder, dtype):
        attention = "eager" if "gemma2" in folder else "sdpa"  # sdpa is exact in float64
        self.network = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention
        ).eval()

    @torch.inference_mode()
    def rows(self, tokens, rows):
        return self.network(torch.tensor([tokens]), use_cache=False).logits[0, len(tokens) - rows :, :SIZE]


def sequence(length, seed):
    return random.Random(seed).choices(range(SIZE), k=length)


# The experts' kernel has no float64; Gemma 2's own attention, the only one it has, rounds to float32.
NO_FLOAT64 = {"mixtral", "gemma2"}
PAIRS = [(case, dtype) for case in CASES for dtype in TOLERANCE if dtype == "float32" or case not in NO_FLOAT64]


class Sessions:
    """Four sessions of a model, each beside what it should hold."""

    def __init__(self, model, reference, tolerance):
        self.model, self.reference, self.tolerance = model, reference, tolerance
        self.caches = [model.new_cache() for _ in range(4)]
        self.held = [[] for _ in range(4)]

    def feed(self, parts, rows):
        """Feed the parts that are not empty in one pass and compare the wanted rows."""
        fed = [index for index, part in enumerate(parts) if part]
        found = self.model.forward([Segment(self.caches[index], parts[index], rows[index]) for index in fed])
        for index, logits in zip(fed, found, strict=True):
            self.held[index] += parts[index]
            assert self.caches[index].length == len(self.held[index])
            expected = self.reference.rows(self.held[index], rows[index])
            torch.testing.assert_close(logits, expected, rtol=0, atol=self.tolerance)

    def cut(self, lengths):
        for cache, held, length in zip(self.caches, self.held, lengths, strict=True):
            cache.cut(length)
            del held[length:]


@pytest.mark.parametrize(("case", "dtype"), PAIRS)
def test_ragged_passes_agree_with_the_unbatched_model(folders, case, dtype):
    model, reference = load_model(folders(case), "cpu", dtype), Reference(folders(case), dtype)
    prompts = [sequence(length, seed) for seed, length in enumerate([40, 7, 1, 23])]
    sessions = Sessions(model, reference, TOLERANCE[dtype])
    sessions.feed([prompts[0][:17], prompts[1], [], prompts[3][:1]], [0, 7, 0, 1])  # a chunk, and a whole prompt's rows
    sessions.feed([prompts[0][17:32], [], prompts[2], prompts[3][1:]], [3, 0, 1, 2])
    sessions.feed([prompts[0][32:], [5], [6, 7], [8]], [1, 1, 2, 0])
    sessions.cut([39, 2, 0, 11])
    sessions.feed([[1, 2, 3, 4, 5], [9], [10, 11, 12], [13, 14]], [5, 1, 3, 1])  # verification after a cut


def test_a_session_that_grows_past_a_step_agrees(tmp_path):
    folder = write_tiny_model(tmp_path, context=1024)
    model, reference = load_model(folder, "cpu", "float64"), Reference(folder, "float64")
    tokens, cache = sequence(700, 3), model.new_cache()
    for start in range(0, len(tokens), 90):
        (found,) = model.forward([Segment(cache, tokens[start : start + 90], 1)])
    torch.testing.assert_close(found, reference.rows(tokens, 1), rtol=0, atol=1e-10)
    assert cache.capacity == 768


def test_company_does_not_change_a_session(folders):
    model = load_model(folders("llama"), "cpu", "float64")
    alone = model.forward([Segment(model.new_cache(), [1, 2, 3], 3)])[0]
    others = [Segment(model.new_cache(), sequence(20, seed), 1) for seed in range(5)]
    among = model.forward([*others, Segment(model.new_cache(), [1, 2, 3], 3)])[-1]
    torch.testing.assert_close(among, alone, rtol=0, atol=1e-12)


def test_half_precision_gives_float32_logits(folders):
    model = load_model(folders("llama"), "cpu", "bfloat16")
    (rows,) = model.forward([Segment(model.new_cache(), [1, 2, 3], 2)])
    assert (rows.dtype, rows.shape) == (torch.float32, (2, SIZE))


def test_a_pass_that_fails_leaves_the_caches_as_they_were(folders, monkeypatch):
    model, reference = load_model(folders("llama"), "cpu", "float64"), Reference(folders("llama"), "float64")
    cache = model.new_cache()
    model.forward([Segment(cache, [1, 2, 3], 0)])
    with monkeypatch.context() as patch:
        patch.setattr(model.network.lm_head, "forward", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.forward([Segment(cache, [9, 9], 1)])
    assert cache.length == 3
    (found,) = model.forward([Segment(cache, [4], 1)])
    torch.testing.assert_close(found, reference.rows([1, 2, 3, 4], 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("tokens", "rows"), [([], 0), ([1], 2), ([1], -1), ([1] * 257, 1)])
def test_segments_that_cannot_be_fed_are_refused(folders, tokens, rows):
    model = load_model(folders("llama"), "cpu", "float64")
    with pytest.raises(ValueError, match=r"cannot give|exceed the context"):
        model.forward([Segment(model.new_cache(), tokens, rows)])


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "s_aux"])
def test_attention_that_is_more_than_full_is_refused(name):
    with pytest.raises(NotImplementedError, match=name):
        ragged_attention(torch.nn.Module(), *[torch.zeros(1)] * 3, None, ragged_pass=None, **{name: 4})


def test_the_network_runs_with_the_ragged_attention(folders):
    assert load_model(folders("qwen3"), "cpu", "float32").network.config._attn_implementation == RAGGED
