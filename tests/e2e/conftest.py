"""The system in processes, over a tiny pair of random weights in float64."""

import pytest
import transformers

from deploy.system import System
from tests.e2e.calls import Caller
from tests.reference import Reference
from tests.tiny_models import VOCABULARY, write_tiny_model


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3)


@pytest.fixture(scope="session")
def tiny_reference(tiny_target):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target)
    return Reference(model, len(VOCABULARY))


@pytest.fixture(scope="session")
def system(tmp_path_factory, tiny_target):
    environment = {"TARGET_DTYPE": "float64", "DRAFT_DTYPE": "float64"}
    folder = tmp_path_factory.mktemp("system")
    with System(folder, target=tiny_target, draft=f"layers:1:{tiny_target}", environment=environment) as system:
        yield system


@pytest.fixture
def caller(system):
    caller = Caller(system.address("coordinator"))
    yield caller
    caller.channel.close()
