"""What block verification gains over token-wise verification on a pair of models.

    python -m benchmarks.verification_gain --target embedded:smollm2 --draft layers:26:embedded:smollm2

Both are compared on the very same proposals: each round's draft tokens are drawn as the draft service draws them, and
the expected number of tokens a round is computed from the implementation's acceptance probabilities instead of being
sampled, so that little noise is left. The text goes on by block verification.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from benchmarks.output import Grid, console, emit, progress
from specdec import verification
from specdec.draws import Purpose, uniform
from specdec.model.language_model import KVCache, LanguageModel, Segment
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import common_length
from specdec.proposal import Proposal, SparseDistribution
from specdec.sampling import RowContext, distributions, inverse_cdf, sparse_distributions

PROMPTS = (
    "Why is the sky blue? Explain it to a child.",
    "Write a Python function that removes duplicates from a list and keeps the order.",
    "Write a short story about a lighthouse keeper.",
    "List five fruits and their colours.",
    "Summarise: The meeting began late. The budget was discussed. No decision was made.",
    "How do I make tea?",
)
SUPPORT_SIZE = 64


@dataclass
class Sequence:
    """A model with one session's cache, fed as the services feed it: what is shared stays, the rest is cut."""

    model: LanguageModel
    cache: KVCache
    fed: list[int]

    def rows(self, tokens: list[int], count: int) -> torch.Tensor:
        """Return [count, vocabulary] logits of the last positions of a sequence."""
        kept = min(common_length(self.fed, tokens), len(tokens) - count)
        self.cache.cut(kept)
        (logits,) = self.model.forward([Segment(self.cache, tokens[kept:], count)])
        self.fed = list(tokens)
        return logits


@dataclass(frozen=True)
class Setting:
    """One row of the result."""

    temperature: float
    gamma: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="embedded:smollm2")
    parser.add_argument("--draft", default="layers:26:embedded:smollm2")
    parser.add_argument("--rounds", type=int, default=12, help="a prompt and setting")
    arguments = parser.parse_args()
    target, draft = load_model(arguments.target), load_model(arguments.draft)
    settings = [Setting(temperature, gamma) for temperature in (0.7, 1.0) for gamma in (4, 8)]
    started = time.monotonic()
    results = []
    with progress(console()) as bar:
        task = bar.add_task("rounds", total=len(settings) * len(PROMPTS) * arguments.rounds)
        for setting in settings:
            pairs = []
            for pair in measure(target, draft, setting, arguments.rounds):
                pairs.append(pair)
                bar.advance(task)
            results.append(summary(setting, pairs))
    report = {"target": arguments.target, "draft": arguments.draft, "seconds": round(time.monotonic() - started)}
    emit(report | {"results": results}, [grid(results)])


@torch.inference_mode()
def measure(
    target: LanguageModel, draft: LanguageModel, setting: Setting, rounds: int
) -> Iterator[tuple[float, float]]:
    """Yield the expected tokens of each round, by token and by block."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(target.description.tokenizer)
    for seed, prompt in enumerate(PROMPTS):
        message = [{"role": "user", "content": prompt}]
        committed: list[int] = tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
        params = SamplingParams(temperature=setting.temperature, seed=seed)
        sides = [Sequence(model, model.new_cache(), []) for model in (target, draft)]
        for _ in range(rounds):
            proposal = propose(sides[1], committed, setting.gamma, params)
            logits = sides[0].rows([*committed, *proposal.draft_tokens], setting.gamma + 1)
            target_probs = distributions(logits, [row_context(params, committed)] * (setting.gamma + 1))
            yield expected_tokens(proposal, target_probs)
            verdict = verification.verify(proposal, target_probs, Verification.BLOCK, seed, len(committed))
            kept = int(verdict.accept_index)
            committed = [*committed, *proposal.draft_tokens[:kept], int(verdict.next_token)]


def propose(side: Sequence, committed: list[int], gamma: int, params: SamplingParams) -> Proposal:
    """Draw gamma draft tokens as the draft service does."""
    tokens: list[int] = []
    supports: list[SparseDistribution] = []
    for index in range(gamma):
        probabilities = distributions(side.rows([*committed, *tokens], 1), [row_context(params, committed)])
        token_ids, q = sparse_distributions(probabilities, SUPPORT_SIZE)
        draw = uniform(params.seed, len(committed), len(committed) + index, Purpose.DRAFT)
        place = int(inverse_cdf(q.double(), torch.tensor([draw], dtype=torch.float64)))
        size = int((q > 0).sum())
        supports.append(SparseDistribution(tuple(token_ids[0, :size].tolist()), tuple(q[0, :size].tolist())))
        tokens.append(int(token_ids[0, place]))
    return Proposal(tuple(tokens), tuple(supports))


def expected_tokens(proposal: Proposal, target_probs: torch.Tensor) -> tuple[float, float]:
    """Return the expected tokens of a round given its proposal, next_token included, by token and by block."""
    p = verification.normalised(target_probs)
    draft = verification.draft_rows(proposal, p.device)
    by_token = verification.token_acceptance(p, draft).cumprod(dim=0).sum()
    weights = verification.block_weights(p, draft)
    chances = verification.block_acceptance(p, draft, weights)
    # At least i draft tokens stand unless every chance from the i-th on fails.
    by_block = (1 - (1 - chances).flip(0).cumprod(dim=0)).sum()
    return 1 + float(by_token), 1 + float(by_block)


def row_context(params: SamplingParams, committed: list[int]) -> RowContext:
    """Return what a row stands on; without penalties the draft tokens do not matter."""
    return RowContext(params, committed, len(committed), (), ())


def summary(setting: Setting, pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the means, and the gain with the standard error of its mean."""
    by_token, by_block = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    error = statistics.stdev(block - token for token, block in pairs) / len(pairs) ** 0.5
    return {
        "temperature": setting.temperature,
        "gamma": setting.gamma,
        "rounds": len(pairs),
        "tokens_a_round_by_token": round(by_token, 4),
        "tokens_a_round_by_block": round(by_block, 4),
        "gain_percent": round(100 * (by_block / by_token - 1), 2),
        "gain_error_percent": round(100 * error / by_token, 2),
    }


def grid(results: list[dict[str, float]]) -> Grid:
    """Lay the results out."""
    rows = [[str(value) for value in result.values()] for result in results]
    return Grid("Expected tokens a round on the same proposals", list(results[0]), rows)


if __name__ == "__main__":
    main()
