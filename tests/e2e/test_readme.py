"""Every command of the README is run here, in its order, or stands in NOT_RUN with the reason."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from coordinator.settings import CoordinatorSettings
from deploy.system import MODULES, NAMES, processes_in
from draft_service.settings import DraftSettings
from target_service.settings import TargetSettings
from tests.certificates import Authority
from tests.e2e.calls import Caller

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
README_ADDRESS = "localhost:50051"
SERVICE = "specdec.v1.GenerationService"
SECONDS = 120

_HUB = "needs a hub"
NOT_RUN = {
    "make test": "runs these tests",
    "make verify": "runs the long ones",
    "make chaos": "takes minutes; its short form is tests/chaos/test_chaos.py",
    "make soak": "takes ten minutes; its short form is tests/chaos/test_soak.py",
    "make demo": "needs the embedded pair; what it runs is run below with a synthetic one",
    'make demo PROMPT="Write a haiku about the sea."': "as make demo",
    "make demo PAIR=qwen2.5-coder": "fetches 1.6 GB; the pair answers in the long tests",
    "make demo DRAFT=lookup:": "as make demo",
    "make demo DRAFT=Qwen/Qwen3-0.6B TARGET=Qwen/Qwen3-4B": _HUB,
    ".venv/bin/python -m training.make_draft --target embedded:smollm2 --out my-draft": "takes minutes; a long test",
    "make demo TARGET=embedded:smollm2 DRAFT=my-draft": "needs the draft of the command before",
    ".venv/bin/torchrun --nproc-per-node 4 -m training.make_draft --target Qwen/Qwen3-4B --out my-draft --train": _HUB,
    "make bench PAIR=smollm2 BENCH_FLAGS=--quick": "takes minutes; a synthetic pair is measured in the tests",
    "make bench PAIR=smollm2 BENCH_FLAGS=--write": "as with --quick, and writes into the checkout",
    "make bench BENCH=overhead": "takes minutes; a long test runs it short",
    "make bench BENCH=load": "as BENCH=overhead",
    "make bench BENCH=wire": "as BENCH=overhead",
    "make bench BENCH=pass_cost": "as BENCH=overhead",
    "make report": "needs recorded results; the page is tested",
    "torchrun --nproc-per-node 4 --shutdown-timeout 45 -m target_service --model Qwen/Qwen3-32B": _HUB,
    "make up": "takes the fixed ports; what it runs is run below on free ones",
    "make down": "as make up",
    "python -m target_service --model Qwen/Qwen3-4B --port 50053": _HUB,
    "python -m draft_service --model Qwen/Qwen3-0.6B --port 50052": _HUB,
    "python -m coordinator --port 50051 --redis-url redis://localhost:6379/0 --target-addresses localhost:50053"
    " --draft-addresses localhost:50052": "takes a fixed port",
}
# What a person types after a command that reads standard input.
TYPED = {".venv/bin/specdec chat": "How do I make tea?\nAnd with milk?\n/exit\n"}


def commands():
    """Return the lines of the README's sh blocks in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


COMMANDS = commands()
CALLS = [command for command in COMMANDS if command.startswith("grpcurl -plaintext ")]
DOORS = [command for command in COMMANDS if "TOKEN" in command]
CLIENT = [command for command in COMMANDS if command.startswith(".venv/bin/specdec ")]


def test_every_command_is_run_or_its_reason_given():
    assert len(CALLS) >= 9
    assert len(CLIENT) >= 2
    run = {*CALLS, *CLIENT, *DOORS}
    assert not run & NOT_RUN.keys()
    assert sorted({*COMMANDS} - run) == sorted(NOT_RUN)
    assert TYPED.keys() <= set(CLIENT)


def run(command, address):
    """Run a command of the README, or one like it, against another address."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [BIN / Path(program).name, *(argument.replace(README_ADDRESS, address) for argument in arguments)],
        input=TYPED.get(command, "").encode(),
        capture_output=True,
        timeout=SECONDS,
        env=os.environ | {"SPECDEC_ADDRESS": address, "COLUMNS": "200"},
    )
    # Not text=True: that would turn a \r of the model into \n.
    return SimpleNamespace(code=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode())


def messages(text):
    """Return the JSON messages that grpcurl has printed one after the other."""
    decoder, found, text = json.JSONDecoder(), [], text.strip()
    while text:
        message, end = decoder.raw_decode(text)
        found.append(message)
        text = text[end:].lstrip()
    return found


@pytest.fixture(scope="module")
def outputs(system):
    """Run all of grpcurl's commands in the README's order; what each printed, by command."""
    address = system.address("coordinator")
    done = [(command, run(command, address)) for command in CALLS]
    failed = [(command, each.stderr) for command, each in done if each.code != 0 or each.stderr]
    assert not failed
    return dict(done)


@pytest.fixture
def shown(outputs):
    """Tell what the one command printed that holds all of some words."""

    def find(*words):
        [command] = [each for each in CALLS if all(word in each for word in words)]
        return outputs[command].stdout

    return find


def answer(text):
    """Return the events of a printed answer, which ended well."""
    events = messages(text)
    assert [event for event in events if "finish_reason" in event] == events[-1:]
    assert events[-1]["usage"]["completion_tokens"] == sum(len(event["token_ids"]) for event in events)
    assert "".join(event.get("text", "") for event in events)
    return events


def test_a_prompt_alone_streams_text_beside_tokens(shown):
    events = answer(shown('{"prompt":'))
    assert len(events) > 2
    assert events[-1]["usage"]["prompt_tokens"] == len("The capital of France is")


def test_messages_and_parameters_are_heeded_and_the_session_is_ours(shown):
    events = answer(shown('"temperature"', "How do I make tea?"))
    assert {event["session_id"] for event in events} == {"tea"}
    assert max(event["round"]["gamma"] for event in events) == 4
    assert events[-1]["usage"]["completion_tokens"] <= 48


def test_a_session_continues(shown):
    first = answer(shown('"temperature"', "How do I make tea?"))[-1]
    second = answer(shown("And with milk?"))[-1]
    assert second["usage"]["prompt_tokens"] > first["session_length"] + len("And with milk?")
    assert second["usage"]["completion_tokens"] <= 24
    assert second["session_length"] == second["usage"]["prompt_tokens"] + second["usage"]["completion_tokens"]


def test_resume_from_repeats_what_was_lost(shown):
    lost, resumed = answer(shown("And with milk?")), answer(shown("resume_from"))
    for field in ("token_ids", "text", "sources"):
        assert joined(resumed, field) == joined(lost, field)
    assert resumed[-1]["finish_reason"] == lost[-1]["finish_reason"]


def joined(events, field):
    return [each for event in events for each in event.get(field, [])]


def test_a_session_can_be_looked_at(shown):
    [session] = messages(shown("GetSession"))
    last = answer(shown("And with milk?"))
    assert session["session_id"] == "tea"
    assert session["state"] == "SESSION_STATE_FINISHED"
    assert len(session["token_ids"]) == last[-1]["session_length"]
    assert session["text"] == "".join(event.get("text", "") for event in last)


def test_a_session_can_be_deleted(shown, system):
    assert messages(shown("DeleteSession")) == [{}]
    [look] = [command for command in CALLS if "GetSession" in command]
    again = run(look, system.address("coordinator"))
    assert again.code != 0
    assert "Code: NotFound" in again.stderr


def test_what_is_served_and_that_it_is_healthy(shown):
    [info] = messages(shown("GetModelInfo"))
    assert info["model"]["vocabulary_fingerprint"] == info["draft"]["vocabulary_fingerprint"]
    assert messages(shown("Health/Check")) == [{"status": "SERVING"}]


def test_requests_describe_themselves(shown):
    text = shown("describe")
    assert "message GenerateRequest {" in text
    assert "resume_from = 7" in text


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ('{"prompt": "x", "sampling_params": {"top_p": 2}}', "top_p"),
        ('{"prompt": "x", "speculation": {"gamma": 99}}', "speculation.gamma"),
        ('{"messages": [{"content": "x"}]}', "messages[0].role"),
        ("{}", "prompt"),
    ],
)
def test_an_error_names_its_field_and_has_a_reason(system, data, field):
    refused = run(
        f"grpcurl -plaintext -d {shlex.quote(data)} {README_ADDRESS} {SERVICE}/Generate", system.address("coordinator")
    )
    assert refused.code != 0
    assert refused.stdout == ""
    assert "Code: InvalidArgument" in refused.stderr
    assert field in refused.stderr
    assert "INVALID_PARAMETER" in refused.stderr


@pytest.mark.parametrize(
    ("name", "service", "method"), [("draft", "DraftService", "Propose"), ("target", "TargetService", "Verify")]
)
def test_the_model_services_answer_in_the_same_way(system, name, service, method):
    address = system.address(name)
    healthy = run(f"grpcurl -plaintext {README_ADDRESS} grpc.health.v1.Health/Check", address)
    assert messages(healthy.stdout) == [{"status": "SERVING"}]
    described = run(f"grpcurl -plaintext {README_ADDRESS} describe specdec.v1.{service}", address)
    assert f"rpc {method} (" in described.stdout
    [info] = messages(run(f"grpcurl -plaintext {README_ADDRESS} specdec.v1.{service}/GetModelInfo", address).stdout)
    assert info["model"]["vocabulary_size"] > 0


MARKS = {
    "TOKEN_SOURCE_ACCEPTED": "[{}]",
    "TOKEN_SOURCE_CORRECTION": "<{}>",
    "TOKEN_SOURCE_BONUS": "{{{}}}",
    "TOKEN_SOURCE_TARGET_ONLY": "({})",
}


def test_the_client_answers_and_says_where_tokens_came_from(system):
    [command] = [each for each in CLIENT if "generate" in each]
    command += " --gamma 4 --max-new-tokens 48"  # else the rounds are what pays on a machine this busy
    answered = run(command, system.address("coordinator"))
    assert answered.code == 0, answered.stderr
    assert "tokens by source: [accepted], <correction>, {bonus}, (target only)" in answered.stderr
    assert re.search(r"acceptance +\d+\.\d%", answered.stderr)
    events = answer(run(f"{command} --json", system.address("coordinator")).stdout)
    texts, sources = joined(events, "token_texts"), joined(events, "sources")
    assert {"TOKEN_SOURCE_ACCEPTED", "TOKEN_SOURCE_CORRECTION"} <= set(sources)
    pieces = [MARKS[source].format(text) for text, source in zip(texts, sources, strict=True) if text]
    assert answered.stdout == "".join(pieces) + "\n"


def test_the_client_holds_a_conversation(system):
    [command] = TYPED
    talked = run(command, system.address("coordinator"))
    assert talked.code == 0, talked.stderr
    caller = Caller(system.address("coordinator"))
    session = caller.session(re.search(r"^session (\S+)", talked.stderr, re.MULTILINE)[1])
    caller.channel.close()
    assert talked.stdout.rstrip("\n").endswith(session.text.rstrip("\n"))
    assert session.prompt_length > len("How do I make tea?") + len("And with milk?")
    assert session.usage.prompt_tokens == session.prompt_length


@pytest.mark.parametrize("settings", [TargetSettings, DraftSettings, CoordinatorSettings])
def test_the_flags_of_services_run_by_hand_are_theirs(settings):
    program = f"python -m {settings.__module__.partition('.')[0]} "
    [command] = [each for each in COMMANDS if each.startswith(program)]
    loaded = settings.load(shlex.split(command.removeprefix(program)))
    assert loaded.port == settings.model_fields["port"].default


def bash(command, folder, **environment):
    """Run a command of the README in a folder, the programs of the virtual environment first."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"} | environment
    command = command.replace(".venv/bin/", "")
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
    return SimpleNamespace(code=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode())


@contextmanager
def started(command, folder):
    """Run a service by a command of the README; give the port of its "serving" line."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", f"exec env {command}"], cwd=folder, env=environment, stderr=subprocess.PIPE
    )
    try:
        yield next(event["port"] for event in map(json.loads, process.stderr) if event["event"] == "serving")
    finally:
        process.kill()
        process.communicate()


def test_the_doors_open_to_who_has_certificate_and_token(system, tmp_path):
    make_token, serve, generate, call = DOORS
    authority = Authority(tmp_path, "ca")
    authority.issue("server")
    made = bash(f"{make_token}; printf %s $TOKEN", tmp_path)
    assert made.code == 0, made.stderr
    peers = [f"--{name}-addresses={system.address(name)}" for name in ("target", "draft")]
    flags = ["--port=0", f"--redis-url={system.redis_url}", *peers]
    with started(shlex.join([*shlex.split(serve), *flags]), tmp_path) as port:
        address = f"localhost:{port}"
        for command in (generate, call):
            command = command.replace(README_ADDRESS, address)
            answered = bash(command, tmp_path, TOKEN=made.stdout, SPECDEC_ADDRESS=address)
            assert answered.code == 0, answered.stderr
            assert answered.stdout.strip()
            refused = bash(command, tmp_path, TOKEN="f" * 64, SPECDEC_ADDRESS=address)
            assert refused.code != 0
            assert "a valid token is needed" in refused.stderr


SYNTHETIC = ("--target", "synthetic:seed=1", "--draft", "synthetic:seed=1,agreement=0.8")


def laptop(folder, *arguments):
    """Run what the make targets run, in another folder."""
    command = [sys.executable, "-m", "deploy.laptop", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS, text=True)


def test_the_demo_answers_compares_and_leaves_nothing(tmp_path):
    shown = laptop(tmp_path, "demo", *SYNTHETIC, "--prompt", "hello", "--", "--compare", "--max-new-tokens", "8")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()
    assert "speed-up" in shown.stderr
    assert list(tmp_path.rglob("*")) == [tmp_path / ".run"]


def test_up_leaves_a_system_that_answers_and_down_ends_it(tmp_path):
    ports = [f"--{name}-port=0" for name in NAMES] + [f"--{name}-metrics-port=0" for name in MODULES]
    try:
        up = laptop(tmp_path, "up", *SYNTHETIC, *ports)
        assert up.returncode == 0, up.stderr
        pids = [process.record().pid for process in processes_in(tmp_path / ".run").values()]
        again = laptop(tmp_path, "up", *SYNTHETIC, *ports)
        assert "already up" in again.stdout
        [command] = re.findall(r"^try  (.*)$", up.stdout, re.MULTILINE)
        answered = subprocess.run(shlex.split(command), capture_output=True, timeout=SECONDS, text=True)
        assert answer(answered.stdout)[-1]["usage"]["spec_accepted_tokens"] > 0
    finally:
        down = laptop(tmp_path, "down")
    assert down.stdout == "ended coordinator, draft, target, redis\n"
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert laptop(tmp_path, "down").stdout == "nothing was running\n"
