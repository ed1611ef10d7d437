"""Runbooks quote lines of the log: each is written, at the level that is on, in the case that the page is about."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coordinator import generation, replicas
from coordinator.replicas import Replicas
from specdec.errors import InvalidProposal, PeerUnavailable
from specdec.serving import telemetry
from specdec.serving.model_server import run_model_server
from specdec.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide
from tests.in_process import serving_target
from tests.unit.coordinator.fakes import World
from tests.unit.coordinator.watched import SERVING, Watched, followed, model

RUNBOOKS = Path(__file__).parents[3] / "deploy" / "runbooks"
COMMANDS = ("kubectl ", "info ", "slowlog ", "appendfsync ")


async def replicas_come_go_and_misfit(monkeypatch):
    async with followed(Watched([SERVING], [], [SERVING]), Watched([SERVING], info=model(vocabulary_size=299))):
        pass
    monkeypatch.setattr("coordinator.fleet.load_tokenizer", fail)
    async with followed(Watched([SERVING], []), Watched()):
        pass


def fail(_):
    raise OSError("it is not there")


async def a_name_is_unknown(monkeypatch):
    asked = asyncio.Event()

    async def resolve(name):
        asked.set()
        fail(name)

    monkeypatch.setattr(replicas, "resolve", resolve)
    unknown = Replicas("draft", lambda _: None, ["dns:///draft:1"], lambda *_: None, silence=1)
    unknown.start(lambda: None)
    await asked.wait()
    await unknown.close()


async def a_model_is_refused_and_another_served(monkeypatch):
    monkeypatch.setattr(telemetry, "configure", lambda *_: None)  # it would take the log away from the test
    settings, registry = TargetSettings(model="synthetic:seed=none", port=0), CollectorRegistry()
    servicer = TargetServicer(settings, registry)
    with pytest.raises(SystemExit):
        await run_model_server("t", settings, servicer, registry, add_TargetServiceServicer_to_server, decide)
    async with serving_target("synthetic:seed=1"):
        pass


async def redis_is_away_and_a_proposal_is_refused(monkeypatch):
    monkeypatch.setattr(generation, "COMMIT_AGAIN_SECONDS", 0)
    world = World("text", max_new_tokens=15, patience=60)
    world.store.errors = [PeerUnavailable("redis is away")]
    world.target.errors[0] = [InvalidProposal("not drawn so")]
    await world.run()


async def test_pages_quote_what_services_log(monkeypatch):
    monkeypatch.setattr(replicas, "RETRY_SECONDS", 0.0)
    with capture_logs() as lines:
        await replicas_come_go_and_misfit(monkeypatch)
        await a_name_is_unknown(monkeypatch)
        await a_model_is_refused_and_another_served(monkeypatch)
        await redis_is_away_and_a_proposal_is_refused(monkeypatch)
    written = {line["event"] for line in lines if line["log_level"] != "debug"}
    pages = "".join(page.read_text() for page in RUNBOOKS.glob("*.md"))
    quoted = {re.sub(r"\s+", " ", each) for each in re.findall(r"`([a-z]+(?:\s+[a-z]+)+)`", pages)}
    quoted = {each for each in quoted if not each.startswith(COMMANDS)} | {"loading", "loaded"}
    assert len(quoted) >= 8
    assert quoted <= written
