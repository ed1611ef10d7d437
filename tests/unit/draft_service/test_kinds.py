"""Names of drafts: what is served under each, and what is refused."""

import pytest
from prometheus_client import CollectorRegistry

from draft_service.drafting import Draft
from draft_service.foresight import ForesightedDraft
from draft_service.kinds import drafts_of
from draft_service.settings import DraftSettings
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from specdec.model.static_steps import StaticSteps
from tests.tiny_models import write_tiny_model


def drafts(**settings):
    return drafts_of(DraftSettings(**settings), CollectorRegistry())


def test_a_lookup_alone_has_no_vocabulary_and_the_room_that_it_is_given():
    description = drafts(model="lookup:", cache_tokens=777).load().description
    assert (description.name, description.vocabulary_size, description.vocabulary_fingerprint) == ("lookup:", 0, "")
    assert description.context_length == 777


def test_a_composition_is_its_model_under_the_whole_name():
    name = "lookup:synthetic:seed=3"
    composed, plain = (drafts(model=each).load().description for each in (name, name[7:]))
    assert composed.name == name
    assert composed.vocabulary_fingerprint == plain.vocabulary_fingerprint
    assert composed.model_fingerprint == plain.model_fingerprint


def test_any_other_name_is_a_model():
    assert drafts(model="synthetic:").make is Draft
    assert drafts(model="synthetic:", ahead_tokens=8).make.func is ForesightedDraft


@pytest.mark.parametrize("name", ["lookup:", "lookup:synthetic:seed=1", "lookup:lookup:"])
def test_a_target_is_no_lookup(name):
    with pytest.raises(ModelRefused, match="a draft alone"):
        load_model(name)


def test_what_follows_lookup_is_a_model():
    with pytest.raises(ModelRefused, match="a draft alone"):
        drafts(model="lookup:lookup:").load()
    with pytest.raises(ModelRefused, match="no such file"):
        drafts(model="lookup:nothing here").load()


def test_sharing_is_for_a_lookup_alone(capsys):
    assert DraftSettings.load(["--model", "lookup:", "--lookup-shared", "true"]).lookup_shared
    with pytest.raises(SystemExit):
        DraftSettings.load(["--model", "synthetic:", "--lookup-shared", "true"])
    assert "DRAFT_LOOKUP_SHARED" in capsys.readouterr().err


def test_static_steps_are_for_models_with_weights(tmp_path, capsys):
    folder = write_tiny_model(tmp_path)
    for name in (folder, f"lookup:{folder}"):
        model = drafts(model=name, static_steps=True, device="cpu", cache_tokens=512).load()
        assert isinstance(model, StaticSteps)
        assert model.description.name == name
    with pytest.raises(ModelRefused, match="DRAFT_STATIC_STEPS is for models that have weights"):
        drafts(model="synthetic:", static_steps=True).load()
    with pytest.raises(SystemExit):
        DraftSettings.load(["--model", "lookup:", "--static-steps", "true"])
    assert "DRAFT_STATIC_STEPS" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["lookup:"], ["lookup:synthetic:"], ["synthetic:", "--max-batch-tokens", "7"]])
def test_drafting_ahead_is_for_models_and_within_a_pass(capsys, flags):
    assert DraftSettings.load(["--model", "synthetic:", "--ahead-tokens", "8"]).engine_limits.ahead_tokens == 8
    with pytest.raises(SystemExit):
        DraftSettings.load(["--ahead-tokens", "8", "--model", *flags])
    assert "DRAFT_AHEAD_TOKENS" in capsys.readouterr().err
