"""GenerationService: a request in, the events of an answer out."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from contextvars import Context
from typing import Any

from coordinator.answer import Answer
from coordinator.answer_span import describe_request, describe_usage
from coordinator.deadline import deadline_of, ending_before
from coordinator.doors import Doors
from coordinator.encoding import Encoding
from coordinator.experience import Experience
from coordinator.fleet import Fleet
from coordinator.gamma import Policy, may_share, policy_of
from coordinator.generation import Generation, Parties
from coordinator.metrics import Measurement, Metrics
from coordinator.model_clients import DraftClients, TargetClients
from coordinator.opening import open_session
from coordinator.requests import Served, check_request
from coordinator.responses import repeated_logprobs, to_response, to_session_response
from coordinator.rounds import Ending, Event
from coordinator.session import Session, TokenSource
from coordinator.session_store import SessionStore
from coordinator.settings import CoordinatorSettings
from coordinator.tasks import stop
from coordinator.text import TextStream
from specdec.errors import NotReady
from specdec.serving import names
from specdec.serving.telemetry import name_session, tracer
from specdec.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from specdec.wire import check_session_id

EVENTS_AHEAD = 4  # that a slow reader may leave waiting before the loop waits for it
DRAIN_SHARE = 0.8  # of the drain time is for answers to end by themselves


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Generates text."""

    def __init__(self, settings: CoordinatorSettings, fleet: Fleet, store: SessionStore, metrics: Metrics) -> None:
        """Serve the fleet's models with the store's sessions."""
        self._settings = settings
        self._fleet = fleet
        self._store = store
        self._metrics = metrics
        metrics.watch(fleet)
        self._doors = Doors(settings)
        self._draft = DraftClients(fleet.drafts)
        self._target = TargetClients(fleet.targets, patience=settings.peer_wait_seconds)
        self._encoding = Encoding()
        self._experience = Experience()
        renew_seconds, patience = settings.lease_seconds / 3, settings.peer_wait_seconds
        self._parties = Parties(self._draft, self._target, store, self._rest, renew_seconds, patience)
        self._generating: set[asyncio.Task[None]] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._draining = False

    async def Generate(  # noqa: N802
        self,
        request: generation_pb2.GenerateRequest,
        context: Any,
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Answer a prompt, continue a session, or resume an answer."""
        started = time.monotonic()
        caller = self._doors.admit(context)
        if self._draining:
            raise _draining()
        with self._doors.answering(caller, request.session_id) as spend:
            answering = self._generate(request, caller.principal, started, deadline_of(context))
            async with aclosing(answering) as responses:
                async for response in responses:
                    spend(len(response.token_ids))
                    yield response

    async def _generate(
        self, request: generation_pb2.GenerateRequest, principal: str, started: float, deadline: float | None
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        check_request(request)
        # The call's span tells of errors without their words, which may quote the input.
        opening = tracer().start_as_current_span(
            names.SPAN_SESSION_OPEN, record_exception=False, set_status_on_exception=False
        )
        with opening:
            async with ending_before(deadline):
                served = await self._fleet.served(self._settings.peer_wait_seconds)
                session = await open_session(request, principal, served, self._store, self._encoding)
        session.deadline = deadline
        name_session(session.session_id)
        describe_request(request, session, served)
        answer = _begin(session, served)
        texts = answer.take(session.answer)
        first = _missed(session, texts, request.resume_from) if request.HasField("resume_from") else None
        try:
            policy = self._policy(request, session)
            async with aclosing(self._events(session, answer, policy, first)) as events:
                measurement = Measurement(self._metrics, session, started)
                async for event in events:
                    measurement.observe(event)
                    yield to_response(session, event)
        finally:
            describe_usage(session, started)

    async def GetSession(  # noqa: N802
        self,
        request: generation_pb2.GetSessionRequest,
        context: Any,
    ) -> generation_pb2.GetSessionResponse:
        """Say what a session holds. Of one that another model has made, the text is not known here."""
        caller = self._doors.admit(context)
        session = await self._store.read(check_session_id(request.session_id), caller.principal)
        served = await self._fleet.served(self._settings.peer_wait_seconds)
        same = session.model_fingerprint == served.model.model_fingerprint
        texts = await asyncio.to_thread(_begin(session, served).take, session.answer) if same else []
        return to_session_response(session, "".join(texts))

    async def DeleteSession(  # noqa: N802
        self,
        request: generation_pb2.DeleteSessionRequest,
        context: Any,
    ) -> generation_pb2.DeleteSessionResponse:
        """End a session and free what it holds everywhere."""
        caller = self._doors.admit(context)
        session = await self._store.delete(check_session_id(request.session_id), caller.principal)
        await asyncio.gather(self._draft.free(session), self._target.free(session))
        return generation_pb2.DeleteSessionResponse()

    async def GetModelInfo(  # noqa: N802
        self,
        request: common_pb2.GetModelInfoRequest,  # noqa: ARG002
        context: Any,
    ) -> common_pb2.GetModelInfoResponse:
        """Say which models answer."""
        self._doors.admit(context)
        served = await self._fleet.served(0)
        return common_pb2.GetModelInfoResponse(model=served.model, draft=self._fleet.draft_model())

    async def drain(self) -> None:
        """Refuse new answers, let running ones end, and hand over what is left: another coordinator resumes it."""
        self._draining = True
        if self._generating:
            await asyncio.wait(self._generating, timeout=self._settings.drain_seconds * DRAIN_SHARE)
        await stop(*self._generating)
        await asyncio.gather(*self._releasing)

    def _policy(self, request: generation_pb2.GenerateRequest, session: Session) -> Policy:
        """Return the policy of an answer, which learns together with others if it may."""
        fresh_seed = session.fence.counter == 1 and not request.sampling_params.HasField("seed")
        shared = may_share(session.params, session.speculation.verification, fresh_seed=fresh_seed)
        return policy_of(session.speculation.gamma, self._experience, shared=shared)

    async def _events(
        self, session: Session, answer: Answer, policy: Policy, first: Event | None
    ) -> AsyncGenerator[Event, None]:
        """Give what a resuming client has missed, then generate the rest.

        The generation is a task of its own; when the reader leaves, it is cancelled and has given its claim up.
        """
        if first is not None and first.ending is not None:
            yield first
            return
        waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        room = asyncio.Semaphore(EVENTS_AHEAD)

        async def show(event: Event) -> None:
            await room.acquire()
            waiting.put_nowait(event)

        generating = self._start(session, answer, policy, show)
        generating.add_done_callback(lambda _: waiting.put_nowait(None))
        try:
            if first is not None and first.token_ids:
                yield first
            while (event := await waiting.get()) is not None:
                yield event
                room.release()
                if event.ending is not None:
                    await asyncio.wait((generating,))  # however it ends: no error follows a whole answer
                    return
            if self._draining and generating.cancelled():
                raise _draining()
            await generating
        finally:
            await stop(generating)

    def _start(self, session: Session, answer: Answer, policy: Policy, show: Any) -> asyncio.Task[None]:
        generation = Generation(session, answer, self._parties, policy, self._settings.max_gamma)

        async def generate() -> None:
            with self._metrics.running.track_inprogress():
                try:
                    async with ending_before(session.deadline):
                        await generation.run(show)
                finally:
                    self._start_release(session)

        task = asyncio.create_task(generate())
        self._generating.add(task)
        task.add_done_callback(self._generating.discard)
        return task

    def _start_release(self, session: Session) -> None:
        """Let the caches go, off the way of the answer and of its trace."""
        task = asyncio.create_task(self._rest(session), context=Context())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _rest(self, session: Session) -> None:
        """Let the caches go, kept warm until a newcomer needs the room. No call of the session may be running."""
        self._draft.forget(session)
        self._target.forget(session)
        await asyncio.gather(
            self._draft.release(session, keep_length=session.length),
            self._target.release(session, keep_length=session.length),
        )


def _begin(session: Session, served: Served) -> Answer:
    """Return the session's answer before its first token."""
    params, model = session.params, served.model
    return Answer(
        TextStream(served.tokenizer.detokenizer(), params.stop),
        stop_ids={*params.stop_token_ids, *(() if params.ignore_eos else model.eos_token_ids)},
        limit=min(params.max_new_tokens, model.context_length - session.prompt_length),
        token_text=served.tokenizer.token_text,
    )


def _missed(session: Session, texts: list[str], index: int) -> Event:
    """Return what a resuming client lacks: tokens committed since, and the ending when there is one."""
    tokens = session.answer[index:]
    ending = None
    if session.finish_reason is not None:
        ending = Ending(session.finish_reason, session.matched_stop, session.usage, session.length)
    return Event(
        index=index,
        token_ids=tokens,
        texts=texts[index:],
        sources=[TokenSource(source) for source in session.sources[session.prompt_length + index :]],
        logprobs=repeated_logprobs(tokens) if session.params.logprobs is not None else (),
        ending=ending,
    )


def _draining() -> NotReady:
    return NotReady("the coordinator is draining; resume elsewhere", retry_seconds=0.1)
