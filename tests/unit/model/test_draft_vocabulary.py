"""Drafts with a cut head: the full head's logits on the tokens they know, never any other token, and broken maps."""

import json
from pathlib import Path

import pytest
import torch

from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_drafts import KNOWN, write_draft_vocabulary, write_tiny_draft
from tests.tiny_models import ARCHITECTURES, VOCABULARY, write_tiny_model

TOKENS = [3, 1, 4, 1, 5]
UNKNOWN = [token for token in range(len(VOCABULARY)) if token not in KNOWN]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=2)


@pytest.fixture
def draft(tiny, tmp_path):
    return Path(write_tiny_draft(tmp_path / "draft", tiny))


def rows(model):
    return model.forward([Segment(model.new_cache(), TOKENS, len(TOKENS)), Segment(model.new_cache(), [7, 8], 1)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_known_tokens_have_the_whole_heads_logits_and_others_none(architecture, tmp_path):
    whole = write_tiny_model(tmp_path / "whole", architecture)
    draft = load_model(write_tiny_draft(tmp_path / "draft", whole), "cpu", "float64")
    for found, expected in zip(rows(draft), rows(load_model(whole, "cpu", "float64")), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found[:, KNOWN], expected[:, KNOWN], rtol=0, atol=1e-12)
        assert found[:, UNKNOWN].isneginf().all()


def test_the_order_of_the_map_does_not_matter(tiny, draft, tmp_path):
    other = load_model(write_tiny_draft(tmp_path / "other", tiny, KNOWN[::-1]), "cpu", "float64")
    assert torch.equal(rows(other)[0], rows(load_model(str(draft), "cpu", "float64"))[0])


def test_the_map_belongs_to_the_identity_of_the_draft_and_the_vocabulary_stays_whole(tiny, draft, tmp_path):
    target, first = (load_model(name, "cpu", "float64").description for name in (tiny, str(draft)))
    second = load_model(write_tiny_draft(tmp_path / "other", tiny, KNOWN[::-1]), "cpu", "float64").description
    assert len({one.model_fingerprint for one in (target, first, second)}) == 3
    assert len({(one.vocabulary_fingerprint, one.vocabulary_size) for one in (target, first, second)}) == 1


def test_the_head_was_made_for_all_layers(draft):
    assert load_model(f"layers:2:{draft}", "cpu", "float64").vocabulary_size == len(VOCABULARY)
    with pytest.raises(ModelRefused, match="its head was made for all of its 2 layers"):
        load_model(f"layers:1:{draft}", "cpu", "float64")


offsets = torch.tensor(KNOWN) - torch.arange(len(KNOWN))
BROKEN = {
    "too few": (offsets[:-1], "maps 95 tokens, but config.json says draft_vocab_size = 96"),
    "beyond": (offsets + len(VOCABULARY), "outside the vocabulary of 258"),
    "negative": (offsets - 1, "outside the vocabulary of 258"),
    "repeated": (offsets.clone().index_fill_(0, torch.tensor([1]), -1), "maps two tokens to the same id"),
    "int32": (offsets.int(), "must hold d2t, a row of int64 numbers"),
    "matrix": (offsets[None], "must hold d2t, a row of int64 numbers"),
    "empty": (offsets[:0], "must hold d2t, a row of int64 numbers"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_map_is_refused_by_file_name(draft, fault):
    d2t, reason = BROKEN[fault]
    write_draft_vocabulary(draft, d2t)
    with pytest.raises(ModelRefused, match=rf"draft_vocabulary\.safetensors .*{reason}"):
        load_model(str(draft), "cpu", "float64")


def test_a_file_of_something_else_is_refused(draft):
    (draft / "draft_vocabulary.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelRefused, match=r"draft_vocabulary\.safetensors cannot be read"):
        load_model(str(draft), "cpu", "float64")


def test_a_map_that_config_and_folder_do_not_agree_on_is_refused(draft):
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"draft_vocab_size": None}))
    with pytest.raises(ModelRefused, match=r"config\.json says draft_vocab_size = None"):
        load_model(str(draft), "cpu", "float64")
    (draft / "config.json").write_text(json.dumps(config))
    (draft / "draft_vocabulary.safetensors").unlink()
    with pytest.raises(ModelRefused, match=r"draft_vocabulary\.safetensors cannot be read"):
        load_model(str(draft), "cpu", "float64")
