"""Distillation on tiny models: it learns, it resumes to the bit, and its start is never made worse."""

import dataclasses
import json

import pytest
import torch
import transformers

from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_models import write_tiny_model
from training.acceptance import acceptance
from training.answers import Answer
from training.curve import best
from training.distillation import distill
from training.distillation_settings import DistillationSettings
from training.learner import Learner
from training.learning_head import learning_head
from training.process_group import process_group

SETTINGS = DistillationSettings(
    train_tokens=600, learning_rate=1e-2, batch_tokens=60, micro_batch_tokens=64, checkpoint_every=4
)
KNOWN = torch.arange(0, 258, 2)  # every second token


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with process_group(torch.device("cpu")):
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return load_model(write_tiny_model(tmp_path_factory.mktemp("target")), device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def answers():
    """Texts of chance over two tokens, of different lengths: what is learnt is what the teacher says of them."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(4, 16, (48, 2), generator=generator).tolist()
    return [
        Answer(tuple(torch.randint(40, 42, (prompt + answer,), generator=generator).tolist()), prompt)
        for prompt, answer in lengths
    ]


def student_of(target, noise):
    """Return a copy of the target whose weights are off by noise times their own size, with transformers' attention."""
    student = transformers.AutoModelForCausalLM.from_pretrained(target.name, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in student.parameters():
            disturbance = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += noise * parameter.std() * disturbance
    return student


def weights(student):
    return {name: weight.clone() for name, weight in student.state_dict().items()}


def learnt(student):
    """Weights without the head's rows of unknown tokens, which no training touches and no checkpoint holds."""
    return weights(student) | {"lm_head.weight": student.lm_head.weight[KNOWN].detach()}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_disturbed_copy_of_the_target_learns_to_speak_like_it_again(target, answers, tmp_path):
    student = student_of(target, 0.3)
    curve = distill(student, KNOWN, target, answers[:40], answers[40:], SETTINGS, tmp_path)
    assert [point.step for point in curve] == [*range(0, curve[-1].step, 4), curve[-1].step]
    assert curve[-1].tokens >= SETTINGS.train_tokens
    assert best(curve).acceptance > curve[0].acceptance + 0.1
    assert [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()] == [
        dataclasses.asdict(point) for point in curve
    ]
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")


def test_the_acceptance_is_what_the_services_would_have(target, answers, tmp_path):
    """The folder of the trained draft, loaded as a service loads it, has the acceptance of the curve's best point."""
    student = student_of(target, 0.3)
    every = torch.arange(258)
    curve = distill(student, every, target, answers[:40], answers[40:], SETTINGS, tmp_path / "work")
    write_tiny_model(tmp_path / "draft")
    student.save_pretrained(tmp_path / "draft")
    draft = load_model(str(tmp_path / "draft"), device="cpu", dtype="float64")
    assert acceptance(target, draft, answers[40:]) == pytest.approx(best(curve).acceptance, abs=1e-6)


def test_the_best_point_is_kept_even_where_it_is_the_start(target, answers, tmp_path):
    student = student_of(target, 0.01)
    before = weights(student)
    ruinous = dataclasses.replace(SETTINGS, learning_rate=1.0, train_tokens=300)
    curve = distill(student, KNOWN, target, answers[:40], answers[40:], ruinous, tmp_path)
    assert best(curve) == curve[0]
    assert curve[-1].acceptance < curve[0].acceptance
    assert equal(weights(student), before)


def test_only_the_rows_of_known_tokens_learn_and_the_embeddings_when_asked(target, answers, tmp_path):
    others = torch.arange(1, 320, 2)
    for embeddings in (False, True):
        student = student_of(target, 0.3)
        before = weights(student)
        settings = dataclasses.replace(SETTINGS, train_embeddings=embeddings, train_tokens=300)
        distill(student, KNOWN, target, answers[:40], answers[40:], settings, tmp_path / str(embeddings))
        after = weights(student)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert ("model.embed_tokens.weight" in changed) == embeddings
        assert {"lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"} <= changed
        assert torch.equal(before["lm_head.weight"][others], after["lm_head.weight"][others])


def test_a_copy_of_the_target_has_nothing_to_learn(target, answers):
    """Control: the loss is least at the teacher itself, where nothing would be rejected, and nowhere near."""
    every = torch.arange(258)
    alphas = []
    for noise in (0.0, 0.01, 0.1):
        student = student_of(target, noise).eval()
        with learning_head(student, every):
            alphas.append(Learner(student, every, target, SETTINGS).measure(answers))
    assert alphas[0] == pytest.approx(1.0, abs=1e-6)
    assert alphas[0] - 1e-3 > alphas[1] > alphas[2] + 0.1


def test_a_step_is_measured_before_it_is_taken(target, answers):
    student = student_of(target, 0.3).eval()
    with learning_head(student, KNOWN):
        learner = Learner(student, KNOWN, target, SETTINGS)
        before = learner.measure(answers)
        assert learner.step(answers, 1e-3) == pytest.approx(before, rel=1e-6)
        assert learner.measure(answers) > before


def test_a_broken_run_goes_on_to_the_bit(target, answers, tmp_path, monkeypatch):
    parts = (KNOWN, target, answers[:40], answers[40:], SETTINGS)
    unbroken = student_of(target, 0.3)
    whole = distill(unbroken, *parts, tmp_path / "unbroken")

    broken, steps, step = student_of(target, 0.3), [], Learner.step

    def failing_step(learner, *arguments):
        steps.append(1)
        if len(steps) == 7:  # between two checkpoints
            raise KeyboardInterrupt
        return step(learner, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", failing_step)
        with pytest.raises(KeyboardInterrupt):
            distill(broken, *parts, tmp_path / "broken")
    assert sorted(path.name for path in (tmp_path / "broken").glob("*.pt"))[-1] == "checkpoint-00000004.pt"
    fresh = student_of(target, 0.3)
    with torch.no_grad():
        for weight in fresh.model.layers.parameters():
            weight.zero_()  # what has learnt comes from the checkpoint
    assert distill(fresh, *parts, tmp_path / "broken") == whole
    assert equal(learnt(fresh), learnt(unbroken))
    assert distill(student_of(target, 0.3), *parts, tmp_path / "broken") == whole  # nothing is left to do


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"learning_rate": 1e-3}, "learning_rate"),
        ({"seed": 9, "train_tokens": 70}, "seed, train_tokens"),
    ],
)
def test_other_settings_do_not_go_on_from_a_checkpoint(target, answers, tmp_path, change, named):
    settings = dataclasses.replace(SETTINGS, train_tokens=60)
    distill(student_of(target, 0.3), KNOWN, target, answers[:40], answers[40:], settings, tmp_path)
    other = dataclasses.replace(settings, **change)
    with pytest.raises(ModelRefused, match=f"other {named};"):
        distill(student_of(target, 0.3), KNOWN, target, answers[:40], answers[40:], other, tmp_path)


def test_other_tokens_and_answers_do_not_go_on_from_a_checkpoint(target, answers, tmp_path):
    settings = dataclasses.replace(SETTINGS, train_tokens=60)
    distill(student_of(target, 0.3), KNOWN, target, answers[:40], answers[40:], settings, tmp_path)
    with pytest.raises(ModelRefused, match="other answers, token ids;"):
        distill(student_of(target, 0.3), KNOWN + 1, target, answers[:39], answers[40:], settings, tmp_path)


@pytest.mark.parametrize("damage", [b"", b"no checkpoint", None], ids=["empty", "of another kind", "cut"])
def test_a_broken_checkpoint_is_refused_with_its_name(target, answers, tmp_path, damage):
    settings = dataclasses.replace(SETTINGS, train_tokens=60)
    parts = (KNOWN, target, answers[:40], answers[40:], settings, tmp_path)
    distill(student_of(target, 0.3), *parts)
    last = max(tmp_path.glob("*.pt"))
    last.write_bytes(last.read_bytes()[:-1000] if damage is None else damage)
    with pytest.raises(ModelRefused, match=f"{last.name} cannot be read .*remove it to go on from the one before"):
        distill(student_of(target, 0.3), *parts)
    last.unlink()
    assert distill(student_of(target, 0.3), *parts)


def test_a_tied_head_is_refused(target, answers, tmp_path):
    student = student_of(target, 0.3)
    student.lm_head.weight = student.model.embed_tokens.weight
    with pytest.raises(ModelRefused, match="tied"):
        distill(student, KNOWN, target, answers[:40], answers[40:], SETTINGS, tmp_path)


@pytest.mark.parametrize("split", [0, 48])
def test_answers_are_needed_on_both_sides(target, answers, tmp_path, split):
    with pytest.raises(ValueError, match="answers to learn from and others"):
        distill(student_of(target, 0.3), KNOWN, target, answers[:split], answers[split:], SETTINGS, tmp_path)


def test_a_run_without_a_terminal_writes_a_line_a_point(target, answers, tmp_path, capsys):
    settings = dataclasses.replace(SETTINGS, train_tokens=60)
    distill(student_of(target, 0.3), KNOWN, target, answers[:40], answers[40:], settings, tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step      0  tokens           0  α 0.")
    assert "tokens/s" in lines[1]
    assert lines[-1].startswith("kept: step ")
