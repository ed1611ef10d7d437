"""Domain values to messages and back: the only codec.

Decoding checks the structure of what arrived (presence, sizes, ranges that no model is needed for) and names the field
at fault; it is called by the servicers. Whether a proposal was drawn as it says is for ``specdec.verification``.
Nothing here computes on probabilities: the float32 values of a draft distribution cross bit for bit.
"""

import math
import re
from array import array
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from specdec.errors import InvalidParameter, InvalidProposal
from specdec.fence import Fence
from specdec.parameters import DEFAULT_VERIFICATION, SamplingParams, Verification
from specdec.prefix import DIGEST_BYTES, CommittedPrefix
from specdec.proposal import Proposal, SparseDistribution
from specdec.v1 import common_pb2

SUM_TOLERANCE = 1e-4  # how far the probabilities of a draft distribution may be from summing to 1

MAX_COUNTER = 2**53 - 1  # what the store's scripts, which count in float64, can still raise by one exactly

SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_OWNER = re.compile(r"[0-9A-Fa-f]{32}")
_NANOS = 10**9
_VERIFICATIONS = {
    Verification.TOKEN: common_pb2.VERIFICATION_TOKEN,
    Verification.BLOCK: common_pb2.VERIFICATION_BLOCK,
    Verification.COUPLED: common_pb2.VERIFICATION_COUPLED,
}

# Fields of SamplingParams that are one value and always set between the services.
_RESOLVED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_new_tokens",
    "min_new_tokens",
    "ignore_eos",
)


def params_to_message(params: SamplingParams) -> common_pb2.SamplingParams:
    """Set every field, zeros too; ``logprobs`` stays unset when none are wanted."""
    message = common_pb2.SamplingParams(
        **{name: getattr(params, name) for name in _RESOLVED},
        logit_bias=params.logit_bias,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
    )
    if params.logprobs is not None:
        message.logprobs = params.logprobs
    return message


def params_from_message(message: common_pb2.SamplingParams) -> SamplingParams:
    """Read resolved parameters.

    Raises:
        InvalidParameter: a field is unset or out of range.
    """
    for name in _RESOLVED:
        _require(message.HasField(name), f"sampling_params.{name}", "must be set")
    return SamplingParams(
        **{name: getattr(message, name) for name in _RESOLVED},
        logit_bias=dict(message.logit_bias),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )


def check_session_id(session_id: str, field: str = "session_id") -> str:
    """Return a session id that is well formed.

    Args:
        session_id: what arrived.
        field: path to name in the error.

    Raises:
        InvalidParameter: it is empty, too long or has other characters.
    """
    well_formed = SESSION_ID.fullmatch(session_id) is not None
    _require(well_formed, field, "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")
    return session_id


def fence_to_message(fence: Fence) -> common_pb2.Fence:
    """Write a fence."""
    return common_pb2.Fence(counter=fence.counter, owner=fence.owner)


def fence_from_message(message: common_pb2.Fence, field: str = "fence") -> Fence:
    """Read a fence.

    Args:
        message: what arrived; a missing one reads as an empty one.
        field: path to name in the error.

    Raises:
        InvalidParameter: it is missing or malformed.
    """
    _require(message.counter > 0 or message.owner != "", field, "must be set")
    _require(0 < message.counter <= MAX_COUNTER, f"{field}.counter", f"must be 1 to {MAX_COUNTER}")
    _require(_OWNER.fullmatch(message.owner) is not None, f"{field}.owner", "must be 32 hexadecimal digits")
    return Fence(message.counter, message.owner)


def prefix_to_message(prefix: CommittedPrefix) -> common_pb2.CommittedPrefix:
    """Write the committed tokens a call stands on."""
    return common_pb2.CommittedPrefix(
        session_id=prefix.session_id,
        fence=fence_to_message(prefix.fence),
        start=prefix.start,
        prefix_digest=prefix.prefix_digest,
        tokens=prefix.tokens,
        prompt_length=prefix.prompt_length,
    )


def prefix_from_message(message: common_pb2.CommittedPrefix) -> CommittedPrefix:
    """Read the committed tokens a call stands on.

    Raises:
        InvalidParameter: a field is missing or malformed.
    """
    prefix = CommittedPrefix(
        session_id=check_session_id(message.session_id, "prefix.session_id"),
        fence=fence_from_message(message.fence, "prefix.fence"),
        start=message.start,
        prefix_digest=message.prefix_digest,
        tokens=tuple(message.tokens),
        prompt_length=message.prompt_length,
    )
    _require(len(prefix.prefix_digest) == DIGEST_BYTES, "prefix.prefix_digest", f"must be {DIGEST_BYTES} bytes")
    _require(prefix.base_length >= 1, "prefix.tokens", "must make at least one committed token with prefix.start")
    in_range = 1 <= prefix.prompt_length <= prefix.base_length
    _require(in_range, "prefix.prompt_length", f"must be 1 to the base length {prefix.base_length}")
    return prefix


def proposal_to_message(proposal: Proposal) -> common_pb2.Proposal:
    """Write a proposal.

    Raises:
        ValueError: a probability is not a float32 value; rounding it here would bias the output.
    """
    return common_pb2.Proposal(
        draft_tokens=proposal.draft_tokens,
        draft_distributions=[_distribution_to_message(each) for each in proposal.draft_distributions],
    )


def proposal_from_message(message: common_pb2.Proposal, verification: Verification) -> Proposal:
    """Read a proposal and check its structure.

    Args:
        message: what arrived.
        verification: what it was drawn for; decides whether distributions belong to it.

    Raises:
        InvalidProposal: lengths disagree, an id occurs twice in a distribution, or probabilities are not positive
            numbers that sum to 1 within 1e-4.
    """
    expected = 0 if verification is Verification.COUPLED else len(message.draft_tokens)
    if len(message.draft_distributions) != expected:
        rule = f"must be {expected} for {len(message.draft_tokens)} draft tokens and {verification.name}"
        raise _invalid_proposal("proposal.draft_distributions", rule)
    return Proposal(
        draft_tokens=tuple(message.draft_tokens),
        draft_distributions=tuple(
            _distribution_from_message(each, f"proposal.draft_distributions[{index}]")
            for index, each in enumerate(message.draft_distributions)
        ),
    )


def verification_to_message(verification: Verification) -> common_pb2.Verification:
    """Write the way of verification."""
    return _VERIFICATIONS[verification]


def verification_from_message(value: int, field: str = "verification") -> Verification:
    """Read the way of verification; unspecified is the default.

    Args:
        value: number of the enum.
        field: path to name in the error.

    Raises:
        InvalidParameter: the number is none of the enum's.
    """
    if value == common_pb2.VERIFICATION_UNSPECIFIED:
        return DEFAULT_VERIFICATION
    for verification, number in _VERIFICATIONS.items():
        if number == value:
            return verification
    raise InvalidParameter(f"{field} has no value {value}", field=field)


def bounds_from_message(values: Sequence[float], field: str = "min_survival") -> tuple[float, ...]:
    """Read how likely draft tokens must be to stand.

    Raises:
        InvalidParameter: one is no chance.
    """
    _require(all(0.0 <= value <= 1.0 for value in values), field, "must be between 0 and 1")
    return tuple(values)


def duration(seconds: float) -> Duration:
    """Write a time span of at least 0 seconds, rounded to nanoseconds."""
    whole, nanos = divmod(round(seconds * _NANOS), _NANOS)
    return Duration(seconds=whole, nanos=nanos)


def _distribution_to_message(distribution: SparseDistribution) -> common_pb2.SparseDistribution:
    if tuple(array("f", distribution.probabilities)) != tuple(distribution.probabilities):
        raise ValueError("draft probabilities must be float32 values")
    return common_pb2.SparseDistribution(token_ids=distribution.token_ids, probabilities=distribution.probabilities)


def _distribution_from_message(message: common_pb2.SparseDistribution, field: str) -> SparseDistribution:
    token_ids, probabilities = tuple(message.token_ids), tuple(message.probabilities)
    if not token_ids:
        raise _invalid_proposal(f"{field}.token_ids", "must not be empty")
    if len(set(token_ids)) != len(token_ids):
        raise _invalid_proposal(f"{field}.token_ids", "must not repeat an id")
    if len(probabilities) != len(token_ids):
        raise _invalid_proposal(f"{field}.probabilities", f"must be {len(token_ids)}, one a token id")
    if not all(value > 0 for value in probabilities):  # not min(): NaN compares false
        raise _invalid_proposal(f"{field}.probabilities", "must be numbers above 0")
    if abs(math.fsum(probabilities) - 1) > SUM_TOLERANCE:
        raise _invalid_proposal(f"{field}.probabilities", f"must sum to 1 within {SUM_TOLERANCE:g}")
    return SparseDistribution(token_ids, probabilities)


def _invalid_proposal(field: str, rule: str) -> InvalidProposal:
    return InvalidProposal(f"{field} {rule}", field=field)


def _require(condition: bool, field: str, rule: str) -> None:  # noqa: FBT001
    if not condition:
        raise InvalidParameter(f"{field} {rule}", field=field)
