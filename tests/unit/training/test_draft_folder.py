"""A written draft, as transformers and as this project load it, and its model card."""

import pytest
import torch
import transformers

from specdec.model.description import ModelDescription
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from tests.tiny_models import ARCHITECTURES, VOCABULARY, write_tiny_model
from training.draft_folder import model_card, write_draft, written_licence
from training.early_exit import EarlyExit
from training.network_end import network_end

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
KNOWN = torch.arange(1, 258, 2)
TARGET = ModelDescription("owner/name", "f" * 32, "v" * 32, 258, 256, (257,), "owner/name")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_and_this_project_read_the_same_draft(architecture, tmp_path):
    target = load_model(write_tiny_model(tmp_path / "target", architecture, layers=3), "cpu", "float64")
    end = network_end(target)
    torch.manual_seed(1)
    leaving = EarlyExit(end, 2)
    network = leaving.draft(torch.randn(320, 32, dtype=torch.float64), leaving.projection + 1)
    write_draft(tmp_path / "draft", network, KNOWN, tmp_path / "target")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float64)
    with torch.inference_mode():
        expected = theirs(torch.tensor([TOKENS])).logits[0, :, : len(VOCABULARY)]
    ours = load_model(str(tmp_path / "draft"), "cpu", "float64")
    (found,) = ours.forward([Segment(ours.new_cache(), TOKENS, len(TOKENS))])
    torch.testing.assert_close(found[:, KNOWN], expected[:, KNOWN], rtol=1e-5, atol=1e-5)
    assert found[:, ::2].isneginf().all()
    assert ours.description.vocabulary_fingerprint == target.description.vocabulary_fingerprint
    assert ours.description.eos_token_ids == target.description.eos_token_ids


def test_tokenizer_generation_settings_and_licence_come_from_the_target(tmp_path):
    target = tmp_path / "target"
    end = network_end(load_model(write_tiny_model(target, layers=2), "cpu", "float64"))
    leaving = EarlyExit(end, 1)
    network = leaving.draft(end.head.weight, leaving.projection)
    (target / "LICENSE").write_text("as it pleases")
    for _ in range(2):  # what is there is replaced
        (tmp_path / "draft").mkdir(exist_ok=True)
        (tmp_path / "draft" / "old").touch()
        write_draft(tmp_path / "draft", network, KNOWN, target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "LICENSE"):
        assert (tmp_path / "draft" / name).read_bytes() == (target / name).read_bytes()
    assert not (tmp_path / "draft" / "old").exists()
    (target / "generation_config.json").unlink()
    write_draft(tmp_path / "draft", network, KNOWN, target)
    assert not (tmp_path / "draft" / "generation_config.json").exists()


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# It", "apache-2.0"),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\nlanguage: en\n---\nlicense: mit", ""),
        ("# It\nlicense: mit", ""),
    ],
)
def test_the_licence_is_what_the_front_matter_names(tmp_path, card, licence):
    (tmp_path / "README.md").write_text(card)
    assert written_licence(tmp_path) == licence


def test_the_card_names_target_licence_and_facts(tmp_path):
    assert written_licence(tmp_path) == ""
    card = model_card(TARGET, "apache-2.0", ["two layers", "α 0.3"])
    assert card.startswith("---\nlicense: apache-2.0\n")
    for part in ("owner/name", "f" * 32, "- two layers\n- α 0.3\n", "names the licence `apache-2.0`", "by the target"):
        assert part in card
    silent = model_card(TARGET, "", [])
    assert "the target's licence applies" in silent
    assert "license:" not in silent
