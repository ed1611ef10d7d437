"""What the pass_cost benchmark takes from a model, and that its section says it."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import pass_cost_run
from benchmarks.pass_cost import main, parse, plan_of
from benchmarks.pass_cost_run import cost_figures, distances
from benchmarks.pass_cost_section import goals
from benchmarks.report import page
from tests.tiny_models import write_tiny_model


def test_costs_are_compared_with_a_pass_over_one_token():
    one, five = cost_figures({1: [0.2, 0.1, 0.3], 5: [0.3, 0.4, 0.25]})
    assert (one["tokens"], one["of_one"], one["fastest_of_one"]) == (1, 1, 1)
    assert (five["of_one"], five["fastest_of_one"]) == (pytest.approx(1.5), pytest.approx(2.5))
    assert five["ms"]["median"] == pytest.approx(300)


def test_what_a_change_of_models_costs_is_no_cost_of_a_pass(monkeypatch):
    clock, forwarded = [0.0], []
    monkeypatch.setattr(pass_cost_run.time, "perf_counter", lambda: clock[0])

    class Model:
        vocabulary_size = 9
        new_cache = staticmethod(lambda: SimpleNamespace(length=4, cut=lambda length: None))

        def forward(self, segments):
            clock[0] += 1.0 if forwarded[-1:] == [self] else 1.5
            forwarded.append(self)

    timing = pass_cost_run.Timing(tokens=(1, 3), context=4, seconds=20.0)
    found = pass_cost_run.time_passes({"one": Model(), "other": Model()}, timing, lambda lap: None)
    assert found == {name: {1: [1.0] * 3, 3: [1.0] * 3} for name in ("one", "other")}


def test_distances_are_those_of_the_definitions():
    p, q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]]), torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.8, 0.0]])
    found = distances([q], [p])
    assert found["total_variation"] == pytest.approx(0.125)
    assert found["largest_total_variation"] == pytest.approx(0.25)
    assert found["divergence"] == pytest.approx(0.5 * (0.5 * torch.tensor(4 / 3).log().item()), rel=1e-5)
    assert found["positions"] == 2
    assert found["same_likeliest"] == 0.5


def test_none_and_one_token_are_always_measured():
    plan = plan_of(parse(["--quantization", "int8", "--tokens", "5", "3"]))
    assert (plan.quantizations, plan.tokens) == (("none", "int8"), (1, 3, 5))


def test_a_tiny_model_is_measured_and_written(tmp_path, capsys):
    model = write_tiny_model(tmp_path / "tiny", layers=1)
    flags = ["--model", model, "--seconds", "0.01", "--tokens", "1", "3", "--texts", "2", "--text-tokens", "30"]
    threads = torch.get_num_threads()
    assert main([*flags, "--threads", str(threads), "--write", "--results", str(tmp_path / "RESULTS.md")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [way["quantization"] for way in report["ways"]] == ["none", "float16", "int8"]
    assert len({way["fingerprint"] for way in report["ways"]}) == 3
    assert report["ways"][0]["distances"]["total_variation"] == 0
    assert max(way["one_by_one"] for way in report["ways"]) < 1e-4 < report["ways"][2]["distances"]["total_variation"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert f"## Cost of a pass of {model}" in text
    assert "| int8, 3 | " in text
    assert "Goal for a pass over 5 tokens: 1.35 passes over one; not measured." in text
    assert "int8, 3" in page([report])


def test_a_pass_over_five_tokens_is_compared_with_the_goal():
    costs = {"none": 1.5, "float16": 1.2}
    ways = [{"quantization": name, "costs": [{"tokens": 5, "of_one": times}]} for name, times in costs.items()]
    assert goals({"ways": ways}).endswith("passes over one; none misses it with 1.50, float16 meets it with 1.20.")


def test_a_model_that_is_not_there_is_named(capsys):
    assert main(["--model", "/no/such/folder"]) == 1
    assert "/no/such/folder" in capsys.readouterr().err
