"""DraftService over gRPC: messages in, a work for the engine, messages out."""

from typing import Any

from opentelemetry import trace

from draft_service.drafting import Draft, DraftLimits
from draft_service.settings import DraftSettings
from specdec.proposal import Proposal
from specdec.serving import names
from specdec.serving.model_server import ModelServicer, answer_timings
from specdec.v1 import draft_pb2, draft_pb2_grpc
from specdec.wire import params_from_message, prefix_from_message, proposal_to_message, verification_from_message


class DraftServicer(ModelServicer, draft_pb2_grpc.DraftServiceServicer):
    """Proposes."""

    settings: DraftSettings

    async def Propose(self, request: draft_pb2.ProposeRequest, context: Any) -> draft_pb2.ProposeResponse:  # noqa: N802, ARG002
        """Draw up to gamma tokens that follow the committed ones."""
        self.check_gamma(request.gamma, "gamma")
        draft = Draft(
            prefix=prefix_from_message(request.prefix),
            params=params_from_message(request.sampling_params),
            gamma=request.gamma,
            verification=verification_from_message(request.verification),
            limits=self._limits(),
        )
        answer = await self.engine.run(draft)
        proposal: Proposal = answer.result
        trace.get_current_span().set_attributes(
            {
                names.SESSION: draft.prefix.session_id,
                names.VERIFICATION: draft.verification.name,
                names.GAMMA: proposal.gamma,
            }
        )
        return draft_pb2.ProposeResponse(
            proposal=proposal_to_message(proposal),
            cached_length=answer.cached_length,
            reused_length=answer.reused_length,
            timings=answer_timings(answer),
        )

    def _limits(self) -> DraftLimits:
        return DraftLimits(
            vocabulary_size=self.model.vocabulary_size,
            context_length=self.model.context_length,
            support_size=self.settings.support_size,
            end_token_ids=self.model.description.eos_token_ids,
        )
