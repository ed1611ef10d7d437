"""DraftService over gRPC: messages in, a work for the engine, messages out."""

from typing import Any

from opentelemetry import trace
from prometheus_client import CollectorRegistry, Gauge

from draft_service.drafting import DraftLimits
from draft_service.foresight import ForesightedDraft
from draft_service.kinds import drafts_of
from draft_service.settings import DraftSettings
from draft_service.survival import Proposed, TrackRecord
from specdec.model.engine import Advance
from specdec.model.language_model import LanguageModel
from specdec.proposal import Proposal
from specdec.serving import names
from specdec.serving.model_server import ModelServicer, answer_timings
from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from specdec.wire import (
    bounds_from_message,
    params_from_message,
    prefix_from_message,
    proposal_to_message,
    verification_from_message,
)


class DraftServicer(ModelServicer, draft_pb2_grpc.DraftServiceServicer):
    """Proposes."""

    settings: DraftSettings

    def __init__(self, settings: DraftSettings, registry: CollectorRegistry) -> None:
        """Prepare to answer NOT_READY."""
        super().__init__(settings, registry)
        self._drafts = drafts_of(settings, registry)
        self._record = TrackRecord(settings.max_sessions)

    def load(self) -> LanguageModel:
        """Load what the settings name."""
        return self._drafts.load()

    def start(self, model: LanguageModel, advance: Advance) -> None:
        """Begin to serve a model."""
        super().start(model, advance)
        if self.settings.ahead_tokens:
            failed = Gauge("specdec_ahead_failed_passes", "Passes ahead that failed.", registry=self._registry)
            failed.set_function(lambda: self.engine.state.failed_passes_ahead)

    async def Propose(self, request: draft_pb2.ProposeRequest, context: Any) -> draft_pb2.ProposeResponse:  # noqa: N802, ARG002
        """Draw up to gamma tokens that follow the committed ones."""
        self.check_gamma(request.gamma, "gamma")
        self.check_length(request.prefix)
        prefix, params = prefix_from_message(request.prefix), params_from_message(request.sampling_params)
        verification = verification_from_message(request.verification)
        bounds = bounds_from_message(request.min_survival)
        stop = self._record.stop(verification, greedy=params.greedy, bounds=bounds)
        draft = self._drafts.make(prefix, params, request.gamma, verification, self._limits(), stop)
        answer = await self.engine.run(draft)
        proposal: Proposal = answer.result
        self._record.learn(prefix)
        self._record.note(prefix.session_id, Proposed(prefix.base_length, proposal.draft_tokens, stop))
        trace.get_current_span().set_attributes(
            {
                names.SESSION: draft.prefix.session_id,
                names.VERIFICATION: draft.verification.name,
                names.GAMMA: proposal.gamma,
            }
        )
        if isinstance(draft, ForesightedDraft) and draft.ahead_tokens is not None:
            found = {names.AHEAD_HIT: draft.ahead_tokens > 0, names.AHEAD_TOKENS: draft.ahead_tokens}
            trace.get_current_span().set_attributes(found)
        return draft_pb2.ProposeResponse(
            proposal=proposal_to_message(proposal),
            cached_length=answer.cached_length,
            reused_length=answer.reused_length,
            timings=answer_timings(answer),
        )

    ProposeStream = Propose  # message by message: see specdec.serving.interceptor

    async def Release(self, request: common_pb2.ReleaseRequest, context: Any) -> common_pb2.ReleaseResponse:  # noqa: N802
        """Give a session's cache up, and with all of it what is kept beside it."""
        response = await super().Release(request, context)
        if not request.keep_length:
            self._drafts.drop(request.session_id)
        return response

    def _limits(self) -> DraftLimits:
        return DraftLimits(
            vocabulary_size=self.model.vocabulary_size,
            context_length=self.model.context_length,
            support_size=self.settings.support_size,
            end_token_ids=self.model.description.eos_token_ids,
        )
