"""What a draft is fitted on: the target's own answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the target sampled after it, at temperature 1.

    Attributes:
        token_ids: prompt and answer, the token that ended it included.
        prompt_length: how many of them are the prompt, chat template applied; at least 1.

    Raises:
        ValueError: there is no prompt token or no token of an answer.
    """

    token_ids: tuple[int, ...]
    prompt_length: int

    def __post_init__(self) -> None:
        """Check that the answer has something to stand on and something to say."""
        if not 1 <= self.prompt_length < len(self.token_ids):
            raise ValueError(f"an answer of {len(self.token_ids)} tokens cannot have {self.prompt_length} of prompt")
