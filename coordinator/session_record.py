"""A session as the fields of the stored hash, and back: text and JSON, versioned by ``schema``.

The tokens and their sources lie in strings of their own; the fence and the lease are written by the scripts alone.
"""

import json
from dataclasses import fields
from typing import Any

from coordinator.session import FinishReason, Session, SessionState, Speculation, TokenSource, Usage
from specdec.errors import DataLost, SessionNotFound, SpecdecError
from specdec.fence import Fence
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import tokens_of

SCHEMA = "1"


def round_fields(session: Session, state: SessionState) -> list[str]:
    """Return names and values of what can change with every commit."""
    record = {
        "state": state.name,
        "finish": session.finish_reason.name if session.finish_reason else "",
        "matched_stop": json.dumps(session.matched_stop),
        "usage": json.dumps(_values(session.usage)),
        "replicas": json.dumps(session.replicas),
    }
    return _flat(record)


def answer_fields(session: Session) -> list[str]:
    """Return names and values of what stays the same for the whole of an answer."""
    parameters = _values(session.params)
    seed = parameters.pop("seed")
    speculation = {"gamma": session.speculation.gamma, "verification": session.speculation.verification.name}
    record = {
        "schema": SCHEMA,
        "principal": session.principal,
        "prompt_length": str(session.prompt_length),
        "seed": str(seed),
        "parameters": json.dumps(parameters),
        "speculation": json.dumps(speculation),
        "model_fingerprint": session.model_fingerprint,
    }
    return _flat(record)


def from_reply(session_id: str, reply: list[Any]) -> Session:
    """Put a session together from what the scripts READ and TAKE answer.

    Raises:
        SessionNotFound: the session is unknown, or another principal's.
        DataLost: its three keys do not belong together, as when one of them was evicted.
        SpecdecError: it has another schema.
    """
    status, *content = reply
    if status == b"NOT_FOUND":
        raise not_found(session_id)
    if status == b"DAMAGED":
        raise _damaged(session_id)
    pairs, tokens, sources, leased = content
    record = {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    if record["schema"] != SCHEMA:
        raise SpecdecError(f"The session is stored with schema {record['schema']}; this coordinator reads {SCHEMA}.")
    if not len(tokens) == 4 * len(sources) == 4 * int(record["length"]):
        raise _damaged(session_id)
    return Session(
        session_id=session_id,
        principal=record["principal"],
        fence=Fence(int(record["fence_counter"]), record["fence_owner"]),
        tokens=tokens_of(tokens),
        sources=bytearray(TokenSource(source) for source in sources),
        prompt_length=int(record["prompt_length"]),
        params=_params(json.loads(record["parameters"]), int(record["seed"])),
        speculation=_speculation(json.loads(record["speculation"])),
        model_fingerprint=record["model_fingerprint"],
        replicas=json.loads(record["replicas"]),
        state=_state(record["state"], leased=bool(leased)),
        usage=Usage(**json.loads(record["usage"])),
        finish_reason=FinishReason[record["finish"]] if record["finish"] else None,
        matched_stop=json.loads(record["matched_stop"]),
        stored_length=len(sources),
    )


def not_found(session_id: str) -> SessionNotFound:
    """Return the error for a session that is unknown, or another principal's: the two must look alike."""
    return SessionNotFound(f"There is no session {session_id}.")


def _damaged(session_id: str) -> DataLost:
    return DataLost(f"The store has lost part of session {session_id}.")


def _flat(record: dict[str, str]) -> list[str]:
    return [part for pair in record.items() for part in pair]


def _state(stored: str, *, leased: bool) -> SessionState:
    """The lease tells whether an unfinished answer is being worked on: whoever died could not write so."""
    if stored == SessionState.FINISHED.name:
        return SessionState.FINISHED
    return SessionState.RUNNING if leased else SessionState.INTERRUPTED


def _values(value: SamplingParams | Usage) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _params(values: dict[str, Any], seed: int) -> SamplingParams:
    values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}  # JSON keys are strings
    values["stop"] = tuple(values["stop"])
    values["stop_token_ids"] = tuple(values["stop_token_ids"])
    return SamplingParams(**values, seed=seed)


def _speculation(values: dict[str, Any]) -> Speculation:
    return Speculation(values["gamma"], Verification[values["verification"]])
