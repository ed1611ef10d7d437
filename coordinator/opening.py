"""Opens the session that a request is about: a new one, the next answer of one, or the rest of an answer."""

import asyncio
import secrets

from coordinator.encoding import Encoding
from coordinator.requests import Served, check_session, resolve_params, resolve_speculation
from coordinator.session import Session, SessionState, TokenSource, Usage
from coordinator.session_store import SessionStore
from specdec.errors import PeerUnavailable, SessionBusy, SessionNotFound
from specdec.fence import Fence
from specdec.v1 import generation_pb2


async def open_session(
    request: generation_pb2.GenerateRequest, principal: str, served: Served, store: SessionStore, encoding: Encoding
) -> Session:
    """Open the session of a request that ``check_request`` has passed.

    Returns:
        The session, claimed and with its prompt committed; not claimed when the answer to be resumed is complete.

    Raises:
        SpecdecError: the request cannot be served; the session is as it was.
    """
    if request.HasField("resume_from"):
        return await _resume(request, principal, served, store)
    try:
        found = await store.read(request.session_id, principal) if request.session_id else None
    except SessionNotFound:
        found = None
    check_session(request, found, served)
    if found is None:
        return await _create(request, principal, served, store, encoding)
    return await _continue(request, found, served, store, encoding)


async def _create(
    request: generation_pb2.GenerateRequest, principal: str, served: Served, store: SessionStore, encoding: Encoding
) -> Session:
    params = resolve_params(request, served)
    speculation = resolve_speculation(request, served.max_gamma)
    tokens = await encoding.encode(request, served, [])
    session = Session(
        session_id=request.session_id or secrets.token_hex(16),
        principal=principal,
        fence=Fence(1, secrets.token_hex(16)),
        tokens=tokens,
        sources=bytearray([TokenSource.PROMPT] * len(tokens)),
        prompt_length=len(tokens),
        params=params,
        speculation=speculation,
        model_fingerprint=served.model.model_fingerprint,
        usage=Usage(prompt_tokens=len(tokens)),
    )
    try:
        await store.create(session)
    except (asyncio.CancelledError, PeerUnavailable):  # it may have been created
        store.withdraw(session)
        raise
    return session


async def _continue(
    request: generation_pb2.GenerateRequest, found: Session, served: Served, store: SessionStore, encoding: Encoding
) -> Session:
    params = resolve_params(request, served, found.params.seed)
    speculation = resolve_speculation(request, served.max_gamma)
    if found.state is SessionState.RUNNING:
        raise SessionBusy(f"session {found.session_id} is running")
    tokens = await encoding.encode(request, served, found.tokens)
    session = await store.take(found.session_id, found.principal, secrets.token_hex(16))
    try:
        if session.length != found.length:
            raise SessionBusy(f"session {found.session_id} was continued by another request meanwhile")
        session.params, session.speculation = params, speculation
        await store.begin_answer(session, tokens)
    except BaseException:
        await store.leave(session)
        raise
    return session


async def _resume(
    request: generation_pb2.GenerateRequest, principal: str, served: Served, store: SessionStore
) -> Session:
    found = await store.read(request.session_id, principal)
    check_session(request, found, served)
    if found.finish_reason is not None:
        return found
    session = await store.resume(request.session_id, principal, secrets.token_hex(16))
    if session.finish_reason is not None:  # finished meanwhile
        await store.leave(session)
    return session
