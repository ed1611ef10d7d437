"""What a replica has said it holds of a session, so that a call need not say it again."""

from dataclasses import dataclass, field

from coordinator.replica import Replica
from coordinator.session import Session
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.serving.calls import CallStream
from specdec.v1 import common_pb2
from specdec.wire import prefix_to_message


@dataclass(slots=True)
class Acknowledged:
    """What a replica has said it holds of a session.

    Attributes:
        replica: who; one that comes back at the same address has another channel.
        stream: carries the session's calls to it.
        cached_length: committed tokens, some of which the session may not hold yet: draft tokens just accepted.
        digest: of as many of them as the last call stood on.
    """

    replica: Replica
    stream: CallStream
    cached_length: int = 0
    digest: PrefixDigest = field(default_factory=PrefixDigest)

    def prefix(self, session: Session) -> common_pb2.CommittedPrefix:
        """Name the session's committed tokens from there on."""
        start = min(self.cached_length, session.length)
        if start < self.digest.length:
            self.digest = PrefixDigest()
        self.digest.update(session.tokens[self.digest.length : start])
        tokens = tuple(session.tokens[start:])
        return prefix_to_message(
            CommittedPrefix(
                session.session_id, session.fence, start, self.digest.digest(), tokens, session.prompt_length
            )
        )
