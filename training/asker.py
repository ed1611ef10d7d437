"""Speaks with a target in its own chat template."""

from typing import Any

import jinja2
import transformers

from specdec.model.language_model import LanguageModel
from specdec.model.refusal import ModelRefused
from training.answers import Answer

_MARK = "\u241f"  # stands for a message while its surroundings are looked at


class Asker:
    """A target with its tokenizer and, where it has one, its chat template.

    Attributes:
        model: the target.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Read the tokenizer that the model's description names.

        Raises:
            ModelRefused: the tokenizer or its chat template cannot be used.
        """
        self.model = model
        self._tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(model.description.tokenizer)
        self._opening = self._rendered(_MARK).partition(_MARK)[0] if self._tokenizer.chat_template else ""

    def prompt(self, message: str) -> list[int]:
        """Return the token ids of a user's message, opened for the answer; without a chat template, of the text."""
        if not self._tokenizer.chat_template:
            ids: list[int] = self._tokenizer(message)["input_ids"]
            return ids
        return self._encoded(self._rendered(message))

    def opening(self) -> list[int]:
        """Return what stands before a user's message: here the target invents one. May be empty without a template."""
        return self._encoded(self._opening) if self._opening else self.prompt("")

    def message(self, invented: Answer) -> str:
        """Return an invented message as text."""
        text: str = self._tokenizer.decode(invented.token_ids[invented.prompt_length :], skip_special_tokens=True)
        return text.strip()

    def _rendered(self, message: str) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ModelRefused(f"{self.model.name}: its chat template fails: {error}") from error
        return text

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
