"""How a draft is trained."""

import math
from dataclasses import dataclass, fields

WARM_UP = 0.05  # share of the training in which the learning rate rises
FLOOR = 0.1  # share of the learning rate that is left at the end


@dataclass(frozen=True, slots=True)
class DistillationSettings:
    """What can be chosen of a training. Tokens are those of answers, without prompts, unless it says otherwise.

    Attributes:
        train_tokens: tokens to learn from, repeats counted.
        learning_rate: the highest.
        batch_tokens: tokens of one optimiser step, over all devices.
        micro_batch_tokens: tokens of one pass on one device, prompts and padding included: what memory allows.
        gradient_clip: the gradient's norm is cut to this.
        train_embeddings: whether the embeddings learn too; they are the target's own.
        checkpoint_every: steps from one point of the curve, and its checkpoint, to the next.
        seed: of the order of the answers.

    Raises:
        ValueError: a number that must be above 0 is not.
    """

    train_tokens: int = 200_000
    learning_rate: float = 3e-4
    batch_tokens: int = 1024
    micro_batch_tokens: int = 1024
    gradient_clip: float = 1.0
    train_embeddings: bool = False
    checkpoint_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("train_embeddings", "seed") and not value > 0:
                raise ValueError(f"{field.name} must be above 0, not {value}")

    def learning_rate_at(self, tokens: int) -> float:
        """Return the learning rate of the step that ends after so many tokens: a rise, then half a cosine."""
        done = min(tokens / self.train_tokens, 1.0)
        if done < WARM_UP:
            return self.learning_rate * done / WARM_UP
        fall = (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2
        return self.learning_rate * (FLOOR + (1 - FLOOR) * fall)
