"""TargetService over gRPC: messages in, a work for the engine, messages out."""

from typing import Any

from opentelemetry import trace
from prometheus_client import CollectorRegistry

from specdec.model.language_model import LanguageModel
from specdec.model.ranks import ALONE, Ranks
from specdec.serving import names
from specdec.serving.model_server import ModelServicer, answer_timings, load_served_model
from specdec.v1 import common_pb2, target_pb2, target_pb2_grpc
from specdec.wire import params_from_message, prefix_from_message, proposal_from_message, verification_from_message
from target_service.settings import TargetSettings
from target_service.verifying import Decision, TargetLimits, Verify


class TargetServicer(ModelServicer, target_pb2_grpc.TargetServiceServicer):
    """Verifies."""

    def __init__(self, settings: TargetSettings, registry: CollectorRegistry, ranks: Ranks = ALONE) -> None:
        """Prepare to answer NOT_READY, in the process that leads all that hold the model together."""
        super().__init__(settings, registry)
        self._ranks = ranks

    def load(self) -> LanguageModel:
        """Load the model, or this process's share of it."""
        return load_served_model(self.settings, self._ranks)

    async def Verify(self, request: target_pb2.VerifyRequest, context: Any) -> target_pb2.VerifyResponse:  # noqa: N802, ARG002
        """Decide how many draft tokens stand and draw the one token the target adds."""
        self.check_gamma(len(request.proposal.draft_tokens), "proposal.draft_tokens")
        self.check_length(request.prefix)
        verification = verification_from_message(request.verification)
        call = Verify(
            prefix=prefix_from_message(request.prefix),
            params=params_from_message(request.sampling_params),
            verification=verification,
            proposal=proposal_from_message(request.proposal, verification),
            limits=self._limits(),
        )
        answer = await self.engine.run(call)
        decision: Decision = answer.result
        _describe(call, decision)
        return target_pb2.VerifyResponse(
            accept_index=decision.accept_index,
            next_token=decision.next_token,
            logprobs=[
                common_pb2.TokenLogprobs(
                    token_id=each.token_id,
                    logprob=each.logprob,
                    top=[common_pb2.TopLogprob(token_id=token, logprob=value) for token, value in each.top],
                )
                for each in decision.logprobs
            ],
            cached_length=answer.cached_length,
            reused_length=answer.reused_length,
            residual_zero=decision.residual_zero,
            timings=answer_timings(answer),
        )

    VerifyStream = Verify  # message by message: see specdec.serving.interceptor

    def _limits(self) -> TargetLimits:
        return TargetLimits(
            vocabulary_size=self.model.vocabulary_size,
            context_length=self.model.context_length,
            end_token_ids=self.model.description.eos_token_ids,
        )


def _describe(call: Verify, decision: Decision) -> None:
    """Write onto the current span what was verified and what became of it."""
    gamma = call.proposal.gamma
    trace.get_current_span().set_attributes(
        {
            names.SESSION: call.prefix.session_id,
            names.VERIFICATION: call.verification.name,
            names.GAMMA: gamma,
            names.ACCEPT_INDEX: decision.accept_index,
            names.TRIMMED_TOKENS: gamma - decision.accept_index,
        }
    )
