"""Systems in processes: a tiny pair of random weights in float64, and a synthetic pair that exports its spans."""

import pytest
import transformers

from deploy.system import System
from tests.e2e.calls import Caller
from tests.e2e.restarts import restartable
from tests.otlp_receiver import OtlpReceiver
from tests.reference import Reference
from tests.tiny_models import VOCABULARY, write_tiny_model

DRAFT_CONTEXT = 40  # of the synthetic draft, in tokens


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3, context=1024)


@pytest.fixture(scope="session")
def tiny_reference(tiny_target):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target)
    return Reference(model, len(VOCABULARY))


@pytest.fixture(scope="session")
def system(tmp_path_factory, tiny_target):
    # A target may take long to start again on a busy machine.
    environment = {"TARGET_DTYPE": "float64", "DRAFT_DTYPE": "float64", "COORDINATOR_PEER_WAIT_SECONDS": "120"}
    folder = tmp_path_factory.mktemp("system")
    draft = f"layers:1:{tiny_target}"
    with restartable(folder, target=tiny_target, draft=draft, environment=environment) as system:
        yield system


@pytest.fixture
def caller(system):
    caller = Caller(system.address("coordinator"))
    yield caller
    caller.channel.close()


@pytest.fixture(scope="session")
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def traced_system(tmp_path_factory, receiver):
    """A synthetic pair; sessions outgrow the draft's context early."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    folder = tmp_path_factory.mktemp("traced")
    models = {"target": "synthetic:seed=1", "draft": f"synthetic:seed=1,agreement=0.6,context={DRAFT_CONTEXT}"}
    with System(folder, **models, environment=environment) as system:
        yield system


@pytest.fixture
def traced_caller(traced_system):
    caller = Caller(traced_system.address("coordinator"))
    yield caller
    caller.channel.close()
