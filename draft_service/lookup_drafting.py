"""Drafting from what followed before: alone, or as long as something matches before the model is asked.

Both draw as ``drafting`` does: from exactly the distribution that is sent, with the draw of the round and position.
Where a token comes from is decided by the tokens before it, which are all in the proposal, so any mixture is exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from draft_service.drafting import Draft
from draft_service.lookup import Followers, Lookup, Lookups, distribution_of
from draft_service.shared_steps import SharedSteps
from draft_service.survival import lookup_grade
from specdec.draws import Purpose, gumbel_noise_of, uniform
from specdec.model.work import Done, Feed
from specdec.parameters import Verification
from specdec.proposal import SparseDistribution
from specdec.sampling import coupled_choice, inverse_cdf

# From the draft tokens so far to what followed before.
Source = Callable[[Sequence[int]], Followers]


@dataclass(slots=True, kw_only=True)
class LookupDraft(Draft):
    """A proposal of what followed before, and no more: it ends where nothing is known, or nothing worth it.

    That is exact, because whether it ends is decided by tokens that are all in the proposal. To draw a token, look at
    it and then leave it out would be a bias.

    Attributes:
        source: gives a started draft what it looks up in.
    """

    source: Callable[[Draft], Source]

    @property
    def reach(self) -> int:
        """Nothing is fed."""
        return 0

    def begin(self, committed: list[int]) -> Done:
        """Propose at once; nothing is ever fed."""
        self.start(committed)
        add_followers(self, self.source(self))
        return self.done()


@dataclass(slots=True, kw_only=True)
class ComposedDraft(Draft):
    """A proposal of what followed before, and of the model's own tokens where nothing is known.

    When the model is needed it is fed what the lookup has added together with the token before, in one pass.

    Attributes:
        source: gives a started draft what it looks up in.
        followers: what it gave.
    """

    source: Callable[[Draft], Source]
    followers: Source = field(init=False)

    def begin(self, committed: list[int]) -> Feed | Done:
        """Take what is known, and ask for logits where that ends."""
        self.start(committed)
        self.followers = self.source(self)
        return self._go_on([])

    def take(self, token: int, token_ids: Sequence[int], probabilities: Sequence[float]) -> Feed | Done:
        """Add a token of the model's, then again what is known."""
        outcome = Draft.take(self, token, token_ids, probabilities)
        return self._go_on(outcome.tokens) if isinstance(outcome, Feed) else outcome

    def _go_on(self, unfed: list[int]) -> Feed | Done:
        unfed = [*unfed, *add_followers(self, self.followers)]
        return self.done() if self.ended else Feed(unfed, 1)


def add_followers(draft: Draft, followers: Source) -> list[int]:
    """Add draft tokens as long as some are wanted, known and worth it. Return them."""
    added = []
    while not draft.full and (known := followers(draft.draft_tokens)) and draft.stop.takes(lookup_grade(known.matched)):
        distribution = distribution_of(known.token_ids, draft.limits.support_size, greedy=draft.params.greedy)
        added.append(_drawn(draft, distribution))
        draft.add(added[-1], distribution)
        draft.stop.add(lookup_grade(known.matched))
    return added


def _drawn(draft: Draft, distribution: SparseDistribution) -> int:
    """Draw the next draft token; one entry needs no draw."""
    if len(distribution.token_ids) == 1:
        return distribution.token_ids[0]
    seed, weights = draft.params.seed, torch.tensor([distribution.probabilities], dtype=torch.float64)
    if draft.verification is Verification.COUPLED:
        noise = gumbel_noise_of(seed, draft.position, torch.tensor(distribution.token_ids))
        chosen = coupled_choice(weights, noise[None])
    else:
        draws = [uniform(seed, len(draft.committed), draft.position, Purpose.DRAFT)]
        chosen = inverse_cdf(weights, torch.tensor(draws, dtype=torch.float64))
    return distribution.token_ids[int(chosen)]


def matches(lookups: Lookups, draft: Draft) -> Source:
    """Give what followed the same several tokens before."""
    return _lookup_of(lookups, draft).match


def own_tokens(lookups: Lookups, draft: Draft) -> Source:
    """Give matches and, where there is none, what followed the last token in the answer."""
    lookup = _lookup_of(lookups, draft)
    return lambda drafted: lookup.match(drafted) or lookup.step(drafted)


def own_and_shared_tokens(lookups: Lookups, shared: SharedSteps, draft: Draft) -> Source:
    """Give the session's own tokens and, where it has none, what followed the last token in any session's answer.

    Only where that is exact: see ``SharedSteps``. Without chance (greedy) and with COUPLED a proposal may depend on
    anything.
    """
    committed, seed = draft.committed, draft.params.seed
    shared.learn(seed, committed, draft.prefix.prompt_length)
    own = own_tokens(lookups, draft)
    free = draft.params.greedy or draft.verification is Verification.COUPLED
    if not free and not shared.open_to(seed, len(committed)):
        return own
    return lambda drafted: own(drafted) or Followers(shared.after((drafted or committed)[-1]), 0)


def _lookup_of(lookups: Lookups, draft: Draft) -> Lookup:
    prefix = draft.prefix
    return lookups.aligned(prefix.session_id, draft.committed, prefix.prompt_length)
