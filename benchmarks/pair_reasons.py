"""Why a goal of the ``pair`` benchmark is missed, said in the figures of its run alone. Pure."""

from collections.abc import Mapping
from typing import Any

from benchmarks.hugging_face import ASSISTED, GENERATE
from benchmarks.ways import ADAPTIVE, PLAIN, way_name
from benchmarks.wording import median, number

Found = Mapping[str, Any]
"""What ``pair_goals.kept`` says of one kind of prompt at one temperature."""


def call_reason(setting: str, found: Found) -> str:
    """Say what the calls of the gamma that α and the passes allow most took beyond the models' work."""
    fixed = [cell for cell in found["cells"].values() if cell.get("gamma") and cell["speedup"]]
    cell = max(fixed, key=lambda one: one["expected_speedup"]["median"])
    took = cell["milliseconds"]
    propose, verify = took["propose_call"] - took["draft"], took["verify_call"] - took["target"]
    return (
        f"At {setting} a round of {cell['way']}, which allows most, waits {_ms(propose)} of Propose and {_ms(verify)} "
        f"of Verify for more than the models, beside {_ms(took['draft'] + took['target'])} for them."
    )


def adaptive_reason(setting: str, found: Found) -> str:
    """Say how often adaptive answers drafted, and what their rounds brought and took, beside the best fixed gamma's."""
    cell, best = found["cells"][ADAPTIVE], found["cells"][way_name(found["gamma"])]
    came = cell["rounds"] - cell["rounds_without_draft_tokens"]
    at_a_time = f", {cell['draft_tokens_a_round'] * cell['rounds'] / came:.1f} at a time" if came else ""
    return (
        f"At {setting} draft tokens came in {came} of {cell['rounds']} adaptive rounds{at_a_time}; a round had "
        f"{_round(cell)}, where {best['way']}, the best, had {_round(best)}; an answer has "
        f"{cell['rounds'] / cell['answers']:.0f} rounds to learn in."
    )


def _round(cell: Mapping[str, Any]) -> str:
    took = cell["milliseconds"]
    asked = f"{_ms(took['propose_call'])} of Propose and " if took["propose_call"] else ""
    return f"{cell['tokens_a_round']:.2f} tokens for {asked}{_ms(took['verify_call'])} of Verify"


def generate_reason(setting: str, found: Found) -> str:
    """Say what Hugging Face's plain generation takes for a token, and where that of gamma 0 goes."""
    plain, took = found["cells"][PLAIN], found["cells"][PLAIN]["milliseconds"]
    paces = [found["cells"][way]["tokens_a_second"]["median"] for way in (GENERATE, PLAIN)]
    theirs, ours = (_ms(1000 / pace) for pace in paces)
    inside = f", the pass alone {_ms(took['target_forward'])}" if "target_forward" in took else ""
    return (
        f"At {setting} generate takes {theirs} a token and {plain['way']} {ours}: in its rounds the target works "
        f"{_ms(took['target'])}{inside}, and the rest of a Verify call takes "
        f"{_ms(took['verify_call'] - took['target'])}."
    )


def assisted_reason(setting: str, found: Found) -> str:
    """Say by what Hugging Face's assisted generation is near or ahead: tokens a round, or the pace of its passes."""
    cells, best = found["cells"], found["fastest"]
    theirs, ours = (number(cell["tokens_a_round"], 2) for cell in (cells[ASSISTED], best))
    return (
        f"At {setting} it has {theirs} tokens a round where {best['way']} has {ours}, and plain generate is "
        f"{median(cells[GENERATE]['speedup'], 2)} times gamma 0."
    )


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms"
