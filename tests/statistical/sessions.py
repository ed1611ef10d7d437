"""Sessions over toy models, round by round through drafting and verifying as the services run them, with real draws."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from draft_service import drafting
from draft_service.drafting import Draft, DraftLimits
from specdec.fence import Fence
from specdec.model.work import Done
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import Proposal
from target_service import verifying
from target_service.verifying import TargetLimits, Verify
from tests.statistical.cases import PROMPT, VOCABULARY, Context, Gamma, logits_of
from tests.statistical.enumeration import until_end

CONTEXT = 64


def arrives(proposal: Proposal) -> bool:
    return True


@dataclass(frozen=True)
class Sessions:
    """How sessions are run.

    Attributes:
        target: toy model.
        draft: toy model.
        params: of all sessions but for the seed.
        way: of verification.
        gamma: draft tokens of a round, by what is committed.
        support_size: of the draft.
        arrives: whether a proposal is used; the round has none otherwise.
        kind: of draft.
        prompt: what every session begins with; the toys' laws are of the answer alone.
    """

    target: int
    draft: int
    params: SamplingParams
    way: Verification
    gamma: Gamma
    support_size: int = VOCABULARY
    arrives: Callable[[Proposal], bool] = arrives
    kind: Callable[..., Draft] = Draft
    prompt: Context = PROMPT

    def answers(self, seeds: Iterable[int], length: int) -> list[Context]:
        """Return the first `length` tokens of the answer to each seed, less where one ends there."""
        ends = self.params.stop_token_ids
        answers: dict[int, Context] = dict.fromkeys(seeds, ())
        while running := [
            seed for seed, answer in answers.items() if len(answer) < length and not set(answer) & set(ends)
        ]:
            proposals = self._propose({seed: answers[seed] for seed in running})
            committed = self._verify([(seed, answers[seed], proposals.get(seed, Proposal())) for seed in running])
            for seed, tokens in zip(running, committed, strict=True):
                answers[seed] = until_end(answers[seed] + tokens, ends)
        return [answer[:length] for answer in answers.values()]

    def _propose(self, answers: dict[int, Context]) -> dict[int, Proposal]:
        limits = DraftLimits(VOCABULARY, CONTEXT, self.support_size, ())
        proposals: dict[int, Proposal] = {}
        pending: dict[int, Draft] = {}
        for seed, answer in answers.items():
            if gamma := self.gamma(answer):
                params = replace(self.params, seed=seed)
                draft = self.kind(self._prefix(seed, answer), params, gamma, self.way, limits)
                first = draft.begin([*self.prompt, *answer])
                if isinstance(first, Done):
                    proposals[seed] = first.result
                else:
                    pending[seed] = draft
        while pending:
            ready = [
                (draft, logits_of(self.draft, (*answers[seed], *draft.draft_tokens))[None])
                for seed, draft in pending.items()
            ]
            for seed, outcome in zip(list(pending), drafting.draw(ready), strict=True):
                if isinstance(outcome, Done):
                    proposals[seed] = outcome.result
                    del pending[seed]
        return {seed: proposal for seed, proposal in proposals.items() if self.arrives(proposal)}

    def _verify(self, rounds: list[tuple[int, Context, Proposal]]) -> list[Context]:
        limits = TargetLimits(VOCABULARY, CONTEXT, ())
        ready = []
        for seed, answer, proposal in rounds:
            call = Verify(self._prefix(seed, answer), replace(self.params, seed=seed), self.way, proposal, limits)
            call.begin([*self.prompt, *answer])
            contexts = [answer + proposal.draft_tokens[:index] for index in range(proposal.gamma + 1)]
            ready.append((call, torch.stack([logits_of(self.target, context) for context in contexts])))
        decisions = [outcome.result for outcome in verifying.decide(ready)]
        return [
            (*proposal.draft_tokens[: decision.accept_index], decision.next_token)
            for (_, _, proposal), decision in zip(rounds, decisions, strict=True)
        ]

    def _prefix(self, seed: int, answer: Context) -> CommittedPrefix:
        tokens = (*self.prompt, *answer)
        return CommittedPrefix(f"toy-{seed}", Fence(1, "0" * 32), 0, b"", tokens, len(self.prompt))
