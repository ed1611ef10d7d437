"""Loads what a person names as a model; refuses early, with a message that says why, what cannot be served."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.distributed.configuration_utils import DistributedConfig

from specdec.model.agreement import check_agreement
from specdec.model.attention import RAGGED
from specdec.model.causal_lm import CausalLM
from specdec.model.checkpoint import Checkpoint, find_checkpoint, split_layers
from specdec.model.description import ModelDescription
from specdec.model.draft_vocabulary import DRAFT_VOCABULARY, SIZE, cut_head, draft_token_ids
from specdec.model.fingerprint import model_fingerprint
from specdec.model.language_model import LanguageModel
from specdec.model.lookup_model import LOOKUP
from specdec.model.quantization import AUTO, NONE, check_quantization, meant, quantize
from specdec.model.refusal import ModelRefused, refuse_unsupported
from specdec.model.synthetic import PREFIX, SyntheticModel
from specdec.model.tensor_parallel import refuse_unspreadable
from specdec.vocabulary import real_size, vocabulary_fingerprint

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# What generation_config.json may write of SamplingParams; the temperature has a rule of its own.
WRITTEN_DEFAULTS = ("top_k", "top_p", "min_p", "repetition_penalty")


def load_model(model: str, device: str = AUTO, dtype: str = AUTO, quantization: str = NONE) -> LanguageModel:
    """Load a model.

    Args:
        model: a hub id, a folder, a .gguf file, ``embedded:smollm2``, ``layers:N:MODEL`` (the first N layers of any of
            these with its final norm and head) or ``synthetic:…``.
        device: a torch device, or "auto": CUDA where there is one, else the CPU.
        dtype: "float32", "float64", "bfloat16", "float16", or "auto": float32 on the CPU, elsewhere the checkpoint's.
            Synthetic models: "float64" (also for "auto") or "float32".
        quantization: of the linear layers: "none", "float16" or "int8" (CPUs, weights that are no synthetic model's);
            "auto": float16 on a CPU that has its kernels, else none.

    Returns:
        The model, ready to serve, with its description.

    Raises:
        ModelRefused: there is no such model, device, dtype or quantization, or the model cannot be served.
    """
    place = _device(device)
    _check_dtype(dtype)
    if model.startswith(LOOKUP):
        raise ModelRefused(f"{model}: a lookup proposes what followed before and has no law of its own: a draft alone")
    if model.startswith(PREFIX):
        return _synthetic(model, place, dtype, quantization)
    quantization = meant(quantization, place, dtype)
    check_quantization(model, quantization, place, dtype)
    return _causal_lm(model, place, dtype, quantization, ranks=1)


def load_share(model: str, device: str, dtype: str, quantization: str, ranks: int) -> CausalLM:
    """Load this process's share of a model; all processes of its default process group must do so.

    Args:
        model: as for load_model, but no synthetic model and no draft that was made for a target.
        device: "auto" alone: each process has its own GPU, or all run on the CPU where torch sees no GPU.
        dtype: as for load_model.
        quantization: "none", which "auto" is here.
        ranks: how many processes there are, at least 2.

    Returns:
        A model whose forward passes must be run by all processes together.

    Raises:
        ModelRefused: as for load_model, or the model cannot be spread over so many processes.
    """
    if device != AUTO:
        raise ModelRefused(f"device {device!r}: with {ranks} processes each takes a GPU of its own; use {AUTO}")
    _check_dtype(dtype)
    if quantization not in (NONE, AUTO):
        raise ModelRefused(f"{model}: quantization {quantization} is for one process, not for {ranks}; use {NONE}")
    if model.startswith((LOOKUP, PREFIX)):
        raise ModelRefused(f"{model}: there are no weights to spread over {ranks} processes; start one")
    return _causal_lm(model, _device(AUTO), dtype, NONE, ranks)


def _causal_lm(model: str, place: torch.device, dtype: str, quantization: str, ranks: int) -> CausalLM:
    layers, location = split_layers(model)
    checkpoint = find_checkpoint(location)
    _quieten()
    config = _config(model, checkpoint, layers)
    if ranks > 1:
        _refuse_unspreadable(model, checkpoint, config, ranks)
    vocabulary = _vocabulary(model, checkpoint)
    network = _network(model, checkpoint, config, dtype if dtype != AUTO else _auto_dtype(place), ranks)
    description = _describe(model, checkpoint, vocabulary, network, _variant(layers, quantization))
    network.to(place).eval()
    if _has_cut_head(checkpoint, config):
        size = getattr(config, SIZE, None)
        cut_head(network, draft_token_ids(checkpoint.folder, size, description.vocabulary_size))
    quantize(model, network, quantization)
    loaded = CausalLM(network, description)
    check_agreement(loaded)
    return loaded


def _refuse_unspreadable(model: str, checkpoint: Checkpoint, config: Any, ranks: int) -> None:
    if _has_cut_head(checkpoint, config):
        raise ModelRefused(f"{model}: a draft that was made for a target runs in one process, not in {ranks}")
    refuse_unspreadable(model, config, ranks)


def _device(name: str) -> torch.device:
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelRefused(f"device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def _check_dtype(name: str) -> None:
    if name != AUTO and name not in DTYPES:
        raise ModelRefused(f"dtype {name!r}: there are auto, {', '.join(DTYPES)}")


def _auto_dtype(device: torch.device) -> str:
    return "float32" if device.type == "cpu" else AUTO


def _synthetic(model: str, device: torch.device, dtype: str, quantization: str) -> SyntheticModel:
    if quantization not in (NONE, AUTO):
        raise ModelRefused(f"{model}: a synthetic model has no weights to quantise; use none")
    if dtype not in (AUTO, "float64", "float32"):
        raise ModelRefused(f"{model}: a synthetic model is float64 or float32, not {dtype}")
    return SyntheticModel(model, device, DTYPES.get(dtype, torch.float64))


def _has_cut_head(checkpoint: Checkpoint, config: Any) -> bool:
    """Tell a draft made for a target from a whole model: it has a map of its tokens, or says that it should have."""
    return (checkpoint.folder / DRAFT_VOCABULARY).exists() or getattr(config, SIZE, None) is not None


def _quieten() -> None:
    """Keep progress bars and reports off stderr, which carries the services' log lines; what matters raises."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _config(model: str, checkpoint: Checkpoint, layers: int | None) -> Any:
    """Read the configuration, refuse what cannot be served, and keep the first layers where asked to."""
    try:
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.folder,
            local_files_only=True,
            trust_remote_code=False,  # unset, a terminal would be asked whether a model's own code may run
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelRefused(f"{model}: its configuration cannot be read: {error}") from error
    refuse_unsupported(model, config)
    if layers is not None:
        text = config.get_text_config(decoder=True)
        if not 1 <= layers <= text.num_hidden_layers:
            raise ModelRefused(f"{model}: it has {text.num_hidden_layers} layers; N lies between 1 and that")
        if layers != text.num_hidden_layers and _has_cut_head(checkpoint, config):
            raise ModelRefused(f"{model}: its head was made for all of its {text.num_hidden_layers} layers")
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    return config


def _network(model: str, checkpoint: Checkpoint, config: Any, dtype: str, ranks: int) -> Any:
    """Read the weights into the network, all of them: one that is not in the checkpoint would be random."""
    loader: Any = transformers.AutoModelForCausalLM  # typed as if it never returned the report
    try:
        network, report = loader.from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=DTYPES.get(dtype, dtype),
            attn_implementation=RAGGED,
            distributed_config=DistributedConfig(tp_size=ranks) if ranks > 1 else None,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelRefused(f"{model}: its weights cannot be read: {error}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelRefused(f"{model}: the checkpoint lacks {len(missing)} weights, {missing[0]} among them")
    return network


def _variant(layers: int | None, quantization: str) -> str:
    """Name what is served of the checkpoint; empty for all of it as it is."""
    parts = ["" if layers is None else f"layers:{layers}", "" if quantization == NONE else quantization]
    return " ".join(part for part in parts if part)


def _describe(
    model: str, checkpoint: Checkpoint, vocabulary: Mapping[str, int], network: Any, variant: str
) -> ModelDescription:
    size = real_size(vocabulary, network.get_output_embeddings().weight.shape[0])
    config, generation = checkpoint.written("config.json"), checkpoint.written("generation_config.json")
    dtype = str(network.dtype).removeprefix("torch.")
    return ModelDescription(
        name=model,
        model_fingerprint=model_fingerprint(config, checkpoint.weight_files, dtype, variant),
        vocabulary_fingerprint=vocabulary_fingerprint(vocabulary, size),
        vocabulary_size=size,
        context_length=context_length(network.config.get_text_config(decoder=True)),
        eos_token_ids=eos_token_ids(generation, network.config.get_text_config(decoder=True), size),
        tokenizer=checkpoint.tokenizer,
        default_sampling_params=written_sampling_params(generation),
    )


def _vocabulary(model: str, checkpoint: Checkpoint) -> dict[str, int]:
    """Read tokenizer.json, through the class the coordinator uses: AutoTokenizer adds tokens to some models' files."""
    try:
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(checkpoint.folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelRefused(f"{model}: its tokenizer cannot be read: {error}") from error
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def context_length(text_config: Any) -> int:
    """Return how many tokens a session may hold.

    With longrope the rotary frequencies of a whole pass change when its longest position crosses the original context;
    no session may change another's numbers, so such a model ends there.
    """
    longest: int = text_config.max_position_embeddings
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return min(longest, rope.get("original_max_position_embeddings") or longest)
    return longest


def eos_token_ids(generation: Mapping[str, Any], text_config: Any, size: int) -> tuple[int, ...]:
    """Return the tokens that end an answer: generation_config.json's, and where it is silent the configuration's."""
    ids = generation.get("eos_token_id", getattr(text_config, "eos_token_id", None))
    listed = ids if isinstance(ids, list) else [ids]
    return tuple(token for token in listed if token is not None and token < size)


def written_sampling_params(generation: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling parameters that generation_config.json writes, by names of ``SamplingParams`` fields.

    Only what is written counts, not what transformers would fill in. The temperature counts with ``do_sample`` alone
    (1 when not written, which is what do_sample then means); without it the model is meant to be greedy.
    """
    written = {name: generation[name] for name in WRITTEN_DEFAULTS if generation.get(name) is not None}
    if generation.get("do_sample"):
        temperature = generation.get("temperature")
        written["temperature"] = 1.0 if temperature is None else temperature
    return written
