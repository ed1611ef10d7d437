"""Which models cannot be served, found out before their weights are read."""

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

FULL_ATTENTION = "full_attention"


class ModelRefused(Exception):
    """The model cannot be found, read or served; the message says why and what would do."""


def refuse_unsupported(name: str, config: PretrainedConfig) -> None:
    """Check that a model is a causal LM in which every layer attends to the whole prefix.

    Only such a cache can be cut to a length: a window or a recurrent state has forgotten what a cut must bring back.

    Args:
        name: what messages call the model.
        config: its configuration, as transformers reads it.

    Raises:
        ModelRefused: the model is of another kind.
    """
    text = config.get_text_config(decoder=True)
    if reason := _reason(config, text):
        raise ModelRefused(f"{name} ({config.model_type}) cannot be served: {reason}")


def _reason(config: PretrainedConfig, text: Any) -> str:
    """Return why the model cannot be served, or nothing."""
    if config.is_encoder_decoder:
        return "it is an encoder-decoder model, not a decoder-only one"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers knows no causal language model of this type"
    if getattr(config, "quantization_config", None):
        return "its checkpoint is quantised; use one with plain weights, or a GGUF file"
    if getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_is_stateful", False):
        return "it keeps a recurrent state, which cannot be cut"
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None):
        return "its attention is not causal"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "it caps its attention scores (attn_logit_softcapping), which is not supported"
    if getattr(text, "max_position_embeddings", None) is None:
        return "its configuration names no context length (max_position_embeddings)"
    return _window_reason(text)


def _window_reason(text: Any) -> str:
    """Return which layers do not attend to the whole prefix, or nothing."""
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None:
        others = sorted(set(layer_types) - {FULL_ATTENTION})
        return f"it has layers of {', '.join(others)}, whose cache cannot be cut" if others else ""
    window = getattr(text, "sliding_window", None)
    if window is not None and getattr(text, "use_sliding_window", True):
        return f"it attends within a sliding window of {window} tokens, so its cache cannot be cut"
    if getattr(text, "attention_chunk_size", None) is not None:
        return "it attends in chunks, so its cache cannot be cut"
    return ""
