"""What a request may choose: sampling parameters and the way of verification.

Plain values without torch, gRPC or protobuf: the coordinator resolves them, both model servers apply them.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from specdec.errors import InvalidParameter

GREEDY_BELOW = 1e-5  # one bound for draft and target
MAX_SEED = 2**64 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024


def _float32(value: float) -> float:
    [rounded] = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


# name: (lowest, highest, whether the lowest itself is allowed), in the numbers that a message carries: its nearest one
# to 0.01 is below it.
_RANGES = {
    "temperature": (0.0, 100.0, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "repetition_penalty": (_float32(0.01), 100.0, True),
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
}


class Verification(Enum):
    """The three exact ways to decide which draft tokens stand."""

    TOKEN = 1
    BLOCK = 2
    COUPLED = 3


# As exact as TOKEN, never fewer expected tokens, and the same work: `python -m benchmarks.verification_gain`.
DEFAULT_VERIFICATION = Verification.BLOCK


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Resolved sampling parameters; the fields mean what ``specdec.v1.SamplingParams`` says of them.

    Raises:
        InvalidParameter: a value is outside its range; the error names the field.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    max_new_tokens: int = 256
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Check everything that can be checked without knowing the model."""
        for name, (lowest, highest, closed) in _RANGES.items():
            value = getattr(self, name)
            inside = lowest <= value <= highest and (closed or value != lowest)
            _require(inside, name, f"must be {'at least' if closed else 'above'} {lowest:g} and at most {highest:g}")
        _require(0 <= self.seed <= MAX_SEED, "seed", "must be a 64-bit unsigned number")
        _require(self.top_k >= 0, "top_k", "must not be negative")
        _require(self.max_new_tokens >= 1, "max_new_tokens", "must be at least 1")
        _require(0 <= self.min_new_tokens <= self.max_new_tokens, "min_new_tokens", "must not exceed max_new_tokens")
        _require(len(self.stop) <= MAX_STOPS, "stop", f"must hold at most {MAX_STOPS} strings")
        for text in self.stop:
            _require(1 <= len(text) <= MAX_STOP_CHARACTERS, "stop", f"must be of 1 to {MAX_STOP_CHARACTERS} characters")
        _require(len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS, "stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS}")
        _require(len(self.logit_bias) <= MAX_BIASED_TOKENS, "logit_bias", f"at most {MAX_BIASED_TOKENS} tokens")
        for bias in self.logit_bias.values():
            _require(math.isfinite(bias) and -100 <= bias <= 100, "logit_bias", "must lie between -100 and 100")
        if self.logprobs is not None:
            _require(0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"must be at most {MAX_LOGPROBS}")

    def check_vocabulary(self, vocabulary_size: int, end_token_ids: Sequence[int]) -> None:
        """Check what depends on the model's vocabulary.

        Args:
            vocabulary_size: real size.
            end_token_ids: the model's end-of-sequence tokens.

        Raises:
            InvalidParameter: an id is outside the vocabulary, or a token that may come before ``min_new_tokens`` is not
                left. Nothing else takes every token away: biases are finite, and the cuts leave the likeliest.
        """
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, name):
                _require(0 <= token < vocabulary_size, name, f"token id {token} is not below {vocabulary_size}")
        ends = len(self.stop_token_ids) + len(end_token_ids)
        if self.min_new_tokens and ends >= vocabulary_size:  # seldom: ends are few, and some may be named twice
            ends = len({*self.stop_token_ids, *end_token_ids})
            _require(ends < vocabulary_size, "min_new_tokens", "leaves no token: each of the vocabulary ends an answer")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without chance."""
        return self.temperature < GREEDY_BELOW


def _require(condition: bool, name: str, rule: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidParameter(f"sampling_params.{name} {rule}", field=f"sampling_params.{name}")
