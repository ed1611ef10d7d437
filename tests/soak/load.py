"""Visitors at a steady, bounded rate: each comes, is answered, and goes in one of the ways in which clients go."""

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from enum import StrEnum
from itertools import count
from random import Random
from uuid import uuid4

from grpc.experimental import insecure_channel_credentials

from client.connection import Coordinators
from client.failures import RequestFailed
from specdec.v1 import generation_pb2 as v1
from tests.chaos.clients import ASKS, GAMMAS, Ask

VISITORS = 4
VISITS_PER_SECOND = 4.0
TOKENS = 12
ANSWER_SECONDS = 60.0
TURNS = 2


class Way(StrEnum):
    """How a visitor behaves."""

    EXPIRES = "had answers, left the session to expire"
    DELETES = "had answers, deleted the session"
    RECONNECTS = "left in mid-answer, took it up elsewhere"
    LEAVES = "left in mid-answer for good"
    REFUSED = "asked for what there is not"


WAYS = tuple(Way)


class Load:
    """The visitors.

    Attributes:
        visits: that came to their end as they should, by way.
        answers: had to their end.
        failures: what visitors met that they should not have, one line each.
    """

    def __init__(self, addresses: list[str], seed: int) -> None:
        """Let nobody come yet."""
        self.visits: Counter[Way] = Counter()
        self.answers = 0
        self.failures: list[str] = []
        self._addresses = addresses
        self._seed = seed
        self._turn = threading.Lock()
        self._numbers = count()
        self._next = 0.0
        self._ended = threading.Event()
        self._visitors = [threading.Thread(target=self._run) for _ in range(VISITORS)]

    def start(self) -> None:
        """Let them come."""
        self._next = time.monotonic()
        for visitor in self._visitors:
            visitor.start()

    def end(self) -> None:
        """Let nobody come any more and wait until all have gone."""
        self._ended.set()
        for visitor in self._visitors:
            visitor.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._turn:
                number = next(self._numbers)
                self._ended.wait(self._next - time.monotonic())
                # Who is late does not make the others hurry.
                self._next = max(time.monotonic(), self._next + 1 / VISITS_PER_SECOND)
            way, random = WAYS[number % len(WAYS)], Random(f"{self._seed} {number}")
            try:
                answers = self._visit(way, random)
            except (RequestFailed, AssertionError) as failure:
                self.failures.append(f"visit {number} ({way.name.lower()}): {failure!r}")
                continue
            with self._turn:
                self.visits[way] += 1
                self.answers += answers

    def _visit(self, way: Way, random: Random) -> int:
        """Make one visit and return how many answers were had to their end."""
        session_id, ask = f"soak-{uuid4().hex}", random.choice(ASKS)
        gamma, addresses = random.choice(GAMMAS), random.sample(self._addresses, len(self._addresses))
        with _connected(addresses) as coordinators:
            if way is Way.REFUSED:
                _expect_refusal(coordinators, _request(ask, session_id, 0, gamma))
                return 0
            if way is Way.LEAVES or way is Way.RECONNECTS:
                _leave(coordinators.answer(_request(ask, session_id, 0, gamma), ANSWER_SECONDS))
            else:
                for turn in range(TURNS):
                    length = turn * (len(ask.prompt) + TOKENS)
                    _have(coordinators.answer(_request(ask, session_id, length, gamma), ANSWER_SECONDS))
        if way is Way.RECONNECTS:
            with _connected(addresses[::-1]) as coordinators:
                resume = v1.GenerateRequest(session_id=session_id, resume_from=0)
                _have(coordinators.answer(resume, ANSWER_SECONDS))
            return 1
        if way is Way.DELETES:
            with _connected(addresses[::-1]) as coordinators:
                coordinators.delete(session_id)
        return 0 if way is Way.LEAVES else TURNS


def _connected(addresses: list[str]) -> Coordinators:
    """Connect as a command does: by connections of its own."""
    return Coordinators(addresses, insecure_channel_credentials(), (), lambda _, pause: None)


def _request(ask: Ask, session_id: str, length: int, gamma: int | None) -> v1.GenerateRequest:
    request = ask.request(session_id, length, gamma)
    request.sampling_params.max_new_tokens = TOKENS
    return request


def _leave(events: Generator[v1.GenerateResponse, None, None]) -> None:
    """Leave after the first event."""
    next(events)
    events.close()


def _have(events: Iterator[v1.GenerateResponse]) -> None:
    """Have an answer to its end."""
    tokens = sum(len(event.token_ids) for event in events)
    assert tokens == TOKENS, f"{tokens} tokens in place of {TOKENS}"


def _expect_refusal(coordinators: Coordinators, request: v1.GenerateRequest) -> None:
    request.sampling_params.temperature = -1
    try:
        _have(coordinators.answer(request, ANSWER_SECONDS))
    except RequestFailed as failure:
        if failure.field != "sampling_params.temperature":
            raise
    else:
        raise AssertionError("a negative temperature was taken")
