"""Shows how far a training is: a bar on a terminal, and a line for every point of the curve."""

from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress

from training.curve import Point, best, text_plot


class TrainingProgress:
    """What a person sees of a training while it runs."""

    def __init__(self, reached: Point, train_tokens: int, *, silent: bool) -> None:
        """Begin at a point of the curve; silent is for all processes but the first."""
        self._console = Console(quiet=silent, stderr=True)
        self._bar = Progress(console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("training", total=train_tokens, completed=reached.tokens)
        self._learnt: list[float] = []
        self._since = reached
        self._clock = monotonic()
        self.reach(reached)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def advance(self, tokens: int, acceptance: float) -> None:
        """Show a step: tokens learnt from since the start, and α on the step's own answers."""
        self._learnt.append(acceptance)
        self._bar.update(self._task, completed=tokens)

    def reach(self, point: Point) -> None:
        """Print a point, with the mean α of the steps before it and the speed, measuring and saving included."""
        line = f"step {point.step:>6}  tokens {point.tokens:>11,}  α {point.acceptance:.4f} held out"
        if self._learnt:
            speed = (point.tokens - self._since.tokens) / (monotonic() - self._clock)
            line += f", {sum(self._learnt) / len(self._learnt):.4f} learning  {speed:,.0f} tokens/s"
        self._console.print(line, highlight=False, soft_wrap=True)
        self._learnt, self._since, self._clock = [], point, monotonic()

    def end(self, curve: Sequence[Point]) -> None:
        """Print the curve and which point is kept."""
        kept = best(curve)
        self._console.print(text_plot(curve), highlight=False, soft_wrap=True)
        self._console.print(
            f"kept: step {kept.step}, α {kept.acceptance:.4f} (start {curve[0].acceptance:.4f})", highlight=False
        )
