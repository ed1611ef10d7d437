"""The loop of an answer: propose, verify, cut, commit, show. Knows neither gRPC nor Redis.

The commit of a round overlaps the whole of the next round; at most one round is uncommitted, none starts after a
finish, and nothing is shown that is not committed. A reader that does not read holds the loop up; others may have the
room of its caches meanwhile.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from opentelemetry import trace
from opentelemetry.trace import Span

from coordinator.answer import Answer
from coordinator.gamma import Policy, within_answer
from coordinator.rounds import Drafted, Ending, Event, Fallback, Round, Verdict, count
from coordinator.session import Session
from coordinator.tasks import Result, overlapped, stop
from specdec.errors import InvalidProposal, PeerUnavailable, StaleFence
from specdec.serving import names
from specdec.serving.telemetry import tracer

COMMIT_AGAIN_SECONDS = 0.2
UNREAD_SECONDS = 5.0  # longer than a network stutters, and shorter than newcomers that are refused are patient

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

Show = Callable[[Event], Awaitable[None]]
Rest = Callable[[Session], Awaitable[None]]


class Draft(Protocol):
    """Who proposes."""

    async def propose(self, session: Session, gamma: int, min_survival: Sequence[float]) -> Drafted:
        """Return gamma draft tokens, or fewer or none and the reason; only a stale claim is raised."""


class Target(Protocol):
    """Who verifies."""

    @property
    def max_gamma(self) -> int:
        """Draft tokens that it takes at most, whichever replica answers."""

    async def verify(self, session: Session, proposal: Any) -> Verdict:
        """Return the verdict on a proposal, None being the empty one."""


class Store(Protocol):
    """Who keeps what is committed; ``coordinator.session_store`` says what each method promises."""

    async def commit(self, session: Session) -> None: ...  # noqa: D102
    async def renew(self, session: Session) -> None: ...  # noqa: D102
    async def leave(self, session: Session) -> None: ...  # noqa: D102
    async def resume(self, session_id: str, principal: str, owner: str, *, above: int) -> Session: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Parties:
    """Who takes part in a generation.

    Attributes:
        draft: proposes.
        target: verifies.
        store: commits.
        rest: lets a session's caches go while no call is running; the next one makes them again where need be.
        renew_seconds: how often the lease is renewed beside the commits.
        patience: seconds in which a commit is tried again while the store is away.
    """

    draft: Draft
    target: Target
    store: Store
    rest: Rest
    renew_seconds: float
    patience: float


class Generation:
    """Generates the rest of one answer."""

    def __init__(self, session: Session, answer: Answer, parties: Parties, policy: Policy, max_gamma: int) -> None:
        """Prepare.

        Args:
            session: claimed and stored; grows with every round.
            answer: has taken every token that the session's answer already holds.
            parties: who takes part.
            policy: how many draft tokens to ask for.
            max_gamma: draft tokens a round may have at most.
        """
        self._session = session
        self._answer = answer
        self._parties = parties
        self._policy = policy
        self._max_gamma = max_gamma
        self._first_round = session.usage.rounds
        self._distrusted = False
        self._shown = asyncio.Event()
        self._span: Span = trace.INVALID_SPAN  # of the last round
        self._claiming = asyncio.Lock()  # of the lease: it is not renewed under a claim that we are raising

    async def run(self, show: Show) -> None:
        """Generate to the end. When it fails or is cancelled the claim on the session is given up.

        Args:
            show: is awaited with every event once its tokens are committed.

        Raises:
            SpecdecError: the target or the store failed; the answer has no ending then.
        """
        working = asyncio.create_task(self._work(show))
        leasing = asyncio.create_task(self._keep_lease())
        try:
            await asyncio.wait({working, leasing}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await leasing  # raises when the claim is lost
            await working
        except BaseException:
            try:
                await stop(working, leasing)
            finally:  # cancelled once more, too: the client leaves in the moment of its deadline, or of a drain
                await self._parties.store.leave(self._session)
            raise
        finally:
            self._policy.close()
            if self._span.is_recording():  # of a round that nobody commits any more
                self._span.end()
            await stop(working, leasing)

    async def _work(self, show: Show) -> None:
        if self._answer.finish_reason is None:
            committing = self._conclude(*await self._round(), show)
        else:  # the tokens that were resumed end it already
            committing = self._commit_and_show(self._event((), (), None), trace.INVALID_SPAN, show)
        while self._answer.finish_reason is None:
            committing = self._conclude(*await overlapped(committing, self._round_ahead()), show)
        await overlapped(committing, self._rest_while_unread())

    def _conclude(self, round_: Round, span: Span, show: Show) -> Coroutine[Any, Any, None]:
        """Apply a round; what is returned commits and shows it."""
        self._shown.clear()
        return self._commit_and_show(self._apply(round_, span), span, show)

    async def _round_ahead(self) -> tuple[Round, Span]:
        """Make a round while the last one is committed and shown."""
        made = await self._round()
        await self._rest_while_unread()
        return made

    async def _rest_while_unread(self) -> None:
        """Let the caches go if the answer is kept waiting. Text, claim and lease stay."""
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await self._shown.wait()
        except TimeoutError:
            await self._parties.rest(self._session)

    async def _round(self) -> tuple[Round, Span]:
        """Propose and verify. The span is ended by the commit, or with the generation when there is none."""
        number, base_length = self._session.usage.rounds, self._session.length
        attributes = {names.ROUND: number, names.BASE_LENGTH: base_length}
        span = self._span = tracer().start_span(names.SPAN_ROUND, attributes=attributes)
        with trace.use_span(span):
            most = min(self._max_gamma, self._parties.target.max_gamma)
            gamma = within_answer(self._policy.choose(most, base_length), self._answer.remaining)
            drafted, verdict = await self._verify(await self._propose(gamma))
        round_ = Round(number, base_length, drafted, verdict)
        self._policy.observe(round_)
        return round_, span

    async def _propose(self, gamma: int) -> Drafted:
        """Ask the draft, unless a proposal of it was refused: to use only those that pass would bias the law."""
        if not gamma:
            return Drafted()
        if self._distrusted:
            return Drafted(fallback=Fallback.INVALID_PROPOSAL)
        try:
            draft, bounds = self._parties.draft, self._policy.min_survival
            drafted = await self._claimed(lambda: draft.propose(self._session, gamma, bounds))
        except StaleFence:  # whether the claim is lost, the store says at the commit
            return Drafted(fallback=Fallback.DRAFT_UNAVAILABLE)
        self._distrusted = drafted.fallback is Fallback.INVALID_PROPOSAL
        return drafted

    async def _verify(self, drafted: Drafted) -> tuple[Drafted, Verdict]:
        """Verify a proposal; the empty one instead when the target says that it was not drawn as it says."""
        target = self._parties.target
        try:
            return drafted, await self._claimed(lambda: target.verify(self._session, drafted.proposal))
        except InvalidProposal as error:
            if not drafted.gamma:
                raise
            logger.warning("the target refused a proposal", session=self._session.session_id, why=error.message)
            self._distrusted = True
            refused = replace(drafted, draft_tokens=(), proposal=None, fallback=Fallback.INVALID_PROPOSAL)
            return refused, await target.verify(self._session, None)

    async def _claimed(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask a model server under our claim. If the store has come back older, it is told how high claims were."""
        try:
            return await ask()
        except StaleFence as error:
            if self._session.usage.rounds != self._first_round:
                raise
            await self._reclaim(int(error.metadata["counter"]))
            return await ask()

    async def _reclaim(self, seen: int) -> None:
        session, store = self._session, self._parties.store
        async with self._claiming:
            await store.renew(session)  # fails when somebody else has the claim: then the model server is right
            claimed = await store.resume(session.session_id, session.principal, secrets.token_hex(16), above=seen)
            session.fence = claimed.fence

    def _apply(self, round_: Round, span: Span) -> Event:
        """Add what a round commits to the session, up to the token that ends the answer."""
        texts = self._answer.take(round_.block)
        tokens, sources = round_.block[: len(texts)], round_.sources[: len(texts)]
        self._session.tokens += tokens
        self._session.sources += bytes(sources)
        count(self._session, round_, len(tokens))
        span.set_attributes(
            {
                names.GAMMA: round_.drafted.gamma,
                names.ACCEPT_INDEX: round_.verdict.accept_index,
                names.SOURCES: [source.name for source in sources],
                names.FALLBACK: round_.drafted.fallback.name if round_.drafted.fallback else "",
            }
        )
        return self._event(tokens, texts, round_)

    def _event(self, tokens: Sequence[int], texts: Sequence[str], round_: Round | None) -> Event:
        return Event(
            index=self._answer.length - len(tokens),
            token_ids=tokens,
            texts=texts,
            sources=round_.sources[: len(tokens)] if round_ else (),
            logprobs=round_.verdict.logprobs[: len(tokens)] if round_ else (),
            round=round_,
            ending=self._ending(),
        )

    def _ending(self) -> Ending | None:
        session, answer = self._session, self._answer
        if answer.finish_reason is None:
            return None
        session.finish_reason, session.matched_stop = answer.finish_reason, answer.matched_stop
        return Ending(answer.finish_reason, answer.matched_stop, session.usage, session.length)

    async def _commit_and_show(self, event: Event, span: Span, show: Show) -> None:
        began = time.monotonic()
        with trace.use_span(span, end_on_exit=True), tracer().start_as_current_span(names.SPAN_COMMIT):
            await self._commit()
        await show(replace(event, commit_seconds=time.monotonic() - began))
        self._shown.set()

    async def _commit(self) -> None:
        """Commit, again and again for a while when the store is away: what is to be shown is held meanwhile."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._parties.patience
        while True:
            began = clock()
            try:
                await self._parties.store.commit(self._session)
            except PeerUnavailable as error:
                lasted = clock() - began  # as another try may
                if clock() + lasted >= until:
                    raise
                logger.warning("not committed yet", session=self._session.session_id, why=error.message)
                await asyncio.sleep(COMMIT_AGAIN_SECONDS)
            else:
                return

    async def _keep_lease(self) -> None:
        while self._session.finish_reason is None:
            await asyncio.sleep(self._parties.renew_seconds)
            try:
                async with self._claiming:
                    await self._parties.store.renew(self._session)
            except PeerUnavailable as error:  # the commits find out whether it stays away
                logger.warning("the lease could not be renewed", session=self._session.session_id, why=error.message)
