"""What a served model says of itself: the facts behind GetModelInfo."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts of a loaded model; they mean what ``specdec.v1.ModelInfo`` says of them.

    Attributes:
        name: hub id, folder, file or synthetic description, as it was asked for.
        model_fingerprint: identity of weights, variant and dtype, in hexadecimal.
        vocabulary_fingerprint: identity of the vocabulary's content and real size, in hexadecimal.
        vocabulary_size: real size, without padded rows of the head.
        context_length: tokens a session may hold.
        eos_token_ids: tokens that end an answer.
        tokenizer: a folder, a hub id, or "bytes".
        default_sampling_params: what the model's generation_config.json writes, by names of ``SamplingParams`` fields.
    """

    name: str
    model_fingerprint: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    tokenizer: str
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
