"""Who may call, and as whom."""

from typing import Any

from coordinator.tokens import Tokens
from specdec.errors import Unauthenticated

NOBODY = ""  # whose sessions they are without authentication: the id alone opens them
_SCHEME = "bearer"


class Doors:
    """Lets callers in."""

    def __init__(self, tokens_file: str) -> None:
        """Open the doors.

        Args:
            tokens_file: of the bearer tokens; empty lets everybody in.
        """
        self._tokens = Tokens(tokens_file) if tokens_file else None

    def principal(self, context: Any) -> str:
        """Return whose sessions the caller of a call may reach.

        Raises:
            Unauthenticated: the call bears no valid token; which of the reasons there are is not told.
        """
        if self._tokens is None:
            return NOBODY
        principal = self._tokens.principal_of(_token(context))
        if principal is None:
            raise Unauthenticated("a valid token is needed, as 'authorization: Bearer TOKEN'")
        return principal


def _token(context: Any) -> str:
    """Return the token that a call bears; the empty one, which is nobody's, when there is none or more than one."""
    values = [value for key, value in context.invocation_metadata() if key == "authorization"]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token if scheme.lower() == _SCHEME else ""
