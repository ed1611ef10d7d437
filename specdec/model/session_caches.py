"""All sessions' caches within a budget, and which of them make room for a newcomer."""

import time
from collections.abc import Iterator

from specdec.errors import CacheFull
from specdec.model.language_model import LanguageModel
from specdec.model.session_cache import SessionCache

RETRY_SECONDS = 1.0  # a finished answer frees room at any time


class SessionCaches:
    """Sessions by id, least recently used first.

    A running session is never evicted, and one between two rounds is not either: only what its caller released, or did
    not come back to for ``idle_seconds``.

    Attributes:
        room: tokens set aside for all sessions together. Capacities count, not lengths.
        evictions: sessions that have made room so far.
    """

    def __init__(self, model: LanguageModel, max_sessions: int, cache_tokens: int, idle_seconds: float) -> None:
        """Start empty.

        Args:
            model: makes the caches.
            max_sessions: caches at most.
            cache_tokens: tokens that room may be allocated for, over all caches.
            idle_seconds: after this long without a call a session may be evicted although nobody released it.
        """
        self._model = model
        self._max_sessions = max_sessions
        self._cache_tokens = cache_tokens
        self._idle_seconds = idle_seconds
        self._sessions: dict[str, SessionCache] = {}
        self.room = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionCache]:
        return iter(self._sessions.values())

    @property
    def tokens(self) -> int:
        """Tokens held by all caches together."""
        return sum(session.cache.length for session in self._sessions.values())

    def get(self, session_id: str) -> SessionCache:
        """Return the session's cache, or an empty one that joins only when it reserves room."""
        return self._sessions.get(session_id) or SessionCache(session_id, self._model.new_cache())

    def reserve(self, session: SessionCache, length: int) -> None:
        """Set room aside for a session of ``length`` tokens, evicting others where needed.

        Raises:
            CacheFull: too little could be evicted; nothing has been.
        """
        room = session.cache.capacity_for(length)
        if room > self._cache_tokens:
            raise CacheFull(f"{length} tokens need room for {room}; the whole cache has {self._cache_tokens}")
        newcomer = session.session_id not in self._sessions
        missing = self.room + room - session.room - self._cache_tokens
        self._evict(missing, len(self) + newcomer - self._max_sessions, session)
        self._sessions[session.session_id] = session
        self._set_room(session, room)

    def extend(self, session: SessionCache, length: int) -> bool:
        """Set free room aside for entries that are of use but not needed, ``length`` tokens in all.

        What a cache has once taken stays with its session, so half of the budget is left to those who need it.

        Returns:
            Whether there is the room.
        """
        room = session.cache.capacity_for(length)
        if room > session.room and self.room + room - session.room > self._cache_tokens // 2:
            return False
        self._set_room(session, max(room, session.room))
        return True

    def rest(self, session: SessionCache) -> None:
        """Note that a session's call has ended: it is now the last used one, with room for what it holds, if any."""
        session.running = False
        session.used_at = time.monotonic()
        if self._sessions.pop(session.session_id, None) and session.tokens:
            self._sessions[session.session_id] = session
        self._fit_room(session)

    def give_up(self, session_id: str, keep: int) -> None:
        """Let a session go: its first ``keep`` tokens stay until somebody needs the room, with 0 nothing does."""
        if not keep:
            self.drop(session_id)
        elif session := self._sessions.get(session_id):
            session.give_up(keep)
            self._fit_room(session)

    def drop(self, session_id: str) -> None:
        """Free a session's cache, if there is one."""
        session = self._sessions.pop(session_id, None)
        if session:
            self._set_room(session, 0)

    def _evict(self, tokens: int, sessions: int, newcomer: SessionCache) -> None:
        victims = []
        for session in self._sessions.values():
            if tokens <= 0 and sessions <= 0:
                break
            if session is not newcomer and self._evictable(session):
                victims.append(session.session_id)
                tokens -= session.room
                sessions -= 1
        if tokens > 0 or sessions > 0:
            raise CacheFull("no room that could be taken from a finished session", retry_seconds=RETRY_SECONDS)
        for session_id in victims:
            self.drop(session_id)
        self.evictions += len(victims)

    def _evictable(self, session: SessionCache) -> bool:
        idle = time.monotonic() - session.used_at >= self._idle_seconds
        return not session.running and (session.released or idle)

    def _fit_room(self, session: SessionCache) -> None:
        """Set aside what a resting session needs: tokens that are known can be fed at any time."""
        held = session.session_id in self._sessions
        self._set_room(session, session.cache.capacity_for(len(session.tokens)) if held else 0)

    def _set_room(self, session: SessionCache, room: int) -> None:
        self.room += room - session.room
        session.room = room
