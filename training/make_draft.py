"""Makes a draft for a target that has no small sibling: ``python -m training.make_draft --target PATH --out DIR``.

1. The target answers prompts, invented by itself and built in (``corpus``).
2. The tokens that its answers are made of become the draft's vocabulary (``draft_tokens``).
3. Its first layers, an exit map fitted on the answers, and its head become the draft (``exit_map``, ``early_exit``).
4. With --train the draft goes on learning from the target's distributions (``distillation``).
5. It is written as a folder that transformers and this project load, and measured (``draft_folder``, ``trial``).

Answers and training are kept beside the folder as they come, so that the same command goes on after a break. torchrun
shares the training out; every process makes the same draft, and the first one writes it.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import distributed

from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from training.corpus import CorpusSettings
from training.distillation_settings import DistillationSettings
from training.process_group import own_device, process_group
from training.recipe import DraftSettings, made_draft

CORPUS, DRAFT, TRAINING = CorpusSettings(), DraftSettings(), DistillationSettings()

app = typer.Typer(add_completion=False)


@app.command()
def make_draft(  # one parameter a flag
    target: Annotated[str, typer.Option(help="The target: a hub id, a folder, a .gguf file or embedded:NAME.")],
    out: Annotated[Path, typer.Option(help="The draft's folder; must not be there yet.")],
    layers: Annotated[int, typer.Option(help="Layers of the target to keep.")] = DRAFT.layers,
    vocabulary: Annotated[int, typer.Option(help="Tokens that the head knows at most.")] = DRAFT.vocabulary,
    answers: Annotated[int, typer.Option(help="Answers of the target to fit on.")] = CORPUS.answers,
    answer_tokens: Annotated[int, typer.Option(help="Tokens of one answer at most.")] = CORPUS.answer_tokens,
    seed: Annotated[int, typer.Option(help="Of prompts, answers and training.")] = CORPUS.seed,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    train: Annotated[bool, typer.Option("--train", help="Go on by knowledge distillation.")] = False,  # noqa: FBT002
    train_tokens: Annotated[int, typer.Option(help="Answer tokens to learn from.")] = TRAINING.train_tokens,
    learning_rate: Annotated[float, typer.Option(help="The highest.")] = TRAINING.learning_rate,
    batch_tokens: Annotated[int, typer.Option(help="Answer tokens of one step.")] = TRAINING.batch_tokens,
    micro_batch_tokens: Annotated[int, typer.Option(help="Tokens of one pass.")] = TRAINING.micro_batch_tokens,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = TRAINING.checkpoint_every,
) -> None:
    """Make a draft for a target, from the target's own answers."""
    training = DistillationSettings(
        train_tokens=train_tokens,
        learning_rate=learning_rate,
        batch_tokens=batch_tokens,
        micro_batch_tokens=micro_batch_tokens,
        checkpoint_every=checkpoint_every,
        seed=seed,
    )
    settings = DraftSettings(
        layers, vocabulary, CorpusSettings(answers, answer_tokens, seed), training if train else None
    )
    place = own_device(_device(device))
    with process_group(place):
        made = made_draft(load_model(target, str(place)), out, settings)
        if distributed.get_rank() == 0:
            console = Console(highlight=False, soft_wrap=True)
            for line in (*made.facts, *made.trial.lines):
                console.print(f"- {line}", markup=False)
            times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in made.seconds.items())
            console.print(f"- made in {sum(made.seconds.values()):.0f} s: {times}", markup=False)
            console.print(f"The draft is in {out}. Serve it: make demo TARGET={target} DRAFT={out}", markup=False)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ModelRefused(f"device {name!r}: {str(error).splitlines()[0]}") from error


def main(arguments: list[str] | None = None) -> None:
    """Run the command; every failure is one line on standard error, and status 1.

    Args:
        arguments: in place of those of the process.
    """
    try:
        status = app(arguments, prog_name="make_draft", standalone_mode=False)
    except (ModelRefused, OSError, ValueError) as error:
        raise SystemExit(f"make_draft: {error}") from error
    except typer.TyperException as error:
        raise SystemExit(f"make_draft: {error.format_message()} (see --help)") from error
    if status:  # broken off by a person
        raise SystemExit(status)


if __name__ == "__main__":
    main()
