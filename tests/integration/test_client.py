"""The command against a GenerationService that keeps the contract and breaks its streams where it is told to."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from client import patience
from client.__main__ import main
from specdec.v1 import common_pb2
from specdec.v1 import generation_pb2 as v1
from specdec.v1 import generation_pb2_grpc as services

ACCEPTED, CORRECTION, BONUS, TARGET_ONLY = 1, 2, 3, 4
# Rounds of (token id, text that became certain with it, source).
ROUNDS = [
    [(20, "Par", ACCEPTED), (21, "", ACCEPTED), (22, "is ", CORRECTION)],
    [(23, "is\n", TARGET_ONLY)],
    [(24, "n", ACCEPTED), (25, "ice", BONUS)],
]
ANSWER = [token for made in ROUNDS for token in made]
TEXT = "Paris is\nnice"
PROMPT_TOKENS = [1, 2, 3]
HOLD = "hold"


class FakeCoordinator(services.GenerationServiceServicer):
    """Every input is three tokens, every answer ANSWER.

    Call number i of Generate breaks as cuts[i] says: after so many events, or, once the first is sent, by waiting for
    the client to go away (HOLD) or by what a function does.
    """

    def __init__(self, sessions):
        self.sessions, self.cuts, self.requests, self.refusal = sessions, [], [], None

    def Generate(self, request, context):
        self.requests.append(request)
        cut = self.cuts.pop(0) if self.cuts else None
        if self.refusal:
            context.abort_with_status(rpc_status.to_status(self.refusal))
        session = self._open(request, context)
        session.state = v1.SESSION_STATE_RUNNING
        gone = threading.Event()

        def ended():
            if session.state == v1.SESSION_STATE_RUNNING:
                session.state = v1.SESSION_STATE_INTERRUPTED
            gone.set()

        if not context.add_callback(ended):
            return
        for number, event in enumerate(self._events(session, request.resume_from)):
            if number == cut:
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            yield event
            if callable(cut):
                cut()
            if cut == HOLD or callable(cut):
                gone.wait(30)
                return

    def _open(self, request, context):
        session = self.sessions.get(request.session_id)
        length = len(session.tokens) if session else 0
        if request.HasField("resume_from"):
            if session is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            return session
        if request.expected_length != length:
            context.abort(grpc.StatusCode.ABORTED, f"the session holds {length} tokens")
        session = session or SimpleNamespace(tokens=[])
        session.tokens = session.tokens + PROMPT_TOKENS
        session.prompt_length, session.params = len(session.tokens), request.sampling_params
        self.sessions[request.session_id] = session
        return session

    def _events(self, session, received):
        plain = self.requests[-1].speculation.HasField("gamma") and not self.requests[-1].speculation.gamma
        had = len(session.tokens) - session.prompt_length
        if received < had:
            yield event(ANSWER[received:had], received)
        while had < len(ANSWER):
            bounds = [0, 3, 4, 6]
            end = had + 1 if plain else min(bound for bound in bounds if bound > had)
            session.tokens = session.tokens + [token for token, _, _ in ANSWER[had:end]]
            gamma = end - had - 1
            yield event(ANSWER[had:end], had, v1.Round(gamma=gamma, fallback=0 if gamma or plain else 1))
            had = end
        session.state = v1.SESSION_STATE_FINISHED
        usage = v1.Usage(completion_tokens=6, rounds=3, spec_rounds=2, spec_draft_tokens=4, spec_accepted_tokens=3)
        if plain:
            usage = v1.Usage(completion_tokens=6, rounds=6)
        yield v1.GenerateResponse(finish_reason=2, usage=usage, session_length=len(session.tokens))

    def GetSession(self, request, context):
        session = self.sessions.get(request.session_id)
        if session is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
        return v1.GetSessionResponse(
            session_id=request.session_id,
            state=session.state,
            token_ids=session.tokens,
            prompt_length=session.prompt_length,
            sampling_params=session.params,
        )

    def DeleteSession(self, request, context):
        del self.sessions[request.session_id]
        return v1.DeleteSessionResponse()


def event(tokens, index, made=None):
    ids, texts, sources = zip(*tokens, strict=True)
    return v1.GenerateResponse(
        index=index, token_ids=ids, text="".join(texts), token_texts=texts, sources=sources, round=made
    )


def serve(coordinator):
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    services.add_GenerationServiceServicer_to_server(coordinator, server)
    coordinator.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server


@pytest.fixture
def sessions():
    return {}


@pytest.fixture
def coordinator(sessions):
    coordinator = FakeCoordinator(sessions)
    server = serve(coordinator)
    yield coordinator
    server.stop(0).wait()


@pytest.fixture
def specdec(coordinator, monkeypatch, capsys):
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(patience, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("SPECDEC_ADDRESS", coordinator.address)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return SimpleNamespace(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def standard_input(monkeypatch, tmp_path):
    def give(text):
        (tmp_path / "input").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stack.enter_context((tmp_path / "input").open(encoding="utf-8")))

    with contextlib.ExitStack() as stack:
        yield give


def rows(err):
    return {line[:21].strip(): line[21:].split() for line in err.splitlines() if line.startswith("  ")}


def test_text_to_standard_output_and_table_to_standard_error(specdec, coordinator):
    result = specdec("generate", "The capital of France is", "--temperature", "0.5", "--gamma", "4", "--seed", "7")
    assert (result.status, result.out) == (0, TEXT + "\n")
    table = rows(result.err)
    assert table["rounds"] == ["3"]
    assert table["draft tokens"] == ["4"]
    assert table["acceptance"] == ["75.0%"]
    assert table["tokens a round"] == ["2.00"]
    assert table["fallback rounds"] == ["1"]
    assert table["tokens"] == ["6"]
    assert table["finish reason"] == ["length"]
    assert {"time to first token", "tokens a second"} <= set(table)
    [request] = coordinator.requests
    assert (request.prompt, request.speculation.gamma, request.expected_length) == ("The capital of France is", 4, 0)
    assert request.sampling_params == common_pb2.SamplingParams(temperature=0.5, seed=7)
    assert request.session_id in result.err


def test_prompt_from_standard_input(specdec, coordinator, standard_input):
    standard_input("two\nlines\n")
    assert specdec("generate").status == 0
    assert coordinator.requests[0].prompt == "two\nlines"


def test_chat_flag_sends_a_message(specdec, coordinator):
    specdec("generate", "Hello", "--chat")
    assert coordinator.requests[0].messages == [v1.ChatMessage(role="user", content="Hello")]
    assert not coordinator.requests[0].prompt


def test_show_tokens_marks_sources(specdec):
    result = specdec("generate", "x", "--show-tokens")
    assert result.out == "[Par]<is >(is\n)[n]{ice}\n"
    assert "[accepted], <correction>, {bonus}, (target only)" in result.err


def test_json_lines(specdec):
    events = [json.loads(line) for line in specdec("generate", "x", "--json").out.splitlines()]
    assert "".join(event.get("text", "") for event in events) == TEXT
    assert events[0]["token_ids"] == [20, 21, 22]
    assert events[-1]["finish_reason"] == "FINISH_REASON_LENGTH"


def test_compare_repeats_the_same_request_without_speculation(specdec, coordinator, sessions):
    result = specdec("generate", "x", "--compare", "--temperature", "0.5")
    assert (result.status, result.out) == (0, TEXT + "\n")
    first, second = coordinator.requests
    assert second.token_ids == PROMPT_TOKENS
    assert second.sampling_params == first.sampling_params
    assert second.speculation.HasField("gamma")
    table = rows(result.err)
    assert table["rounds"] == ["3", "6"]
    assert table["same text"] == ["yes"]
    assert table["speed-up"][0].endswith("x")
    assert list(sessions) == [first.session_id]


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("second", [None, 0, 1])
def test_lost_streams_leave_no_trace_in_the_text(specdec, coordinator, first, second):
    coordinator.cuts = [first, second]
    result = specdec("generate", "x", "--show-tokens")
    assert (result.status, result.out) == (0, "[Par]<is >(is\n)[n]{ice}\n")
    assert ("trying again" in result.err) == (first < 4)


def test_other_address_takes_over_when_a_coordinator_dies(sessions, specdec, coordinator):
    dying = FakeCoordinator(sessions)
    server = serve(dying)
    dying.cuts = [lambda: server.stop(0)]
    result = specdec("generate", "x", "--address", f"{dying.address},{coordinator.address}")
    server.stop(0).wait()
    assert (result.status, result.out) == (0, TEXT + "\n")
    assert len(dying.requests) == len(coordinator.requests) == 1
    assert coordinator.requests[0].resume_from in (0, 3)  # whether the first event came through is a race


def test_nobody_there(specdec, monkeypatch):
    result = specdec("generate", "x", "--address", "127.0.0.1:1")
    assert result.status == 2
    assert "no coordinator answers at 127.0.0.1:1" in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def refusal(code, message, *details):
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def info(reason):
    return error_details_pb2.ErrorInfo(reason=reason, domain="specdec")


def bad_request(field, description):
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


@pytest.mark.parametrize(
    ("status", "exit_code", "text"),
    [
        (
            refusal(
                code_pb2.INVALID_ARGUMENT,
                "bad value",
                info("INVALID_PARAMETER"),
                bad_request("sampling_params.top_p", "must be above 0"),
            ),
            1,
            "specdec: sampling_params.top_p: must be above 0",
        ),
        (refusal(code_pb2.NOT_FOUND, "no session s", info("SESSION_NOT_FOUND")), 3, "specdec: no session s"),
        (refusal(code_pb2.DATA_LOSS, "tokens are gone", info("DATA_LOST")), 4, "specdec: tokens are gone"),
        (refusal(code_pb2.RESOURCE_EXHAUSTED, "cache is full", info("CACHE_FULL")), 2, "specdec: cache is full"),
    ],
)
def test_refusals_are_one_line_with_an_exit_code(specdec, coordinator, status, exit_code, text):
    coordinator.refusal = status
    result = specdec("generate", "x")
    assert (result.status, result.out, result.err) == (exit_code, "", text + "\n")
    assert len(coordinator.requests) == 1


def test_full_queue_is_tried_again_when_the_server_says_so(specdec, coordinator):
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1_000_000))
    coordinator.refusal = refusal(code_pb2.RESOURCE_EXHAUSTED, "queue is full", info("QUEUE_FULL"), retry)
    assert specdec("generate", "x").status == 2
    assert len(coordinator.requests) == patience.RETRIES + 1


def test_timeout(specdec, coordinator):
    for seconds in ("0.3", "1", "3", "9"):  # the shorter ones may pass before anything has come
        coordinator.cuts = [HOLD]
        result = specdec("generate", "x", "--timeout", seconds)
        if result.out:
            break
    assert (result.status, result.out) == (5, "Paris \n")
    assert "in time" in result.err.splitlines()[-1]
    assert rows(result.err)["finish reason"] == ["not", "finished"]


@pytest.mark.parametrize(
    "arguments", [["generate", "x", "--gamma", "-1"], ["generate", "x", "--top-k", "a"], ["frobnicate"]]
)
def test_wrong_usage_is_one_line(specdec, coordinator, arguments):
    result = specdec(*arguments)
    assert result.status == 1
    assert result.err.startswith("specdec: ")
    assert result.err.count("\n") == 1
    assert not coordinator.requests


def test_known_session_is_continued_from_its_length(specdec, coordinator):
    specdec("generate", "x", "--session-id", "mine")
    specdec("generate", "y", "--session-id", "mine")
    assert [request.expected_length for request in coordinator.requests] == [0, 9]


def test_chat_keeps_the_session(specdec, coordinator, standard_input):
    standard_input("Hello\n\nAgain\n/exit\nnever sent\n")
    coordinator.cuts = [None, 2]
    result = specdec("chat")
    assert (result.status, result.out) == (0, f"{TEXT}\n{TEXT}\n")
    first, second, resumed = coordinator.requests
    assert [message.content for message in [*first.messages, *second.messages]] == ["Hello", "Again"]
    assert first.session_id == second.session_id == resumed.session_id
    assert [first.expected_length, second.expected_length] == [0, 9]
    assert rows(result.err)["tokens"] == ["12"]


def start(*arguments, address):
    return subprocess.Popen(
        [sys.executable, "-m", "client", *arguments, "--address", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the tests may run with it ignored
    )


def test_interrupt_stops_the_answer_but_not_the_chat(coordinator):
    coordinator.cuts = [HOLD]
    with start("chat", address=coordinator.address) as process:
        process.stdin.write("Hello\n")
        assert process.stdout.read(len("Paris ")) == "Paris "
        process.send_signal(signal.SIGINT)
        out, err = process.communicate("Again\n", timeout=100)
    assert (process.returncode, out) == (0, f"\n{TEXT}\n")
    assert "(stopped)" in err
    assert "Traceback" not in err
    assert coordinator.requests[1].expected_length == len(PROMPT_TOKENS) + 3
    assert coordinator.requests[1].messages[0].content == "Again"


def test_interrupt_ends_generate(coordinator):
    coordinator.cuts = [HOLD]
    with start("generate", "x", address=coordinator.address) as process:
        assert process.stdout.read(len("Paris ")) == "Paris "
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_help_imports_no_models():
    code = "import sys, client.__main__; print([n for n in ('torch', 'transformers', 'redis') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"
