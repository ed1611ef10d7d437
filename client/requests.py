"""Flags to messages of the contract."""

import secrets

import typer
from google.protobuf.message import Message

from client.options import AnswerOptions
from specdec.v1 import common_pb2, generation_pb2

_COPIED = (
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
    "logprobs",
)


def new_session_id() -> str:
    """Make an id of 128 random bits."""
    return secrets.token_hex(16)


def addresses(options: AnswerOptions) -> list[str]:
    """Split the comma list.

    Raises:
        typer.BadParameter: it names no address.
    """
    found = [part.strip() for part in options.address.split(",") if part.strip()]
    if not found:
        raise typer.BadParameter("names no address", param_hint="--address")
    return found


def base_request(options: AnswerOptions, session_id: str, expected_length: int) -> generation_pb2.GenerateRequest:
    """Build a request that lacks only its input.

    Args:
        options: the command's flags; what is None stays unset.
        session_id: chosen by the client, so that the request can be made again.
        expected_length: committed tokens the session holds, 0 for a new one.

    Raises:
        typer.BadParameter: a --logit-bias is not ID=X, a number does not fit its field, or text is not valid Unicode.
    """
    sampling, speculation = common_pb2.SamplingParams(), generation_pb2.SpeculationParams()
    for name in _COPIED:
        if getattr(options, name) is not None:
            _set(sampling, name, getattr(options, name))
    for entry in options.logit_bias or []:
        token, bias = _bias(entry)
        sampling.logit_bias[token] = bias
    sampling.stop.extend(valid_text(stop, "--stop") for stop in options.stop or [])
    for token in options.stop_token_id or []:
        sampling.stop_token_ids.append(_token_id(token, "--stop-token-id"))
    if options.ignore_eos:
        sampling.ignore_eos = True
    if options.gamma is not None:
        _set(speculation, "gamma", options.gamma)
    if options.verification is not None:
        verification = common_pb2.Verification.Value(f"VERIFICATION_{options.verification.name}")
        _set(speculation, "verification", verification)
    return generation_pb2.GenerateRequest(
        session_id=valid_text(session_id, "--session-id"),
        sampling_params=sampling,
        speculation=speculation,
        expected_length=expected_length,
    )


def plain_request(session: generation_pb2.GetSessionResponse, session_id: str) -> generation_pb2.GenerateRequest:
    """Build the request that a session answered last, with the same tokens, parameters and seed but no speculation.

    Args:
        session: with its latest answer.
        session_id: of the new session that shall answer again.
    """
    speculation = generation_pb2.SpeculationParams(gamma=0, verification=session.speculation.verification)
    return generation_pb2.GenerateRequest(
        session_id=session_id,
        token_ids=session.token_ids[: session.prompt_length],
        sampling_params=session.sampling_params,
        speculation=speculation,
        expected_length=0,
    )


def valid_text(text: str, name: str) -> str:
    """Give the text back.

    Raises:
        typer.BadParameter: it holds bytes that were not UTF-8 on the command line.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter("is not valid UTF-8", param_hint=name) from error
    return text


def _set(message: Message, name: str, value: float) -> None:
    try:
        setattr(message, name, value)
    except ValueError as error:  # negative, or too large for the field; finer limits are the server's
        raise typer.BadParameter(f"{value} is out of range", param_hint=f"--{name.replace('_', '-')}") from error


def _token_id(token: int, flag: str) -> int:
    if not 0 <= token < 2**32:
        raise typer.BadParameter(f"{token} is not a token id", param_hint=flag)
    return token


def _bias(entry: str) -> tuple[int, float]:
    token, _, bias = entry.partition("=")
    try:
        pair = int(token), float(bias)
    except ValueError as error:
        raise typer.BadParameter(f"{entry!r} is not ID=X", param_hint="--logit-bias") from error
    return _token_id(pair[0], "--logit-bias"), pair[1]
