"""The command from a target to a draft: whole, broken off, trained, and refused."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

import training.recipe
from specdec.model.loading import load_model
from tests.tiny_models import EOS, write_tiny_model
from training.make_draft import main

SMALL = ["--answers", "12", "--answer-tokens", "6", "--vocabulary", "90", "--device", "cpu"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=3)


@pytest.fixture(scope="module")
def draft(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "draft"
    main(["--target", tiny, "--out", str(out), *SMALL])
    return out


def test_a_draft_is_a_folder_that_serves(tiny, draft):
    model = load_model(str(draft), "cpu")
    assert model.network.config.num_hidden_layers == 2
    assert len(model.network.lm_head.token_ids) == 90
    assert EOS in model.network.lm_head.token_ids
    target = load_model(tiny, "cpu").description
    assert model.description.vocabulary_fingerprint == target.vocabulary_fingerprint
    card = (draft / "README.md").read_text()
    assert target.model_fingerprint in card
    assert re.search(r"α 0\.\d{3} on answers like the fit's, 0\.\d{3} on fresh prompts", card)
    assert list(draft.parent.iterdir()) == [draft]


def test_what_was_made_and_how_to_serve_it_is_printed(tiny, tmp_path, capsys):
    main(["--target", tiny, "--out", str(tmp_path / "draft"), *SMALL, "--layers", "1"])
    printed = capsys.readouterr().out
    for part in ("first 1 layers", "on fresh prompts", "expected speed-up", "made in"):
        assert part in printed
    assert f"make demo TARGET={tiny} DRAFT={tmp_path / 'draft'}" in printed


def test_a_broken_run_goes_on_and_makes_the_same_draft(tiny, draft, tmp_path, monkeypatch):
    arguments = ["--target", tiny, "--out", str(tmp_path / "draft"), *SMALL]
    answers = tmp_path / "draft.unfinished" / "answers.jsonl"
    fit = training.recipe.fit_exit_map

    def breaks(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.recipe, "fit_exit_map", breaks)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 130
    assert len(answers.read_text().splitlines()) == 12
    assert not (tmp_path / "draft").exists()
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[3:9]))
    with pytest.raises(SystemExit, match=r"another run \(seed 0 instead of 4\)"):
        main([*arguments, "--seed", "4"])
    monkeypatch.setattr(training.recipe, "fit_exit_map", fit)
    main(arguments)
    found, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "draft", draft))
    assert found.keys() == expected.keys()
    assert all(found[name].allclose(expected[name], rtol=1e-4, atol=1e-4) for name in found)


def test_training_goes_on_from_the_fit_and_leaves_its_curve(tiny, tmp_path):
    out = tmp_path / "draft"
    train = ["--train", "--train-tokens", "120", "--batch-tokens", "60", "--checkpoint-every", "1"]
    main(["--target", tiny, "--out", str(out), *SMALL, *train])
    assert len((out / "curve.jsonl").read_text().splitlines()) >= 2
    assert (out / "curve.svg").exists()
    assert "against the target's distributions" in (out / "README.md").read_text()
    assert load_model(str(out), "cpu").network.config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--target", "/no/such"], "no such file or folder"),
        (["--target", "synthetic:vocabulary=16"], "no early-exit draft can be made"),
        (["--target", "TINY", "--layers", "4"], "has 3 layers, not 4"),
        (["--target", "TINY", "--layers", "0"], "must be at least 1"),
        (["--target", "TINY", "--answers", "3"], "answers must be at least 10"),
        (["--target", "TINY", "--seed", "-1"], "seed 0 to"),
        (["--target", "TINY", "--device", "tpu9"], "device 'tpu9'"),
        (["--target", "TINY", "--out", "TINY"], "is there already"),
        (["--target", "TINY", "--color", "red"], "--color"),
        ([], "--target"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(tiny, tmp_path, arguments, reason):
    given = [argument.replace("TINY", tiny) for argument in ["--out", str(tmp_path / "draft"), *arguments]]
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code.startswith("make_draft: ")  # printed as one line, with status 1
    assert reason in ended.value.code
    assert "\n" not in ended.value.code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_draft_of_the_embedded_model_reaches_its_alpha(tmp_path):
    out = tmp_path / "draft"
    main(["--target", "embedded:smollm2", "--out", str(out)])
    fresh = re.search(r"(0\.\d{3}) on fresh prompts", Path(out / "README.md").read_text())
    assert float(fresh[1]) >= 0.25
