"""What the target alone says, as Hugging Face runs it, and what counts as the same text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import transformers

from specdec.draws import gumbel_noise
from specdec.parameters import SamplingParams
from specdec.sampling import RowContext, distributions

NEAR_TIE = 1e-3  # choices closer than this may swap between kernels of other shapes, in float32


@dataclass
class Answer:
    """An answer, and at each of its tokens the second best choice and how far it lies behind."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def choose(self, scores: torch.Tensor) -> int:
        """Add the best of [vocabulary] scores, and return it."""
        values, token_ids = torch.topk(scores.double(), 2)
        self.tokens.append(int(token_ids[0]))
        self.seconds.append(int(token_ids[1]))
        self.gaps.append((values[0] - values[1]).item())
        return self.tokens[-1]

    def assert_same(self, found: Sequence[int]) -> None:
        """Compare token by token; where they first differ, what was found must be a second best that nearly ties."""
        found = list(found)
        if found == self.tokens:
            return
        pairs = enumerate(zip(self.tokens, found, strict=False))
        at = next((i for i, (left, right) in pairs if left != right), None)
        assert at is not None, f"one goes on where the other ends: {self.tokens} != {found}"
        near = found[at] == self.seconds[at] and self.gaps[at] < NEAR_TIE
        assert near, f"differs at {at}, where {self.seconds[at]} is {self.gaps[at]} behind: {self.tokens} != {found}"


class Reference:
    """The target as Hugging Face runs it."""

    def __init__(self, model, vocabulary_size: int) -> None:
        self.model = model.eval()
        self.vocabulary_size = vocabulary_size

    def greedy(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """Return the tokens of the answer, the end-of-sequence token included when it comes."""
        return self.greedy_answer(prompt, new_tokens).tokens

    @torch.inference_mode()
    def greedy_answer(self, prompt: Sequence[int], new_tokens: int, **processors) -> Answer:
        """Return what ``generate`` says with these processors of its own; gaps lie between processed logits."""
        output = self.model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=new_tokens,
            suppress_tokens=list(range(self.vocabulary_size, self.model.config.vocab_size)) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **{"repetition_penalty": 1.0} | processors,
        )
        answer = Answer()
        chosen = [answer.choose(scores[0]) for scores in output.scores]
        assert chosen == output.sequences[0, len(prompt) :].tolist()
        return answer

    @torch.inference_mode()
    def coupled_answer(self, prompt: Sequence[int], params: SamplingParams, end_token_ids: Sequence[int]) -> Answer:
        """Return what the seed's noise chooses, one token a pass; gaps lie between perturbed log-probabilities."""
        answer, fed, cache = Answer(), 0, transformers.DynamicCache(config=self.model.config)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else end_token_ids)}
        while len(answer.tokens) < params.max_new_tokens and not ends & {*answer.tokens[-1:]}:
            tokens = [*prompt, *answer.tokens]
            logits = self.model(torch.tensor([tokens[fed:]]), cache=cache).logits[0, -1:, : self.vocabulary_size]
            fed = len(tokens)
            p = distributions(logits, [RowContext(params, tokens, len(prompt), (), end_token_ids)])[0]
            noise = gumbel_noise(params.seed, len(tokens), self.vocabulary_size, p.device)
            answer.choose(p.double().log() + noise)
        return answer
