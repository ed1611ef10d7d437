"""A model whose law is known: next-token tables from a seed, and set times for a forward pass.

It is a real backend for load tests and for tests of the law. ``synthetic:vocabulary=512,seed=1,pass_ms=5`` names one.
Every row of the tables is a distribution p over few tokens and a distribution r over as many others. A model without
``agreement`` serves p; one with ``agreement=α`` serves α·p + (1 − α)·r, so that Σ min(p, q) is α in every context.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from specdec.model.description import ModelDescription
from specdec.model.fingerprint import model_fingerprint
from specdec.model.kv_cache import SteppedCache
from specdec.model.language_model import Branches, Segment
from specdec.model.refusal import ModelRefused
from specdec.vocabulary import bytes_vocabulary, vocabulary_fingerprint

PREFIX = "synthetic:"
NO_MASS = -1e30  # logit of a token that cannot come: finite at every temperature, and its exponential is exactly 0
MAX_SUPPORT = 32  # tokens of p and of r, so that α·p + (1 − α)·r fits a draft distribution of 64 entries
MAX_ENTRIES = 2**22  # of a table: 32 MiB
SPREAD = 1.5  # standard deviation of the log-probabilities before they are normalised
STRIDE = 1_000_003  # a prime, so that every one of the last tokens moves the row

_RANGES = {
    "vocabulary": (2, MAX_ENTRIES),
    "seed": (0, 2**63 - 1),
    "agreement": (0.0, 1.0),
    "context": (1, 2**31),
    "pass_ms": (0.0, 1e6),
    "token_ms": (0.0, 1e6),
    "order": (1, 1024),
}


@dataclass(frozen=True, slots=True)
class SyntheticSettings:
    """What ``synthetic:key=value,…`` says.

    Attributes:
        vocabulary: number of tokens; the last id is the end-of-sequence token.
        seed: decides the tables.
        agreement: 0 to 1, the mass shared with the model of the same seed that has none; 1 is that model.
        context: tokens a cache may hold.
        pass_ms: milliseconds a forward pass takes in any case.
        token_ms: milliseconds more for each fed token.
        order: how many of the latest tokens decide the next one's law.
    """

    vocabulary: int = 512
    seed: int = 0
    agreement: float = 1.0
    context: int = 4096
    pass_ms: float = 0.0
    token_ms: float = 0.0
    order: int = 1

    @classmethod
    def parse(cls, name: str) -> "SyntheticSettings":
        """Read a name such as ``synthetic:seed=1,agreement=0.8``.

        Raises:
            ModelRefused: a key is unknown or twice there, or a value malformed or out of range.
        """
        types = {item.name: type(item.default) for item in fields(cls)}
        values: dict[str, Any] = {}
        for part in filter(None, name.removeprefix(PREFIX).split(",")):
            key, _, text = part.partition("=")
            if key not in types or key in values:
                raise ModelRefused(f"{name}: {key!r} is unknown or repeated; there are {', '.join(types)}")
            values[key] = _number(name, key, text, types[key])
        return cls(**values)


def _number(name: str, key: str, text: str, kind: type) -> float:
    lowest, highest = _RANGES[key]
    try:
        value: float = kind(text)
    except ValueError as error:
        raise ModelRefused(f"{name}: {key} = {text!r} is no {kind.__name__}") from error
    if not lowest <= value <= highest:
        raise ModelRefused(f"{name}: {key} must lie between {lowest:g} and {highest:g}")
    return value


class SyntheticCache(SteppedCache):
    """The tokens of one session.

    Attributes:
        tokens: of the sequence, then of the branches; what lies beyond has been cut and is overwritten.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.tokens: list[int] = []

    def extend(self, segment: Segment) -> None:
        """Append a segment's tokens: to the sequence, or to the branches behind it."""
        if isinstance(segment, Branches):
            held = self.length + len(self.branches)
            self.branches += segment.parents
        else:
            self.cut(self.length)
            held = self.length
            self.length += len(segment.tokens)
        self.reserve(held + len(segment.tokens))
        self.tokens[held:] = segment.tokens

    def move(self, entries: list[int], start: int) -> None:
        """Copy the tokens of some entries to ``start`` and the places that follow."""
        self.tokens[start : start + len(entries)] = [self.tokens[entry] for entry in entries]

    def path(self, index: int, count: int) -> list[int]:
        """Return the last ``count`` tokens, or all there are, of those that lead to an entry, its own the last."""
        latest: list[int] = []
        while index >= 0 and len(latest) < count:
            latest.append(self.tokens[index])
            index = self.branches[index - self.length] if index >= self.length else index - 1
        return latest[::-1]


class SyntheticModel:
    """A Markov chain with the interface and, if wanted, the pace of a language model.

    Attributes:
        settings: as parsed.
        description: the facts behind GetModelInfo.
        name: see ``LanguageModel``, as the following.
        vocabulary_size: number of tokens.
        context_length: tokens a cache may hold.
        device: where the tables and logits live.
    """

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype) -> None:
        """Draw the tables.

        Args:
            name: ``synthetic:…``.
            device: for the tables.
            dtype: of the logits, float64 or float32; the law is exact in float64.

        Raises:
            ModelRefused: the name cannot be read.
        """
        self.settings = SyntheticSettings.parse(name)
        self.name = name
        self.vocabulary_size = self.settings.vocabulary
        self.context_length = self.settings.context
        self.device = device
        self._laws = _laws(self.settings).to(device)
        self._logits = self._laws.log().clamp_(min=NO_MASS).to(dtype)
        self.description = _description(name, self.settings, dtype)

    def new_cache(self) -> SyntheticCache:
        """Return an empty cache."""
        return SyntheticCache()

    def law(self, context: Sequence[int]) -> torch.Tensor:
        """Return the exact distribution of the token after a context, [vocabulary] in float64."""
        return self._laws[self._row(context[-self.settings.order :])]

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment, append to the caches and take the time a pass is set to take.

        Args:
            segments: at least one, no cache twice, every cache from new_cache.

        Returns:
            One [rows, vocabulary_size] tensor of log-probabilities a segment; NO_MASS where there is none.

        Raises:
            ValueError: a segment is empty, asks for more rows than it feeds, or runs past the context.
        """
        ready_at = time.perf_counter() + self._seconds(sum(len(segment.tokens) for segment in segments))
        rows = [row for segment in segments for row in self._feed(segment)]
        logits = self._logits[torch.tensor(rows, dtype=torch.long, device=self.device)]
        time.sleep(max(0.0, ready_at - time.perf_counter()))
        return list(logits.split([segment.rows for segment in segments]))

    def _seconds(self, fed: int) -> float:
        return (self.settings.pass_ms + self.settings.token_ms * fed) / 1000

    def _feed(self, segment: Segment) -> list[int]:
        """Append a segment's tokens and return the table rows of its last positions."""
        cache: Any = segment.cache
        fed = len(segment.tokens)
        if not (fed >= 1 and 0 <= segment.rows <= fed and max(segment.positions) < self.context_length):
            raise ValueError(f"{segment.rows} rows of {fed} tokens behind {cache.length}: not within {self.settings}")
        cache.extend(segment)
        stop = cache.length + len(cache.branches)
        return [self._row(cache.path(index, self.settings.order)) for index in range(stop - segment.rows, stop)]

    def _row(self, latest: Sequence[int]) -> int:
        """Return the table row that the last tokens of a context, `order` of them if there are so many, name."""
        row = 0
        for token in latest:
            row = row * STRIDE + token
        return row % len(self._laws)


def _laws(settings: SyntheticSettings) -> torch.Tensor:
    """Draw the table of laws, [rows, vocabulary] in float64; the same seed gives the same p for every agreement."""
    generator = torch.Generator().manual_seed(settings.seed)
    rows = max(1, min(settings.vocabulary, MAX_ENTRIES // settings.vocabulary))
    support = min(settings.vocabulary // 2, MAX_SUPPORT)
    order = torch.rand(rows, settings.vocabulary, generator=generator, dtype=torch.float64).argsort(dim=1)
    weights = torch.randn(2, rows, support, generator=generator, dtype=torch.float64).mul_(SPREAD).exp_()
    shared, other = weights / weights.sum(dim=2, keepdim=True)
    laws = torch.zeros(rows, settings.vocabulary, dtype=torch.float64)
    laws.scatter_(1, order[:, :support], shared * settings.agreement)
    return laws.scatter_(1, order[:, support : 2 * support], other * (1 - settings.agreement))


def _description(name: str, settings: SyntheticSettings, dtype: torch.dtype) -> ModelDescription:
    law = {key: value for key, value in asdict(settings).items() if not key.endswith("_ms")}
    return ModelDescription(
        name=name,
        model_fingerprint=model_fingerprint({"model_type": "synthetic", **law}, [], str(dtype), ""),
        vocabulary_fingerprint=vocabulary_fingerprint(bytes_vocabulary(settings.vocabulary), settings.vocabulary),
        vocabulary_size=settings.vocabulary,
        context_length=settings.context,
        eos_token_ids=(settings.vocabulary - 1,),
        tokenizer="bytes",
    )
