"""The calls of a round: Propose and Verify, each on a replica that has the session's cache warm.

A call says which committed tokens it stands on, from the length that the replica has last acknowledged; a replica that
does not hold them is asked again from 0. A replica that is away is left for the next one. A draft that fails means a
round without draft tokens; a target that is away is waited for.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from coordinator.acknowledged import Acknowledged
from coordinator.gamma import within_draft
from coordinator.replicas import Replica, Replicas
from coordinator.rounds import Drafted, Fallback, Verdict
from coordinator.session import Session
from specdec.errors import CacheFull, NotReady, PeerUnavailable, PrefixMissing, QueueFull, SpecdecError, StaleFence
from specdec.serving.calls import call
from specdec.v1 import common_pb2, draft_pb2, target_pb2
from specdec.wire import fence_to_message, params_to_message, verification_to_message

RELEASE_TIMEOUT_SECONDS = 5.0
MAX_PROPOSAL_BYTES = 2**20  # 64 draft tokens with distributions of 1024 entries take 0.6 MiB
ATTEMPTS = 5  # of a call to the target, each on a replica that said it is there
_AWAY = (PeerUnavailable, NotReady)

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

MakeRequest = Callable[[common_pb2.CommittedPrefix], Any]


class _Clients:
    """What both kinds of client do: keep to a warm replica, send what is missing, release."""

    def __init__(self, replicas: Replicas, method: str, timeout: float) -> None:
        self._replicas = replicas
        self._method = method
        self._timeout = timeout
        self._acknowledged: dict[str, Acknowledged] = {}  # by session id

    async def release(self, session: Session, *, keep_length: int) -> None:
        """Give the session's cache up where it is warm, but for its first tokens."""
        address = session.replicas.get(self._replicas.service)
        warm = [replica for replica in self._replicas.usable() if replica.address == address]
        await self._release_on(warm, session, keep_length)

    async def free(self, session: Session) -> None:
        """Free the session's cache wherever it may be: a round that runs may not have been committed."""
        await self._release_on(self._replicas.usable(), session, 0)

    async def _release_on(self, replicas: Sequence[Replica], session: Session, keep_length: int) -> None:
        self.forget(session)
        fence = fence_to_message(session.fence)
        request = common_pb2.ReleaseRequest(session_id=session.session_id, fence=fence, keep_length=keep_length)
        for replica in replicas:
            try:
                await self._call(replica, "Release", request, RELEASE_TIMEOUT_SECONDS)
            except SpecdecError as error:  # it is away, or another has claimed the session: nothing to give
                logger.debug("not released", session=session.session_id, why=error.message)

    def forget(self, session: Session) -> None:
        """Forget what a replica holds; the next answer asks again."""
        self._acknowledged.pop(session.session_id, None)

    def _candidates(self, session: Session) -> list[Replica]:
        """Return the usable replicas: the session's own first, then those with few sessions."""
        usable = [replica for replica in self._replicas.usable() if self._fits(replica, session)]
        loads = [acknowledged.address for acknowledged in self._acknowledged.values()]
        warm = session.replicas.get(self._replicas.service)
        return sorted(usable, key=lambda replica: (replica.address != warm, loads.count(replica.address)))

    def _fits(self, replica: Replica, session: Session) -> bool:  # noqa: ARG002
        """Whether the replica may serve the session."""
        return True

    async def _ask(self, replica: Replica, session: Session, make_request: MakeRequest) -> Any:
        """Ask a replica, once more from 0 when it does not hold what it is thought to hold."""
        held = self._acknowledged.get(session.session_id)
        if held is None or held.address != replica.address:
            held = Acknowledged(replica.address)
        session.replicas[self._replicas.service] = replica.address  # from now on it may hold something to release
        try:
            response = await self._send(replica, make_request(held.prefix(session)))
        except PrefixMissing:
            held = Acknowledged(replica.address)
            response = await self._send(replica, make_request(held.prefix(session)))
        held.cached_length = response.cached_length
        self._acknowledged[session.session_id] = held
        return response

    async def _send(self, replica: Replica, request: Any) -> Any:
        try:
            return await self._call(replica, self._method, request, self._timeout)
        except _AWAY:
            self._replicas.lost(replica)
            raise

    async def _call(self, replica: Replica, method: str, request: Any, timeout: float) -> Any:
        path = f"{self._replicas.path}/{method}"
        return await call(getattr(replica.stub, method), path, request, timeout=timeout, address=replica.address)


class DraftClients(_Clients):
    """Proposes through the draft service. Whatever happens to a draft, there is an outcome."""

    def __init__(self, replicas: Replicas, *, timeout: float) -> None:
        """Serve proposals.

        Args:
            replicas: of the draft service.
            timeout: seconds after which only a failure explains a draft's silence. It must not be so tight that a
                slow proposal is dropped: whether a proposal counts may not depend on its tokens.
        """
        super().__init__(replicas, "Propose", timeout)

    async def propose(self, session: Session, gamma: int) -> Drafted:
        """Ask for gamma draft tokens, at least 1.

        Returns:
            As many of them as the draft's context has room for, fewer where it knows no more, or none and why.

        Raises:
            StaleFence: the draft has seen a higher claim on the session.
        """
        started = time.monotonic()
        for replica in self._candidates(session):
            model = replica.model or common_pb2.ModelInfo()
            within = within_draft(gamma, session.length, model.context_length, model.max_gamma)
            if within == 0:
                return Drafted(fallback=Fallback.DRAFT_CONTEXT)
            try:
                response = await self._ask(replica, session, _propose_request(session, within))
            except _AWAY:
                continue
            except StaleFence:
                raise
            except SpecdecError as error:
                return self._failed(session, error, time.monotonic() - started)
            least = 0 if replica.has_no_vocabulary else within
            return _drafted(response, range(least, within + 1), time.monotonic() - started)
        return Drafted(fallback=Fallback.DRAFT_UNAVAILABLE, seconds=time.monotonic() - started)

    def _failed(self, session: Session, error: SpecdecError, seconds: float) -> Drafted:
        self.forget(session)
        full = isinstance(error, CacheFull | QueueFull)
        log = logger.debug if full else logger.warning
        log("no proposal", session=session.session_id, reason=error.reason, why=error.message)
        return Drafted(fallback=Fallback.DRAFT_OVERLOADED if full else Fallback.DRAFT_UNAVAILABLE, seconds=seconds)


class TargetClients(_Clients):
    """Verifies through the target service."""

    def __init__(self, replicas: Replicas, *, timeout: float, patience: float) -> None:
        """Serve verdicts.

        Args:
            replicas: of the target service.
            timeout: seconds after which a replica counts as away.
            patience: seconds to wait for a replica when all are away.
        """
        super().__init__(replicas, "Verify", timeout)
        self._patience = patience

    @property
    def max_gamma(self) -> int:
        """Draft tokens that every replica in use takes; their settings may differ, and change with a restart."""
        return min((replica.model.max_gamma for replica in self._replicas.usable() if replica.model), default=0)

    async def verify(self, session: Session, proposal: common_pb2.Proposal | None) -> Verdict:
        """Have a proposal verified; None is the empty one.

        Raises:
            PeerUnavailable: no target answers.
            SpecdecError: what the target raised.
        """
        started = time.monotonic()
        make_request = _verify_request(session, proposal)
        for _ in range(ATTEMPTS):
            replica = await self._await_replica(session)
            try:
                response = await self._ask(replica, session, make_request)
            except _AWAY as error:
                logger.warning("verify failed", session=session.session_id, address=replica.address, why=error.message)
            except SpecdecError:
                self.forget(session)
                raise
            else:
                return _verdict(response, proposal, time.monotonic() - started)
        raise _no_target()

    async def _await_replica(self, session: Session) -> Replica:
        try:
            await self._replicas.wait_for(lambda: self._candidates(session), self._patience)
        except TimeoutError as error:
            raise _no_target() from error
        return self._candidates(session)[0]

    def _fits(self, replica: Replica, session: Session) -> bool:
        """Whether it serves the model that the session was begun with."""
        return replica.model is not None and replica.model.model_fingerprint == session.model_fingerprint


def _no_target() -> PeerUnavailable:
    return PeerUnavailable("no target answers", retry_seconds=1.0)


def _propose_request(session: Session, gamma: int) -> MakeRequest:
    return lambda prefix: draft_pb2.ProposeRequest(
        prefix=prefix,
        sampling_params=params_to_message(session.params),
        gamma=gamma,
        verification=verification_to_message(session.speculation.verification),
    )


def _verify_request(session: Session, proposal: common_pb2.Proposal | None) -> MakeRequest:
    return lambda prefix: target_pb2.VerifyRequest(
        prefix=prefix,
        sampling_params=params_to_message(session.params),
        verification=verification_to_message(session.speculation.verification),
        proposal=proposal,
    )


def _drafted(response: draft_pb2.ProposeResponse, gammas: range, seconds: float) -> Drafted:
    tokens = list(response.proposal.draft_tokens)
    if response.proposal.ByteSize() > MAX_PROPOSAL_BYTES:  # it would not fit into a call to the target
        return Drafted(fallback=Fallback.INVALID_PROPOSAL, seconds=seconds, timings=response.timings)
    # A model was asked for what its context has room for; fewer may have been chosen by what they are.
    if len(tokens) not in gammas:
        return Drafted(fallback=Fallback.INVALID_PROPOSAL, seconds=seconds, timings=response.timings)
    return Drafted(
        tokens,
        response.proposal,
        asked=gammas[-1],
        reused_length=response.reused_length,
        seconds=seconds,
        timings=response.timings,
    )


def _verdict(response: target_pb2.VerifyResponse, proposal: common_pb2.Proposal | None, seconds: float) -> Verdict:
    gamma = len(proposal.draft_tokens) if proposal else 0
    if not response.HasField("next_token") or response.accept_index > gamma:
        raise SpecdecError("the target's verdict is malformed")
    return Verdict(
        accept_index=response.accept_index,
        next_token=response.next_token,
        reused_length=response.reused_length,
        logprobs=list(response.logprobs),
        residual_zero=response.residual_zero,
        seconds=seconds,
        timings=response.timings,
    )
