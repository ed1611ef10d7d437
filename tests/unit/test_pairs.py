"""Pairs by name, and what stands in for a part of one."""

import re
import subprocess

import pytest

from deploy import laptop
from deploy.pairs import DEFAULT_PAIR, PAIRS, Pair, chosen_pair, prepare, usual_environment
from deploy.process import StartFailed
from deploy.system import Ports

TARGET, DRAFT = "owner/large", "owner/small"


def test_both_pairs_are_named():
    assert list(PAIRS) == ["smollm2", "qwen2.5-coder"]
    assert DEFAULT_PAIR in PAIRS


def test_what_comes_from_a_hub_is_pinned_to_a_commit():
    of_hub = [model for pair in PAIRS.values() for model in (pair.target, pair.draft) if "/" in model]
    assert len(of_hub) == 2
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", model) for model in of_hub)


@pytest.mark.parametrize(
    ("target", "draft", "pair"),
    [
        ("", "", PAIRS["qwen2.5-coder"]),
        ("", DRAFT, Pair(PAIRS["qwen2.5-coder"].target, DRAFT)),
        (TARGET, DRAFT, Pair(TARGET, DRAFT)),
        (TARGET, "", Pair(TARGET, "lookup:")),
    ],
)
def test_either_part_can_be_another(target, draft, pair):
    assert chosen_pair("qwen2.5-coder", target, draft) == pair


def test_named_models_are_held_in_what_suits_them_and_others_as_the_settings_say():
    target, draft = "TARGET_QUANTIZATION", "DRAFT_QUANTIZATION"
    for pair in PAIRS.values():
        assert usual_environment(pair) == {target: "auto", draft: "auto"}
        assert usual_environment(Pair(pair.target, "lookup:")) == {target: "auto"}
    assert usual_environment(Pair(TARGET, DRAFT)) == {}


def test_what_the_user_has_set_goes_before_what_suits_a_pair(tmp_path, monkeypatch):
    monkeypatch.setenv("TARGET_QUANTIZATION", "none")
    monkeypatch.delenv("DRAFT_QUANTIZATION", raising=False)
    given = laptop._system(tmp_path, PAIRS[DEFAULT_PAIR], Ports())._environment
    assert given == {"DRAFT_QUANTIZATION": "auto"}


@pytest.fixture
def started(monkeypatch):
    """Give what the laptop would start, instead of starting it."""
    pairs = []
    monkeypatch.setattr(laptop, "demo", lambda pair, prompt, flags: pairs.append(pair) or 0)
    monkeypatch.setattr(laptop, "up", lambda folder, pair, ports: pairs.append(pair) or 0)
    return pairs


@pytest.mark.parametrize("command", ["demo", "up"])
def test_the_laptop_takes_a_pair_by_name(started, command):
    assert laptop.main([command]) == 0
    assert laptop.main([command, "--pair", "qwen2.5-coder"]) == 0
    assert laptop.main([command, "--pair", "qwen2.5-coder", "--draft", DRAFT]) == 0
    assert started == [PAIRS["smollm2"], PAIRS["qwen2.5-coder"], Pair(PAIRS["qwen2.5-coder"].target, DRAFT)]


def test_an_unknown_pair_is_answered_with_those_there_are(started, capsys):
    with pytest.raises(SystemExit):
        laptop.main(["demo", "--pair", "lama"])
    shown = capsys.readouterr().err
    assert all(name in shown for name in PAIRS)
    assert started == []


@pytest.mark.parametrize(
    ("pair", "models"),
    [
        (Pair("owner/large@main", "lookup:layers:2:owner/small"), ["owner/large@main", "layers:2:owner/small"]),
        (Pair("embedded:smollm2", "lookup:"), ["embedded:smollm2"]),
        (Pair("synthetic:seed=1", "lookup:synthetic:seed=2"), []),
    ],
)
def test_weights_are_prepared_before_anything_starts(monkeypatch, pair, models):
    commands = []

    def fail(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    if models:
        with pytest.raises(StartFailed, match="nothing was started"):
            prepare(pair.target, pair.draft)
        assert commands[0][1:] == ["-m", "specdec.model.checkpoint", *models]
    else:
        prepare(pair.target, pair.draft)
        assert commands == []
