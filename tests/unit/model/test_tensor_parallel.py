"""What the leader says is all that a follower needs, and models that cannot be spread are refused by name."""

import random
import weakref

import pytest
import torch
import transformers

from specdec.model.language_model import Branches, Segment
from specdec.model.loading import load_model, load_share
from specdec.model.refusal import ModelRefused
from specdec.model.tensor_parallel import LeadingModel, follow, refuse_unspreadable
from tests.tiny_drafts import write_tiny_draft
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, "cpu", "float64")


class Loopback:
    """Ranks whose messages wait in a list."""

    def __init__(self):
        self.messages = []

    def tell(self, numbers):
        self.messages.append(list(numbers))

    def hear(self):
        return self.messages.pop(0)


class Follower:
    """A follower's model, which is whole here: notes its logits and, at each pass, how many caches live."""

    def __init__(self, model):
        self.model = model
        self.logits = []
        self.caches = []
        self.live = []

    def new_cache(self):
        cache = self.model.new_cache()
        self.caches.append(weakref.ref(cache))
        return cache

    def forward(self, segments):
        self.logits += self.model.forward(segments)
        self.live.append(sum(cache() is not None for cache in self.caches))


def change(cache, chance):
    """Do to a cache what the engine may do between two passes."""
    for _ in range(chance.randrange(3)):
        entries = cache.length + len(cache.branches)
        if entries and chance.random() < 0.5:
            cache.adopt(chance.randrange(entries))
        else:
            cache.cut(chance.randint(max(0, cache.length - 3), cache.length))


def segment(cache, chance):
    tokens = chance.choices(range(258), k=chance.randint(1, 4))
    if not cache.length or chance.random() < 0.4:
        return Segment(cache, tokens, chance.randint(0, len(tokens)))
    entries = cache.length + len(cache.branches)
    return Branches(cache, tokens, len(tokens), [chance.randrange(entries + place) for place in range(len(tokens))])


def random_passes(leader, chance, passes=40):
    """Feed, cut, adopt and drop at random; return the logits and, at each pass, how many caches the leader holds."""
    caches, logits, held = [], [], []
    for _ in range(passes):
        caches = [cache for cache in caches if chance.random() < 0.9]
        if len(caches) < 4:
            caches.append(leader.new_cache())
        for cache in caches:
            change(cache, chance)
        fed = [cache for cache in caches if chance.random() < 0.7] or caches[:1]
        logits += leader.forward([segment(cache, chance) for cache in fed])
        held.append(len(caches))
    return logits, held


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_that_hears_the_messages_computes_the_same(model, seed):
    ranks, follower = Loopback(), Follower(model)
    leader = LeadingModel(model, ranks)
    logits, held = random_passes(leader, random.Random(seed))
    ranks.tell([])
    follow(follower, ranks)
    assert len(follower.logits) == len(logits) > 40
    assert all(torch.equal(here, there) for here, there in zip(logits, follower.logits, strict=True))
    assert len(follower.caches) > 2 * max(held)
    assert all(here <= there for here, there in zip(follower.live, held, strict=True))  # one never fed is not known


def test_a_lost_message_is_noticed(model):
    ranks = Loopback()
    leader = LeadingModel(model, ranks)
    cache = leader.new_cache()
    leader.forward([Segment(cache, [1, 2], 1)])
    leader.forward([Branches(cache, [3], 1, [0])])
    leader.forward([Branches(cache, [4], 1, [2])])
    del ranks.messages[1]
    with pytest.raises(ValueError, match="cache 0 has 2 and 0 tokens here, 2 and 1 in the leading process"):
        follow(model, ranks)


def test_a_segment_that_cannot_be_fed_is_refused_before_anybody_is_told(model):
    ranks = Loopback()
    leader = LeadingModel(model, ranks)
    with pytest.raises(ValueError, match="2 rows"):
        leader.forward([Segment(leader.new_cache(), [1], 2)])
    assert ranks.messages == []


SHARES = {
    "device": ("tiny", "cpu", "none", "use auto"),
    "quantization": ("tiny", "auto", "int8", "is for one process, not for 2"),
    "synthetic": ("synthetic:vocabulary=8", "auto", "none", "no weights to spread"),
    "lookup": ("lookup:", "auto", "none", "no weights to spread"),
    "cut head": ("draft", "auto", "none", "a draft that was made for a target"),
}


@pytest.mark.parametrize("case", SHARES)
def test_a_share_that_cannot_be_had_is_refused(case, folder, tmp_path):
    name, device, quantization, why = SHARES[case]
    if name == "draft":
        name = write_tiny_draft(tmp_path / "draft", folder)
    with pytest.raises(ModelRefused, match=why):
        load_share(folder if name == "tiny" else name, device, "auto", quantization, 2)


def test_an_architecture_without_a_plan_is_refused_by_name():
    with pytest.raises(ModelRefused, match=r"some/model \(gpt2\) cannot be spread over 2 processes"):
        refuse_unspreadable("some/model", transformers.AutoConfig.for_model("gpt2"), 2)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma", "mixtral"])
def test_heads_must_divide(architecture):
    config = transformers.AutoConfig.for_model(
        architecture, hidden_size=96, num_attention_heads=12, num_key_value_heads=6, head_dim=8
    )
    for ranks in (2, 3, 6):
        refuse_unspreadable("some/model", config, ranks)
    with pytest.raises(ModelRefused, match="its 6 key-value heads cannot be shared out evenly to 4 processes"):
        refuse_unspreadable("some/model", config, 4)
