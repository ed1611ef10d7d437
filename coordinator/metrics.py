"""What Prometheus gets to see of generation: counters of what was emitted, after stops cut it, and times.

Ratios are queries: acceptance is accepted by draft tokens; tokens a round is generation tokens by rounds.
"""

import time
from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coordinator.fleet import Fleet
from coordinator.replicas import Replicas
from coordinator.rounds import Drafted, Event, Fallback, Round, Verdict, worked_seconds
from coordinator.session import Session
from specdec.v1 import common_pb2

_FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_GAMMA_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_REQUEST_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_STAGE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The coordinator's metrics in a registry of their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything, so that counters start at 0."""

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"specdec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"specdec_{name}", text, buckets=buckets, registry=registry)

        self.rounds = counter("rounds", "Rounds, those without draft tokens included.")
        self.drafts = counter("spec_decode_num_drafts", "Rounds with at least one draft token.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Draft tokens kept and emitted.")
        self.accepted_per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens kept and emitted, by index.", ("position",)
        )
        self.gamma = histogram("round_gamma", "Draft tokens verified in each round.", _GAMMA_BUCKETS)
        self.fallbacks = counter("fallback_rounds", "Rounds that could have speculated and did not.", ("reason",))
        self.residual_zero = counter("residual_zero", "Residuals without mass, which only rounding brings about.")
        self.prompt_tokens = counter("prompt_tokens", "Committed tokens before each answer.")
        self.generation_tokens = counter("generation_tokens", "Tokens emitted.")
        self.finished = counter("request_success", "Answers that came to their end.", ("finished_reason",))
        self.running = Gauge("specdec_num_requests_running", "Answers being generated.", registry=registry)
        self.first_token = histogram(
            "time_to_first_token_seconds", "From request to first tokens.", _FIRST_TOKEN_BUCKETS
        )
        self.per_token = histogram(
            "time_per_output_token_seconds", "Mean time of a token after the first event's.", _PER_TOKEN_BUCKETS
        )
        self.request = histogram("e2e_request_latency_seconds", "From request to last token.", _REQUEST_BUCKETS)
        self.stages = Histogram(
            "specdec_round_stage_seconds",
            "Where a round's time went: queue, draft, wire, verify, commit.",
            ("stage",),
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self._usable = Gauge(
            "specdec_replicas_usable", "Replicas that calls may go to.", ("service",), registry=registry
        )
        for reason in Fallback:  # an increase from nothing would be no increase to Prometheus
            self.fallbacks.labels(reason.name.lower())

    def watch(self, fleet: Fleet) -> None:
        """Show how many replicas of a fleet can be used, at any time; nothing of a service that none is named of."""
        for replicas in (fleet.targets, fleet.drafts):
            if replicas.places:
                self._usable.labels(replicas.service).set_function(partial(_count_usable, replicas))


class Measurement:
    """What one answer adds to the metrics."""

    def __init__(self, metrics: Metrics, session: Session, started: float) -> None:
        """Begin.

        Args:
            metrics: to add to.
            session: the answer's.
            started: ``time.monotonic()`` when the request came.
        """
        self._metrics = metrics
        self._started = started
        self._first = 0.0
        self._first_tokens = 0
        self._tokens = 0
        if session.usage.rounds == 0:  # not when an answer is resumed
            metrics.prompt_tokens.inc(session.prompt_length)

    def observe(self, event: Event) -> None:
        """Count an event that is about to be shown; one that repeats what was committed before counts for nothing."""
        if event.round is None:
            return
        metrics, drafted = self._metrics, event.round.drafted
        metrics.rounds.inc()
        metrics.gamma.observe(drafted.gamma)
        metrics.generation_tokens.inc(len(event.token_ids))
        metrics.residual_zero.inc(event.round.verdict.residual_zero)
        if drafted.fallback:
            metrics.fallbacks.labels(drafted.fallback.name.lower()).inc()
        if drafted.gamma:
            self._speculation(drafted.gamma, min(event.round.verdict.accept_index, len(event.token_ids)))
        for stage, seconds in _stages(event.round):
            metrics.stages.labels(stage).observe(seconds)
        metrics.stages.labels("commit").observe(event.commit_seconds)
        self._times(event)

    def _speculation(self, gamma: int, accepted: int) -> None:
        self._metrics.drafts.inc()
        self._metrics.draft_tokens.inc(gamma)
        self._metrics.accepted_tokens.inc(accepted)
        for position in range(accepted):
            self._metrics.accepted_per_position.labels(str(position)).inc()

    def _times(self, event: Event) -> None:
        now = time.monotonic()
        self._tokens += len(event.token_ids)
        if not self._first:
            self._first, self._first_tokens = now, self._tokens
            self._metrics.first_token.observe(now - self._started)
        if event.ending is None:
            return
        self._metrics.request.observe(now - self._started)
        self._metrics.finished.labels(event.ending.reason.name.lower()).inc()
        later = self._tokens - self._first_tokens
        if later:
            self._metrics.per_token.observe((now - self._first) / later)


def _count_usable(replicas: Replicas) -> float:
    return len(replicas.usable())


def _stages(round_: Round) -> Iterator[tuple[str, float]]:
    """Split the calls of a round.

    Yields:
        stage and seconds: "draft" where the draft was asked and "verify", in passes and in choosing tokens; "queue",
        before the first pass; "wire", all that is left of the calls.
    """
    calls: dict[str, Drafted | Verdict] = {"draft": round_.drafted, "verify": round_.verdict}
    queue = wire = 0.0
    for stage, call in calls.items():
        if not call.seconds:
            continue
        timings = call.timings or common_pb2.ServerTimings()
        waited = timings.queue.ToTimedelta().total_seconds()
        worked = worked_seconds(timings)
        queue += waited
        wire += max(0.0, call.seconds - waited - worked)
        yield stage, worked
    yield "queue", queue
    yield "wire", wire
