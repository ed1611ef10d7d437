"""What a draft that drafts ahead says of itself: how often the tokens a call asked for were there already."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.overhead_run import Ask
from benchmarks.recording import Recording
from specdec.v1 import generation_pb2

PREFIX = "specdec_ahead_"
READ_SECONDS = 10.0


@dataclass(slots=True)
class CountedAsk:
    """Asks, and counts what the draft did ahead meanwhile.

    Attributes:
        ask: of the coordinator.
        metrics_url: of the draft, which works for nobody else meanwhile.
        counts: hits, misses, tokens (drafted ahead) and used (of those), since the beginning.
    """

    ask: Ask
    metrics_url: str
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: generation_pb2.GenerateRequest) -> Recording:
        """Ask one answer."""
        before = read_counts(self.metrics_url)
        answer = self.ask(request)
        after = read_counts(self.metrics_url)
        self.counts.update({name: after[name] - before[name] for name in after})
        return answer

    def figures(self, rounds: int) -> dict[str, Any]:
        """Return the counts, how many of the calls hit, and the tokens a round; rounds are all that were asked."""
        found = self.counts
        calls = found["hits"] + found["misses"]
        return {
            "hits": found["hits"],
            "misses": found["misses"],
            "hit_rate": found["hits"] / calls if calls else None,
            "drafted_a_round": found["tokens"] / rounds,
            "used_a_round": found["used"] / rounds,
        }


def read_counts(metrics_url: str) -> dict[str, int]:
    """Return the draft's counters of drafting ahead, by the end of their names."""
    with urlopen(metrics_url, timeout=READ_SECONDS) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {
        family.name.removeprefix(PREFIX): int(sample.value)
        for family in families
        if family.name.startswith(PREFIX)
        for sample in family.samples
        if sample.name.endswith("_total")
    }
