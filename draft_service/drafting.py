"""Drafting: draws draft tokens one forward pass at a time, for every session of the batch at once.

Knows no gRPC. The engine calls ``Draft.begin`` once and ``draw`` after each pass; a draft token is drawn from exactly
the distribution that is sent (cut to the support size, renormalised, float32), with the draw of its round and position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
import torch

from draft_service.ahead import Ranking
from draft_service.survival import Stop, model_grade
from specdec.draws import Purpose, gumbel_noise, uniform
from specdec.errors import InvalidParameter
from specdec.model.work import Done, Feed, Outcome
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import Proposal, SparseDistribution
from specdec.sampling import (
    RowContext,
    coupled_choice,
    coupled_likelihoods,
    distributions,
    greedy_likelihoods,
    inverse_cdf,
    sparse_distributions,
)

GUESS = 0  # a token id that every vocabulary has

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What the draft model allows.

    Attributes:
        vocabulary_size: real size.
        context_length: tokens a cache may hold.
        support_size: entries of a sent distribution at most (k).
        end_token_ids: the model's end-of-sequence tokens.
    """

    vocabulary_size: int
    context_length: int
    support_size: int
    end_token_ids: tuple[int, ...]


@dataclass(slots=True)
class Draft:
    """One Propose call.

    Attributes:
        prefix: the committed tokens to continue.
        params: resolved sampling parameters, the target's too.
        gamma: draft tokens wanted.
        verification: which randomness the tokens are drawn with.
        limits: of the model.
        stop: where the proposal ends before it is full.
        rankings: of each place with a draft token, what was likely there; kept where ``ranked`` says so.
        guessed: a row was not finite or a pass failed, and a token is a guess.
    """

    prefix: CommittedPrefix
    params: SamplingParams
    gamma: int
    verification: Verification
    limits: DraftLimits
    stop: Stop = field(default_factory=Stop)
    committed: Sequence[int] = ()
    draft_tokens: list[int] = field(default_factory=list)
    draft_distributions: list[SparseDistribution] = field(default_factory=list)
    rankings: list[Ranking] = field(default_factory=list)
    guessed: bool = False

    def begin(self, committed: list[int]) -> Feed | Done:
        """Ask for the logits that follow the committed tokens."""
        self.start(committed)
        return Feed([], 1)

    def start(self, committed: list[int]) -> None:
        """Take the committed tokens in.

        Raises:
            InvalidParameter: the parameters or the length are not for this model.
        """
        self.params.check_vocabulary(self.limits.vocabulary_size, self.limits.end_token_ids)
        if len(committed) > self.limits.context_length:
            raise InvalidParameter(f"longer than the context of {self.limits.context_length}", field="prefix.tokens")
        self.committed = committed
        # The last draft token is never fed, so the context may end one before it.
        self.gamma = min(self.gamma, self.limits.context_length - len(committed) + 1)

    @property
    def reach(self) -> int:
        """Tokens that may be fed after the committed ones: all draft tokens but the last."""
        return max(self.gamma - 1, 0)

    @property
    def ranked(self) -> int:
        """How many likely tokens are to be remembered of each place."""
        return 0

    @property
    def graded(self) -> bool:
        """Whether it matters how likely draft tokens are to stand."""
        return bool(self.stop.bounds)

    @property
    def row(self) -> RowContext:
        """What the next draft token stands on."""
        return RowContext(
            self.params, self.committed, self.prefix.prompt_length, self.draft_tokens, self.limits.end_token_ids
        )

    @property
    def position(self) -> int:
        """Position of the next draft token."""
        return len(self.committed) + len(self.draft_tokens)

    def take(self, token: int, token_ids: Sequence[int], probabilities: Sequence[float]) -> Feed | Done:
        """Add a drawn token; ask for the next or end the proposal."""
        if self.gamma > 0:
            size = len(probabilities) - probabilities.count(0.0)
            self.add(token, SparseDistribution(tuple(token_ids[:size]), tuple(probabilities[:size])))
        return self.done() if self.ended else Feed([token], 1)

    @property
    def full(self) -> bool:
        """Whether there are as many draft tokens as wanted."""
        return len(self.draft_tokens) >= self.gamma

    @property
    def ended(self) -> bool:
        """Whether there are as many draft tokens as wanted, or as are worth it."""
        return self.full or self.stop.over

    def add(self, token: int, drawn_from: SparseDistribution) -> None:
        """Add a draft token."""
        self.draft_tokens.append(token)
        if self.verification is not Verification.COUPLED:
            self.draft_distributions.append(drawn_from)

    def done(self) -> Done:
        """End the proposal with the draft tokens there are."""
        proposal = Proposal(tuple(self.draft_tokens), tuple(self.draft_distributions))
        base_length = len(self.committed)
        # What gave numbers that are not finite is not continued: the next call feeds everything anew.
        keep = 0 if self.guessed else base_length + self.reach
        return Done(proposal, keep=keep, committed=base_length)

    def guess(self) -> Feed | Done:
        """Propose any token with certainty where the logits are not finite.

        To fail or to stop here would make the use of the proposal depend on the tokens that led here, which is a bias;
        a token proposed with certainty is exact, whichever it is.
        """
        if not self.guessed:
            logger.warning("the draft's distribution is not finite", session=self.prefix.session_id)
        self.guessed = True
        if self.graded and self.gamma > 0:
            self.stop.add(model_grade(0.0))
        return self.take(GUESS, (GUESS,), (1.0,))

    def cut_short(self) -> Done | None:
        """End a proposal whose pass has failed with guesses in the place of what is missing.

        Its tokens may have decided how many passes it needs, so to fail now would make its use depend on them. Before
        the first token nothing does.
        """
        if not self.draft_tokens:
            return None
        self.guessed = True
        while not self.full:
            self.add(GUESS, SparseDistribution((GUESS,), (1.0,)))
        return self.done()


def draw(ready: Sequence[tuple[Draft, torch.Tensor]]) -> list[Outcome]:
    """Draw the next draft token of every session in the batch, with one device-to-host copy.

    Args:
        ready: drafts with their [1, vocabulary] logits.

    Returns:
        One outcome a draft.
    """
    drafts = [draft for draft, _ in ready]
    logits = torch.cat([logits for _, logits in ready])
    probabilities = distributions(logits, [draft.row for draft in drafts])
    support_size = max(draft.limits.support_size for draft in drafts)
    token_ids, q = sparse_distributions(probabilities, support_size)
    tokens = token_ids.gather(1, inverse_cdf(q.double(), _draft_draws(drafts, q.device))[:, None])
    coupled = [index for index, draft in enumerate(drafts) if draft.verification is Verification.COUPLED]
    noise = _noise([drafts[index] for index in coupled], probabilities)
    if coupled:
        tokens[coupled, 0] = coupled_choice(probabilities[coupled], noise)
    finite = probabilities.isfinite().all(dim=-1, keepdim=True)
    columns = [finite, tokens, token_ids, q]
    if any(draft.graded for draft in drafts):
        likelihoods = _likelihoods(drafts, logits, probabilities, coupled, noise)
        columns += [
            likelihoods.gather(1, tokens),
            *sparse_distributions(likelihoods, max(each.ranked for each in drafts)),
        ]
    # Token ids are exact in float64, so one tensor carries everything to the host.
    host = torch.cat([column.double() for column in columns], dim=1).tolist()
    likelihood = 2 + token_ids.shape[1] + q.shape[1]
    return [_outcome(draft, row, likelihood) for draft, row in zip(drafts, host, strict=True)]


def _draft_draws(drafts: Sequence[Draft], device: torch.device) -> torch.Tensor:
    values = [uniform(draft.params.seed, len(draft.committed), draft.position, Purpose.DRAFT) for draft in drafts]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _noise(drafts: Sequence[Draft], probabilities: torch.Tensor) -> torch.Tensor:
    """Return the [n, vocabulary] Gumbel noise of coupled drafts; those ahead of one session share most of it."""
    size, device = probabilities.shape[-1], probabilities.device
    keys = [(draft.params.seed, draft.position) for draft in drafts]
    noise = {(seed, position): gumbel_noise(seed, position, size, device) for seed, position in set(keys)}
    return torch.stack([noise[key] for key in keys]) if keys else probabilities[:0]


def _likelihoods(
    drafts: Sequence[Draft], logits: torch.Tensor, probabilities: torch.Tensor, coupled: list[int], noise: torch.Tensor
) -> torch.Tensor:
    """Say how likely the target's token is each one, [n, vocabulary], as far as the draft can tell."""
    likelihoods = probabilities.clone()
    if coupled:
        likelihoods[coupled] = coupled_likelihoods(probabilities[coupled], noise)
    greedy = [index for index, draft in enumerate(drafts) if draft.params.greedy]
    if greedy:
        likelihoods[greedy] = greedy_likelihoods(logits[greedy], [drafts[index].row for index in greedy])
    return likelihoods


def _outcome(draft: Draft, host: list[float], likelihood: int) -> Feed | Done:
    """Hand a row to its draft.

    Args:
        draft: whose row it is.
        host: finite, token, ids and probabilities of the support; then, where a draft of the batch is graded, how
            likely the token is to stand, ids and probabilities of the ranking.
        likelihood: where in the row that is.
    """
    finite, token, *support = host[:likelihood]
    if not finite:
        return draft.guess()
    if draft.graded and draft.gamma > 0:
        draft.stop.add(model_grade(host[likelihood]))
    if draft.ranked:
        draft.rankings.append(list(zip(*_halves(host[likelihood + 1 :]), strict=True)))
    return draft.take(int(token), *_halves(support))


def _halves(entries: list[float]) -> tuple[list[int], list[float]]:
    """Split token ids from probabilities."""
    size = len(entries) // 2
    return list(map(int, entries[:size])), entries[size:]
