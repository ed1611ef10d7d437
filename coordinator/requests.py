"""What a GenerateRequest asks for: its rules, its parameters, its tokens. Every error names the field at fault."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.session import Session, Speculation
from coordinator.tokenizer import Tokenizer
from specdec.errors import DataLost, FingerprintMismatch, InvalidParameter, LengthMismatch, SpecdecError
from specdec.parameters import MAX_BIASED_TOKENS, MAX_STOP_TOKEN_IDS, MAX_STOPS, SamplingParams
from specdec.v1 import common_pb2, generation_pb2
from specdec.wire import check_session_id, verification_from_message

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_INPUTS = ("prompt", "token_ids", "messages")
MAX_MESSAGES = 16384
_MOST = {"stop": MAX_STOPS, "stop_token_ids": MAX_STOP_TOKEN_IDS, "logit_bias": MAX_BIASED_TOKENS}
_MULTIPLE = ("logit_bias", "stop", "stop_token_ids")  # fields without presence: empty means unset


@dataclass(frozen=True, slots=True)
class Served:
    """What requests are resolved against.

    Attributes:
        model: the target's.
        tokenizer: the target's.
        max_gamma: draft tokens a request may ask for.
        max_new_tokens: where neither the request nor the model says it.
    """

    model: common_pb2.ModelInfo
    tokenizer: Tokenizer
    max_gamma: int
    max_new_tokens: int


def check_counts(request: Any) -> None:
    """Refuse a GenerateRequest of more parts than any may have, by their numbers alone.

    A part of two bytes takes some sixty once it is read, and as many again in Python: nothing may be copied before.
    Requests of other types have no parts.

    Raises:
        InvalidParameter: it has.
    """
    if not isinstance(request, generation_pb2.GenerateRequest):
        return
    for name, most in _MOST.items():
        if len(getattr(request.sampling_params, name)) > most:
            field = f"sampling_params.{name}"
            raise InvalidParameter(f"{field} holds at most {most}", field=field)
    if len(request.messages) > MAX_MESSAGES:
        raise InvalidParameter(f"messages holds at most {MAX_MESSAGES}", field="messages")


def check_request(request: generation_pb2.GenerateRequest) -> str:
    """Check what can be checked without the session.

    Returns:
        The field that holds the input; empty when a stream is resumed.

    Raises:
        InvalidParameter: inputs are missing or too many, or do not go with ``resume_from``.
    """
    if request.session_id:
        check_session_id(request.session_id)
    given = [name for name in _INPUTS if getattr(request, name)]
    if request.HasField("resume_from"):
        _check_resume(request, given)
        return ""
    if len(given) != 1:
        raise InvalidParameter(
            f"exactly one of prompt, token_ids and messages is needed, not {' and '.join(given) or 'none'}",
            field=given[1] if given else "prompt",
        )
    return given[0]


def resolve_params(request: generation_pb2.GenerateRequest, served: Served, seed: int | None = None) -> SamplingParams:
    """Resolve the sampling parameters: the request's, else the target's defaults, else the built-in ones.

    Args:
        request: what arrived.
        served: whose defaults count.
        seed: the session's, which stays when the request names none; None for a new session, which gets a fresh one.

    Raises:
        InvalidParameter: a value is out of range.
    """
    values: dict[str, Any] = {"max_new_tokens": served.max_new_tokens, "seed": secrets.randbits(64)}
    values |= _set_fields(served.model.default_sampling_params)
    if seed is not None:
        values["seed"] = seed
    values |= _set_fields(request.sampling_params)
    params = SamplingParams(**values)
    params.check_vocabulary(served.model.vocabulary_size, served.model.eos_token_ids)
    return params


def resolve_speculation(request: generation_pb2.GenerateRequest, max_gamma: int) -> Speculation:
    """Resolve how to speculate.

    Raises:
        InvalidParameter: gamma is above the maximum, or the verification is none of the enum's.
    """
    asked = request.speculation
    gamma = asked.gamma if asked.HasField("gamma") else None
    if gamma is not None and gamma > max_gamma:
        raise InvalidParameter(f"gamma is at most {max_gamma}", field="speculation.gamma")
    return Speculation(gamma, verification_from_message(asked.verification, "speculation.verification"))


def encode_input(request: generation_pb2.GenerateRequest, served: Served, committed: Sequence[int]) -> list[int]:
    """Return the token ids of the input, to follow the committed ones.

    Raises:
        InvalidParameter: it is empty, names a token that is not there, leaves no room for an answer, or is nothing that
            the tokenizer or the chat template can take.
    """
    field = check_request(request)
    _check_size(request, field, served)
    try:
        tokens = _encode(request, field, served.tokenizer, committed)
    except SpecdecError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a library says of a text may quote it, and would be logged
        logger.warning("input not encoded", field=field, why=type(error).__name__)
        raise InvalidParameter(f"{field} cannot be encoded", field=field) from None
    if not tokens:
        raise InvalidParameter(f"{field} is empty", field=field)
    size, context = served.model.vocabulary_size, served.model.context_length
    length = len(committed) + len(tokens)
    if length >= context:
        raise InvalidParameter(
            f"{field} makes {length} tokens and leaves no room for an answer in a context of {context}", field=field
        )
    outside = next((token for token in tokens if token >= size), None)
    if outside is not None:
        raise InvalidParameter(f"token id {outside} is not below {size}", field=field)
    return tokens


def check_session(request: generation_pb2.GenerateRequest, session: Session | None, served: Served) -> None:
    """Check the request against the session it names, or against there being none.

    Raises:
        LengthMismatch: the session is not as long as the client expects.
        FingerprintMismatch: another model made it.
        DataLost: the client has tokens of the answer that the session does not hold.
    """
    length = session.length if session else 0
    resumes = request.HasField("resume_from")
    if request.HasField("expected_length") and not resumes and request.expected_length != length:
        raise LengthMismatch(
            f"the session holds {length} committed tokens, not {request.expected_length}",
            field="expected_length",
            metadata={"length": str(length)},
        )
    if session and session.model_fingerprint != served.model.model_fingerprint:
        raise FingerprintMismatch("the session was made by another model; start a new one", field="session_id")
    if session and resumes:
        _check_answer(request, session)


def _check_answer(request: generation_pb2.GenerateRequest, session: Session) -> None:
    """Check that the session's latest answer is the client's and holds what the client has: the store may be older."""
    if request.HasField("expected_length") and session.prompt_length <= request.expected_length:
        raise DataLost(f"the answer after {request.expected_length} tokens is not there", field="expected_length")
    if request.resume_from > len(session.answer):
        held = f"the answer holds {len(session.answer)} committed tokens"
        raise DataLost(f"{held}, fewer than the {request.resume_from} the client has", field="resume_from")


def _check_resume(request: generation_pb2.GenerateRequest, given: list[str]) -> None:
    if not request.session_id:
        raise InvalidParameter("resume_from needs the session_id", field="session_id")
    fixed = [name for name in ("sampling_params", "speculation") if request.HasField(name)]
    for name in given + fixed:
        raise InvalidParameter(f"resume_from goes on with the answer as it was asked for, without {name}", field=name)


def _set_fields(params: common_pb2.SamplingParams) -> dict[str, Any]:
    """Return the fields that are set, as SamplingParams takes them."""
    values = {field.name: value for field, value in params.ListFields() if field.name not in _MULTIPLE}
    values |= {name: tuple(getattr(params, name)) for name in ("stop", "stop_token_ids") if getattr(params, name)}
    return values | ({"logit_bias": dict(params.logit_bias)} if params.logit_bias else {})


def _check_size(request: generation_pb2.GenerateRequest, field: str, served: Served) -> None:
    """Refuse what cannot fit without the work of encoding it: no token stands for more bytes than the longest."""
    context = served.model.context_length
    least = max(len(request.token_ids), len(request.messages))
    if least <= context:  # the messages are so few that they can be looked at one by one
        texts = [request.prompt, *(text for message in request.messages for text in (message.role, message.content))]
        least = sum(len(text.encode()) for text in texts) // served.tokenizer.longest_token
    if least > context:
        raise InvalidParameter(f"{field} is longer than a context of {context} tokens can hold", field=field)


def _encode(
    request: generation_pb2.GenerateRequest, field: str, tokenizer: Tokenizer, committed: Sequence[int]
) -> list[int]:
    if field == "token_ids":
        return list(request.token_ids)
    if field == "messages":
        for index, message in enumerate(request.messages):
            if not message.role:
                raise InvalidParameter("a message needs a role", field=f"messages[{index}].role")
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        return tokenizer.encode_chat(messages, committed)
    return tokenizer.encode(request.prompt, begin=not committed)
