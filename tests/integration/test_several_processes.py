"""A target whose weights are spread over two processes answers what one process answers, and never hangs."""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from deploy.process import POLL_SECONDS, serving_event
from specdec.fence import Fence
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.proposal import Proposal
from specdec.v1 import common_pb2, target_pb2
from specdec.v1.target_pb2_grpc import TargetServiceStub
from specdec.wire import params_to_message, prefix_to_message, proposal_to_message, verification_to_message
from tests.chaos.processes import run_service
from tests.in_process import serving_target
from tests.tiny_models import write_tiny_model

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
PROMPTS = {"one": [5, 6, 7], "two": list(range(40, 90)), "three": [200]}
ROUNDS = 12
GAMMA = 4
SECONDS = 60
FORKS = multiprocessing.get_context("forkserver")


class Spread:
    """A target of two processes, and torchrun over them."""

    def __init__(self, folder):
        self.torchrun = subprocess.Popen(
            [sys.executable, *TORCHRUN, "-m", "target_service", "--model", folder, "--dtype", "float64", "--port", "0"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events = []

    @property
    def address(self):
        """Where it serves; waits until it does."""
        return f"127.0.0.1:{self.wait_for('serving')['port']}"

    def wait_for(self, name):
        """Read log lines up to an event; torchrun's own are no JSON."""
        for line in self.torchrun.stderr:
            if line.startswith("{"):
                self.events.append(json.loads(line))
                if self.events[-1]["event"] == name:
                    return self.events[-1]
        raise AssertionError(f"it ended before it was {name}: {self.events}")

    def rest(self):
        """Wait for the end; return the exit status."""
        _, lines = self.torchrun.communicate(timeout=SECONDS)
        self.events += [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
        return self.torchrun.returncode

    def process(self, rank):
        """Return the process of a rank."""
        children = psutil.Process(self.torchrun.pid).children()
        return next(child for child in children if child.environ().get("RANK") == str(rank))


@contextmanager
def spread_target(folder):
    spread = Spread(folder)
    try:
        yield spread
    finally:
        for process in psutil.Process(spread.torchrun.pid).children() if spread.torchrun.poll() is None else []:
            process.kill()
        spread.torchrun.kill()
        spread.torchrun.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), "qwen3")


def request(session_id, committed, drafted, temperature):
    prefix = CommittedPrefix(
        session_id, Fence(1, "0" * 32), 0, PrefixDigest().digest(), tuple(committed), len(PROMPTS[session_id])
    )
    return target_pb2.VerifyRequest(
        prefix=prefix_to_message(prefix),
        sampling_params=params_to_message(SamplingParams(temperature=temperature, seed=7, logprobs=3)),
        verification=verification_to_message(Verification.COUPLED),
        proposal=proposal_to_message(Proposal(tuple(drafted), ())),
    )


async def answer(verify, session_id, temperature, guesses):
    """Run a session's rounds; guesses continue its text, with a wrong one in every other round."""
    committed, verdicts = list(PROMPTS[session_id]), []
    for number in range(ROUNDS):
        drafted = guesses[len(committed) :][:GAMMA]
        if number % 2 and len(drafted) > 2:
            drafted[2] = (drafted[2] + 1) % 256
        verdict = await verify(request(session_id, committed, drafted, temperature), timeout=SECONDS)
        committed += [*drafted[: verdict.accept_index], verdict.next_token]
        verdicts.append(verdict)
    return committed, verdicts


async def answers(address, temperature, guesses):
    """Run all sessions at once, then release them."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = TargetServiceStub(channel)
        rounds = [answer(stub.Verify, name, temperature, guesses.get(name, [])) for name in PROMPTS]
        found = dict(zip(PROMPTS, await asyncio.gather(*rounds), strict=True))
        for name in PROMPTS:
            fence = common_pb2.Fence(counter=1, owner="0" * 32)
            await stub.Release(common_pb2.ReleaseRequest(session_id=name, fence=fence), timeout=SECONDS)
        info = await stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=SECONDS)
    return found, info.model


async def ask(address, temperature):
    """Return what a target answers without guesses, then with its own text as guesses, and what it says of itself."""
    plain, info = await answers(address, temperature, {})
    guessed, _ = await answers(address, temperature, {name: committed for name, (committed, _) in plain.items()})
    return plain, guessed, info


def assert_same(here, there):
    assert here.keys() == there.keys()
    for name, (committed, verdicts) in here.items():
        assert committed == there[name][0]
        for one, other in zip(verdicts, there[name][1], strict=True):
            assert one.accept_index == other.accept_index
            assert [each.token_id for each in one.logprobs] == [each.token_id for each in other.logprobs]
            values = [[each.logprob, *(top.logprob for top in each.top)] for each in one.logprobs]
            others = [[each.logprob, *(top.logprob for top in each.top)] for each in other.logprobs]
            assert values == [pytest.approx(row, abs=1e-9) for row in others]


@pytest.mark.long
async def test_two_processes_answer_what_one_answers_and_end_in_order(folder):
    with spread_target(folder) as spread:
        address = spread.address
        for temperature in (0.0, 1.0):
            async with serving_target(folder, device="cpu", dtype="float64") as one:
                alone = await ask(one.address, temperature)
            together = await ask(address, temperature)
            for here, there in zip(alone[:2], together[:2], strict=True):
                assert_same(here, there)
            accepted = [verdict.accept_index for _, verdicts in alone[1].values() for verdict in verdicts]
            assert {2, GAMMA} <= set(accepted)
            assert alone[2] == together[2]
        spread.process(0).send_signal(signal.SIGTERM)
        assert spread.rest() == 0
        assert [event["rank"] for event in spread.events if event["event"] == "stopped" and "rank" in event] == [1]


def run_rank(rank, store_port, log):
    """Be one of the two processes as torchrun starts them."""
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store_port)}
    os.environ.update({**torchrun, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    run_service("target_service", ["--model", str(log.parent / "model"), "--dtype", "float64", "--port", "0"], log)


@contextmanager
def forked_target(log, store_port):
    """Run a target of two processes that are forked; give their handles and the address."""
    log.touch()
    ranks = [FORKS.Process(target=run_rank, args=(rank, store_port, log)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    try:
        while (event := serving_event(log.read_text())) is None:
            assert all(rank.is_alive() for rank in ranks), log.read_text()
            time.sleep(POLL_SECONDS)
        yield ranks, f"127.0.0.1:{event['port']}"
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def test_a_target_that_loses_a_process_ends_and_its_replacement_answers_the_same(tmp_path, held_port):
    write_tiny_model(tmp_path / "model", "qwen3")

    def first_verdict(address):
        with grpc.insecure_channel(address) as channel:
            verdict = TargetServiceStub(channel).Verify(request("one", PROMPTS["one"], [], 1.0), timeout=SECONDS)
            return verdict.next_token, verdict.logprobs[0].logprob

    with forked_target(tmp_path / "log", held_port) as (ranks, address), grpc.insecure_channel(address) as channel:
        expected = first_verdict(address)
        ranks[1].kill()
        with pytest.raises(grpc.RpcError) as caught:
            ask_on(TargetServiceStub(channel).Verify)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        for rank in ranks:
            rank.join(SECONDS)
        assert [rank.exitcode for rank in ranks] == [1, -signal.SIGKILL]
    with forked_target(tmp_path / "log of the replacement", held_port) as (_, address):
        assert first_verdict(address) == expected


def ask_on(verify):
    while True:
        verify(request("two", PROMPTS["two"], [], 0.0), timeout=SECONDS)


@pytest.mark.long
def test_a_follower_that_dies_ends_the_service(folder):
    with spread_target(folder) as spread, grpc.insecure_channel(spread.address) as channel:
        verify = TargetServiceStub(channel).Verify
        verify(request("one", PROMPTS["one"], [], 0.0), timeout=SECONDS)
        processes = [spread.process(rank) for rank in (0, 1)]
        processes[1].kill()
        with pytest.raises(grpc.RpcError) as caught:
            ask_on(verify)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert spread.rest() != 0, "who started it starts another"
        assert psutil.wait_procs(processes, SECONDS)[1] == []


@pytest.mark.long
def test_a_model_that_cannot_be_spread_ends_both_processes_with_the_reason(tmp_path):
    with spread_target(write_tiny_model(tmp_path, "gpt2")) as spread:
        assert spread.rest() != 0
        reasons = [event["why"] for event in spread.events if "why" in event]
        assert reasons
        assert all("cannot be spread over 2 processes" in why for why in reasons)
