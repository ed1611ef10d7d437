"""The system that make up and make demo run, with synthetic models: starts, restarts on its ports, ends wholly."""

import grpc
import psutil
import pytest

from deploy.process import StartFailed
from deploy.system import NAMES, Ports, System
from specdec.v1 import generation_pb2 as v1
from specdec.v1.generation_pb2_grpc import GenerationServiceStub
from tests.e2e.restarts import restartable

TARGET = "synthetic:seed=1"
DRAFT = "synthetic:seed=1,agreement=0.8"
SECONDS = 60.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def answer(system, gamma):
    request = v1.GenerateRequest(prompt="hello")
    request.sampling_params.max_new_tokens = 8
    request.sampling_params.ignore_eos = True
    request.speculation.gamma = gamma
    with grpc.insecure_channel(system.address("coordinator")) as channel:
        events = list(GenerationServiceStub(channel).Generate(request, timeout=SECONDS, wait_for_ready=True))
    assert events[-1].finish_reason == v1.FINISH_REASON_LENGTH
    return [token for event in events for token in event.token_ids]


def test_a_system_starts_restarts_and_ends_wholly(tmp_path):
    with restartable(tmp_path, target=TARGET, draft=DRAFT, environment=ENVIRONMENT) as system:
        first = answer(system, 4)
        addresses = {name: system.address(name) for name in NAMES}
        system.restart("target")
        assert answer(system, 4) == first
        system.kill("draft")
        assert answer(system, 0) == first
        system.start_service("draft")
        assert {name: system.address(name) for name in NAMES} == addresses
        pids = [process.record().pid for process in system.processes.values()]
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_model_that_cannot_be_loaded_is_reported_and_nothing_is_left(tmp_path):
    with (
        pytest.raises(StartFailed, match=r"(?s)target .*unheard"),
        System(tmp_path, target="synthetic:unheard=1", draft=DRAFT, environment=ENVIRONMENT, start_seconds=SECONDS),
    ):
        pytest.fail("started")
    assert not [process for process in System(tmp_path, target="", draft="").processes.values() if process.record()]


def test_metrics_can_be_off(tmp_path):
    off = Ports(metrics={"target": 0, "draft": 0, "coordinator": 0})
    with System(tmp_path, target=TARGET, draft=DRAFT, ports=off, environment=ENVIRONMENT) as system:
        assert {process.record().metrics_port for process in system.processes.values()} == {0}
