"""Hugging Face's greedy decoding of the target alone, and what counts as the same text."""

from collections.abc import Sequence

import torch

NEAR_TIE = 1e-3  # logits closer than this may swap between kernels of other shapes, in float32


class Reference:
    """The target as Hugging Face runs it."""

    def __init__(self, model, vocabulary_size: int) -> None:
        self.model = model.eval()
        self.padding = list(range(vocabulary_size, model.config.vocab_size))

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """Return the answer, the end-of-sequence token included when it comes."""
        output = self.model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=new_tokens,
            suppress_tokens=self.padding or None,
            pad_token_id=0,
            repetition_penalty=1.0,
        )
        return output[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def gap(self, tokens: Sequence[int]) -> float:
        """Return how far apart the two best logits after the tokens are."""
        logits = self.model(torch.tensor([list(tokens)])).logits[0, -1]
        logits[self.padding] = -torch.inf
        best = torch.topk(logits.double(), 2).values
        return (best[0] - best[1]).item()

    def assert_same(self, prompt: Sequence[int], expected: Sequence[int], found: Sequence[int]) -> None:
        """Compare token by token; where they first differ the two best logits must nearly tie."""
        if list(found) == list(expected):
            return
        at = next(
            (i for i, (left, right) in enumerate(zip(expected, found, strict=False)) if left != right),
            min(len(expected), len(found)),
        )
        gap = self.gap([*prompt, *expected[:at]])
        assert gap < NEAR_TIE, f"differs at {at} where the best logits lie {gap} apart: {expected} != {found}"
