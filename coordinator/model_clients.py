"""The calls of a round: Propose and Verify, each on a replica that has the session's cache warm.

A replica that is away or full is left for the next one. A draft that fails means a round without draft tokens; a target
that is away is waited for.
"""

import time
from collections.abc import Collection, Iterator, Sequence

import structlog

from coordinator.gamma import within_draft
from coordinator.replica import Replica
from coordinator.replicas import Replicas
from coordinator.rounds import Drafted, Fallback, Verdict, worked_seconds
from coordinator.session import Session
from coordinator.session_clients import AWAY, FULL, MakeRequest, SessionClients
from specdec.errors import PeerUnavailable, SpecdecError, StaleFence
from specdec.v1 import common_pb2, draft_pb2, target_pb2
from specdec.wire import params_to_message, verification_to_message

MAX_PROPOSAL_BYTES = 2**20  # 64 draft tokens with distributions of 1024 entries take 0.6 MiB
ATTEMPTS = 5  # of a call to the target, each on a replica that said it is there

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class DraftClients(SessionClients):
    """Proposes through the draft service. Whatever happens to a draft, there is an outcome."""

    def __init__(self, replicas: Replicas) -> None:
        """Serve proposals of the draft service."""
        super().__init__(replicas, "ProposeStream")

    async def propose(self, session: Session, gamma: int, min_survival: Sequence[float]) -> Drafted:
        """Ask for gamma draft tokens, at least 1.

        Args:
            session: to propose for.
            gamma: draft tokens wanted.
            min_survival: how likely they must be to stand; see ``ProposeRequest``.

        Returns:
            As many of them as the draft's context has room for and as are worth it, fewer where it knows no more, or
            none and why.

        Raises:
            StaleFence: the draft has seen a higher claim on the session.
        """
        started, fallback = time.monotonic(), Fallback.DRAFT_UNAVAILABLE
        for replica in self._candidates(session):
            model = replica.model or common_pb2.ModelInfo()
            within = within_draft(gamma, session.length, model.context_length, model.max_gamma)
            if within == 0:
                return Drafted(fallback=Fallback.DRAFT_CONTEXT)
            try:
                response = await self._ask(replica, session, _propose_request(session, within, min_survival))
            except AWAY:
                continue
            except FULL as error:
                logger.debug("no proposal", session=session.session_id, why=error.message)
                await self._leave(replica, session)
                fallback = Fallback.DRAFT_OVERLOADED
                continue
            except StaleFence:
                raise
            except SpecdecError as error:
                self._failed(session, replica, error)
                continue
            least = 0 if replica.has_no_vocabulary else 1 if min_survival else within
            return _drafted(response, range(least, within + 1), time.monotonic() - started)
        return Drafted(fallback=fallback, seconds=time.monotonic() - started)

    def _failed(self, session: Session, replica: Replica, error: SpecdecError) -> None:
        self.forget(session)
        logger.warning("no proposal", session=session.session_id, reason=error.reason, why=error.message)
        if type(error) is SpecdecError:  # no refusal of this session's call: it is broken for all
            self._replicas.lost(replica, error.message)


class TargetClients(SessionClients):
    """Verifies through the target service."""

    def __init__(self, replicas: Replicas, *, patience: float) -> None:
        """Serve verdicts.

        Args:
            replicas: of the target service.
            patience: seconds to wait for a replica when all are away.
        """
        super().__init__(replicas, "VerifyStream")
        self._patience = patience

    @property
    def max_gamma(self) -> int:
        """Draft tokens that every replica in use takes; their settings may differ, and change with a restart."""
        return min((replica.model.max_gamma for replica in self._replicas.usable() if replica.model), default=0)

    async def verify(self, session: Session, proposal: common_pb2.Proposal | None) -> Verdict:
        """Have a proposal verified; None is the empty one.

        Raises:
            PeerUnavailable: no target answers.
            CacheFull, QueueFull: none that does has room.
            SpecdecError: what the target raised.
        """
        started, full = time.monotonic(), set[str]()
        problem: SpecdecError = _no_target()
        make_request = _verify_request(session, proposal)
        for _ in range(ATTEMPTS):
            replica = await self._await_replica(session, full)
            try:
                response = await self._ask(replica, session, make_request)
            except AWAY as error:
                logger.warning("verify failed", session=session.session_id, address=replica.address, why=error.message)
            except FULL as error:
                await self._leave(replica, session)
                full.add(replica.address)
                problem = error
                if not any(self._free(session, full)):
                    break
            except SpecdecError as error:
                self.forget(session)
                if type(error) is SpecdecError:
                    self._replicas.failed(replica, error.message)
                raise
            else:
                return _verdict(response, proposal, time.monotonic() - started)
        raise problem

    async def _await_replica(self, session: Session, full: Collection[str]) -> Replica:
        if replica := next(self._free(session, full), None):
            return replica
        try:
            await self._replicas.wait_for(lambda: any(self._free(session, full)), self._patience)
        except TimeoutError as error:
            raise _no_target() from error
        return next(self._free(session, full))

    def _free(self, session: Session, full: Collection[str]) -> Iterator[Replica]:
        """Give the candidates that have not said that they are full."""
        return (replica for replica in self._candidates(session) if replica.address not in full)

    def _fits(self, replica: Replica, session: Session) -> bool:
        """Whether it serves the model that the session was begun with."""
        return replica.model is not None and replica.model.model_fingerprint == session.model_fingerprint


def _no_target() -> PeerUnavailable:
    return PeerUnavailable("no target answers", retry_seconds=1.0)


def _propose_request(session: Session, gamma: int, min_survival: Sequence[float]) -> MakeRequest:
    return lambda prefix: draft_pb2.ProposeRequest(
        prefix=prefix,
        sampling_params=params_to_message(session.params),
        gamma=gamma,
        verification=verification_to_message(session.speculation.verification),
        min_survival=min_survival,
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
    # A model was asked for what its context has room for; fewer than asked for may have been chosen by what they are.
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
        pass_seconds=worked_seconds(response.timings),
        pass_tokens=max(response.timings.pass_tokens, 1 + gamma),
        timings=response.timings,
    )
