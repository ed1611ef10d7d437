"""Pairs of target and draft within reach, by name, and their weights before anything starts."""

import subprocess
import sys
from dataclasses import dataclass

from deploy.process import StartFailed

DEFAULT_PAIR = "smollm2"
LOOKUP = "lookup:"  # alone a draft that fits every target: it has no vocabulary and no weights of its own
SYNTHETIC = "synthetic:"  # models without weights


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models by name, as ``--model`` takes them.

    Attributes:
        target: the target's model.
        draft: the draft's model.
    """

    target: str
    draft: str


PAIRS: dict[str, Pair] = {
    # The draft is the target's own first 26 of 30 layers: close to it, and no cheaper than that.
    "smollm2": Pair(target="embedded:smollm2", draft="layers:26:embedded:smollm2"),
    # Of one family. A revision is a commit: what it holds cannot change.
    "qwen2.5-coder": Pair(
        target="Qwen/Qwen2.5-Coder-1.5B-Instruct@2e1fd397ee46e1388853d2af2c993145b0f1098a",
        draft="Qwen/Qwen2.5-Coder-0.5B-Instruct@ea3f2471cf1b1f0db85067f1ef93848e38e88c25",
    ),
}


def usual_environment(pair: Pair) -> dict[str, str]:
    """Return the settings of the model servers that suit a pair's named models; what the user has set goes before them.

    On a CPU that can, weights are held as float16: a pass over several tokens then costs hardly more than one.
    """
    named = {model for each in PAIRS.values() for model in (each.target, each.draft)}
    models = {"TARGET": pair.target, "DRAFT": pair.draft}
    return {f"{service}_QUANTIZATION": "auto" for service, model in models.items() if model in named}


def chosen_pair(name: str, target: str, draft: str) -> Pair:
    """Return a pair, or what was asked for in its place.

    A named draft fits its own target. So for another target a lookup drafts, unless a draft is given too.

    Args:
        name: a key of PAIRS.
        target: in place of the pair's target, or empty.
        draft: in place of the pair's draft, or empty.
    """
    named = PAIRS[name]
    if target and not draft:
        return Pair(target, LOOKUP)
    return Pair(target or named.target, draft or named.draft)


def prepare(*models: str) -> None:
    """Fetch and unpack weights in the foreground, where the progress is seen; a repeat takes seconds.

    Args:
        models: targets and drafts, as ``--model`` takes them; those without weights need nothing.

    Raises:
        StartFailed: a model cannot be had; the reason has been printed.
    """
    names = [model.removeprefix(LOOKUP) for model in models]
    weighty = [name for name in names if name and not name.startswith(SYNTHETIC)]
    command = [sys.executable, "-m", "specdec.model.checkpoint", *weighty]
    if weighty and subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise StartFailed("nothing was started")
