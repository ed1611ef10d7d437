"""What users would run instead: Hugging Face ``generate`` with the same models, in a process that idles meanwhile.

``generate`` decodes with the target alone. ``assisted`` lets the same draft assist it, or in place of ``lookup:`` the
library's own prompt lookup. Both run with its defaults.
"""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import torch
import transformers
from transformers.generation.streamers import BaseStreamer

from benchmarks.recording import Recording, Round
from deploy.pairs import LOOKUP
from deploy.process import StartFailed
from specdec.model.checkpoint import Checkpoint, find_checkpoint, split_layers
from specdec.model.draft_vocabulary import DRAFT_VOCABULARY
from specdec.model.loading import written_sampling_params
from specdec.model.refusal import ModelRefused

GENERATE, ASSISTED = "generate", "assisted"
LOOKED_UP_TOKENS = 10  # what the library's documentation uses with prompt_lookup_num_tokens
END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        assisted: whether the draft assists.
        text: of the prompt.
        plain: it goes without a chat template.
        temperature: 0 is greedy.
        seed: of what is drawn.
        max_new_tokens: of the answer.
        ignore_eos: the answer ends at that length alone.
    """

    assisted: bool
    text: str
    plain: bool
    temperature: float
    seed: int
    max_new_tokens: int
    ignore_eos: bool


def can_assist(draft: str) -> bool:
    """Say whether Hugging Face can let a draft assist: not a lookup before a model, nor a head of few tokens.

    Raises:
        ModelRefused: there is no such model.
    """
    if draft.startswith(LOOKUP):
        return draft == LOOKUP
    return not (find_checkpoint(split_layers(draft)[1]).folder / DRAFT_VOCABULARY).exists()


class HuggingFace:
    """The process, in a ``with`` block; it ends with this one."""

    def __init__(self, target: str, draft: str, threads: int) -> None:
        """Start nothing yet.

        Args:
            target: the target's model.
            draft: what assists; one that ``can_assist``, or nothing but ``generate`` can be asked.
            threads: of the process.
        """
        context = multiprocessing.get_context("spawn")  # a copy of this process would take gRPC's threads along
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, target, draft, threads), daemon=True)
        self._there = there

    def __enter__(self) -> Self:
        """Start, and wait until the models are loaded.

        Raises:
            StartFailed: they cannot be.
        """
        self._process.start()
        self._there.close()
        with _telling_of_its_end():
            failure = self._here.recv()
        if failure:
            raise StartFailed(f"Hugging Face: {failure}")
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._here.close()
        self._process.join(END_SECONDS)
        self._process.kill()

    def ask(self, question: Question) -> Recording:
        """Ask one answer; its rounds know only what came when.

        Raises:
            StartFailed: the process has ended.
        """
        with _telling_of_its_end():
            self._here.send(question)
            found: Recording = self._here.recv()
        return found


@contextmanager
def _telling_of_its_end() -> Iterator[None]:
    """Talk to the process; if it ends, before or after it has read what it was sent, say so."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise StartFailed("Hugging Face: the process has ended; it says above why") from error


class _Arrivals(BaseStreamer):
    """Notes how many tokens come when; the first put is the prompt itself."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.rounds: list[Round] = []
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            arrived = time.perf_counter() - self.started
            self.rounds.append(Round(0, 0, emitted=value.numel(), arrived=arrived))
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is left to do."""


class _Models:
    """Target and draft as the library runs them; see ``Question``."""

    def __init__(self, target: str, draft: str) -> None:
        checkpoint = find_checkpoint(split_layers(target)[1])
        self._written = written_sampling_params(checkpoint.written("generation_config.json"))
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)
        self._target = _load(target, checkpoint)
        self._help: dict[str, Any] = {}
        if draft == LOOKUP:
            self._help = {"prompt_lookup_num_tokens": LOOKED_UP_TOKENS}
        elif can_assist(draft):
            self._help = {"assistant_model": _load(draft, find_checkpoint(split_layers(draft)[1]))}

    @torch.inference_mode()
    def answer(self, question: Question) -> Recording:
        prompt = self._tokens(question)
        arrivals = _Arrivals()
        torch.manual_seed(question.seed)
        output = self._target.generate(
            torch.tensor([prompt], device=self._target.device),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self._target.device),
            streamer=arrivals,
            max_new_tokens=question.max_new_tokens,
            min_new_tokens=question.max_new_tokens if question.ignore_eos else None,
            **self._sampling(question),
            **(self._help if question.assisted else {}),
        )
        return Recording(tuple(prompt), tuple(output[0, len(prompt) :].tolist()), tuple(arrivals.rounds))

    def _tokens(self, question: Question) -> list[int]:
        message = [{"role": "user", "content": question.text}]
        read = (
            self._tokenizer(question.text)
            if question.plain
            else self._tokenizer.apply_chat_template(message, add_generation_prompt=True)
        )
        return list(read["input_ids"])

    def _sampling(self, question: Question) -> dict[str, Any]:
        """Say the parameters that the services resolve, too: the library's own top_k would be 50."""
        if not question.temperature:
            return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None, "min_p": None}
        return {"do_sample": True, "top_k": 0, "top_p": 1.0, **self._written, "temperature": question.temperature}


def _load(model: str, checkpoint: Checkpoint) -> Any:
    """Load a model the usual way: float32 on a CPU, else in the checkpoint's number format."""
    config = transformers.AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    layers, _ = split_layers(model)
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    cuda = torch.cuda.is_available()
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint.folder, config=config, dtype="auto" if cuda else torch.float32, local_files_only=True
    )
    return network.to("cuda" if cuda else "cpu").eval()


def _serve(connection: Connection, target: str, draft: str, threads: int) -> None:
    """Answer question after question, in the process, until the other end is closed."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        models = _Models(target, draft)
    except (ModelRefused, OSError, ValueError) as error:
        connection.send(str(error))
        return
    connection.send("")
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        connection.send(models.answer(question))
