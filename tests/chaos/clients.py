"""Clients that ask on and on, with the code of the ``specdec`` command, and write down what they get."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from uuid import uuid4

from grpc.experimental import insecure_channel_credentials

from client.connection import Coordinators
from client.failures import RequestFailed
from specdec.v1 import common_pb2
from specdec.v1 import generation_pb2 as v1
from tests.chaos.history import OK, Answer, History, Request

TOKENS = 40
TURNS = 2
GAMMAS = (0, 2, 4, None)
# For one answer with all that happens to it; more is a client that was forgotten.
ANSWER_SECONDS = 60.0
# How often an answer that failed is taken up again.
TRIES = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """What may be asked for.

    Attributes:
        name: of it.
        prompt: text of each turn, one byte a token.
        temperature: 0 is greedy.
        verification: how draft tokens are verified.
        repeatable: whether the text is the same whatever the draft does.
    """

    name: str
    prompt: str
    temperature: float
    verification: common_pb2.Verification
    repeatable: bool = True

    def request(self, session_id: str, length: int, gamma: int | None) -> v1.GenerateRequest:
        """Return the request for the next answer of a session that holds so many tokens."""
        request = v1.GenerateRequest(session_id=session_id, prompt=self.prompt, expected_length=length)
        params = common_pb2.SamplingParams(temperature=self.temperature, seed=3, max_new_tokens=TOKENS, ignore_eos=True)
        request.sampling_params.CopyFrom(params)
        request.speculation.verification = self.verification
        if gamma is not None:
            request.speculation.gamma = gamma
        return request


ASKS = (
    Ask("greedy", "hello", 0.0, common_pb2.VERIFICATION_BLOCK),
    Ask("greedy too", "good morning", 0.0, common_pb2.VERIFICATION_TOKEN),
    Ask("coupled", "hello", 1.0, common_pb2.VERIFICATION_COUPLED),
    Ask("coupled too", "good night", 0.8, common_pb2.VERIFICATION_COUPLED),
    Ask("sampled", "hello", 1.0, common_pb2.VERIFICATION_BLOCK, repeatable=False),
)


class Gate:
    """Lets requests begin while it is open, and knows how many are under way."""

    def __init__(self) -> None:
        """Be closed."""
        self.open = threading.Event()
        self.ended = False
        self.under_way = 0
        self._counting = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[bool]:
        """Wait until a request may begin and count it; give whether it is still wanted."""
        while True:
            self.open.wait()
            with self._counting:
                if self.open.is_set():
                    self.under_way += 1
                    break
        try:
            yield not self.ended
        finally:
            with self._counting:
                self.under_way -= 1

    def close(self) -> None:
        """Let no request begin."""
        with self._counting:
            self.open.clear()


class Client:
    """One client: session after session, each of some turns and, like a command, with connections of its own."""

    def __init__(self, addresses: list[str], history: History, gate: Gate, seed: int) -> None:
        """Ask nothing yet."""
        self._addresses = addresses
        self._history = history
        self._gate = gate
        self._random = Random(seed)
        self._waits = 0

    def run(self) -> None:
        """Ask until the gate says that nothing is wanted any more."""
        while not self._gate.ended:
            addresses = self._random.sample(self._addresses, len(self._addresses))
            with Coordinators(addresses, insecure_channel_credentials(), (), self._waited) as coordinators:
                self._session(coordinators, self._random.choice(ASKS))

    def _waited(self, failure: RequestFailed, pause: float) -> None:
        self._waits += 1

    def _session(self, coordinators: Coordinators, ask: Ask) -> None:
        session_id, length = f"chaos-{uuid4().hex}", 0
        for turn in range(TURNS):
            request = ask.request(session_id, length, self._random.choice(GAMMAS))
            if not self._answer(coordinators, ask, turn, request):
                return
            length += len(ask.prompt) + TOKENS

    def _answer(self, coordinators: Coordinators, ask: Ask, turn: int, request: v1.GenerateRequest) -> bool:
        """Get an answer to its end, if need be by taking it up again from its beginning."""
        prompt_length = request.expected_length + len(request.prompt)
        length = request.expected_length
        resume = v1.GenerateRequest(session_id=request.session_id, resume_from=0, expected_length=length)
        wanted, shown = request, False
        for attempt in range(TRIES):
            with self._gate.request() as still:
                if not still:
                    return False
                record = Request(request.session_id, turn, ask.name, prompt_length, time.monotonic())
                record.repeated = attempt > 0 and wanted is request
                self._ask(coordinators, wanted, record)
            if record.outcome == OK:
                return True
            if record.outcome != "UNAVAILABLE" and wanted is resume:
                return False  # gone: whether it may be is for the checker
            shown = shown or bool(record.tokens)
            if (
                record.outcome == "ABORTED"
                and not shown
                and not _begun(coordinators, request.session_id, prompt_length)
            ):
                return False
            wanted = resume if shown or record.outcome == "ABORTED" else request
        return False

    def _ask(self, coordinators: Coordinators, request: v1.GenerateRequest, record: Request) -> None:
        self._waits = 0
        try:
            for event in coordinators.answer(request, ANSWER_SECONDS):
                record.after_finish += bool(record.finishes)
                record.finishes += bool(event.finish_reason)
                record.tokens += event.token_ids
                record.text += event.text
            record.outcome = OK
        except RequestFailed as failure:
            record.outcome, record.reason = failure.code, failure.reason
        record.ended, record.resumptions = time.monotonic(), self._waits
        self._history.requests.append(record)


def _begun(coordinators: Coordinators, session_id: str, prompt_length: int) -> bool:
    """Tell whether the latest answer of a session is the one that follows so many tokens."""
    try:
        session = coordinators.session(session_id)
    except RequestFailed:  # taking the answer up will tell
        return True
    return session is not None and session.prompt_length == prompt_length


def undisturbed(addresses: list[str]) -> dict[tuple[str, int], Answer]:
    """Return what every repeatable ask is answered, turn by turn, without speculation and without faults."""
    with ThreadPoolExecutor(len(ASKS)) as pool:
        answers = pool.map(lambda ask: _undisturbed(addresses, ask), [ask for ask in ASKS if ask.repeatable])
        return {turn: answer for each in answers for turn, answer in each.items()}


def _undisturbed(addresses: list[str], ask: Ask) -> dict[tuple[str, int], Answer]:
    session_id, length, answers = f"undisturbed-{uuid4().hex}", 0, {}
    with Coordinators(addresses, insecure_channel_credentials(), (), lambda _, pause: None) as coordinators:
        for turn in range(TURNS):
            events = list(coordinators.answer(ask.request(session_id, length, 0), ANSWER_SECONDS))
            tokens = tuple(token for event in events for token in event.token_ids)
            length += len(ask.prompt) + len(tokens)
            answers[ask.name, turn] = Answer(tokens, "".join(event.text for event in events))
    return answers
