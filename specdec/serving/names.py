"""Names of spans and of their attributes, each in one place.

``rpc.*``, ``error.type``, ``server.*`` and ``exception.type`` are OpenTelemetry's stable conventions (1.45) and
``gen_ai.*`` its development ones, written out because the Python package marks those as moved. There is no convention
for speculative decoding: the rest is our own, under ``specdec.``. No attribute ever holds prompt or answer text.
"""

from typing import Final

SPAN_GENERATE: Final = "generate"
SPAN_SESSION_OPEN: Final = "session.open"
SPAN_ROUND: Final = "round"
SPAN_COMMIT: Final = "session.commit"
SPAN_FORWARD: Final = "forward"

RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

SESSION: Final = "gen_ai.conversation.id"
ERROR_REASON: Final = "specdec.error.reason"
ROUND: Final = "specdec.round"  # counts from 0 within the answer
GAMMA: Final = "specdec.gamma"
ACCEPT_INDEX: Final = "specdec.accept_index"
BASE_LENGTH: Final = "specdec.base_length"
SOURCES: Final = "specdec.sources"
FALLBACK: Final = "specdec.fallback"
VERIFICATION: Final = "specdec.verification"
TRIMMED_TOKENS: Final = "specdec.trimmed_tokens"  # rejected draft tokens, cut from the cache
CACHED_TOKENS: Final = "specdec.cached_tokens"
FED_TOKENS: Final = "specdec.fed_tokens"
BATCH_SIZE: Final = "specdec.batch_size"
AHEAD_HIT: Final = "specdec.ahead_hit"  # whether draft tokens of the call were there when it came
AHEAD_TOKENS: Final = "specdec.ahead_tokens"  # how many
PASSES: Final = "specdec.passes"
QUEUE_SECONDS: Final = "specdec.queue_seconds"
FORWARD_SECONDS: Final = "specdec.forward_seconds"
SAMPLING_SECONDS: Final = "specdec.sampling_seconds"
ROUNDS: Final = "specdec.rounds"
SPEC_ROUNDS: Final = "specdec.spec_rounds"
SPEC_DRAFT_TOKENS: Final = "specdec.spec_draft_tokens"
SPEC_ACCEPTED_TOKENS: Final = "specdec.spec_accepted_tokens"
