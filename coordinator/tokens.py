"""Bearer tokens: which is whose.

They stand in a file as PRINCIPAL:DIGEST, one a line, the digest being the token's SHA-256 in hexadecimal. So whoever
reads the file cannot call; a token must be random (32 bytes, say), not a password. A principal may have several, so
that a new one can be handed out before the old one goes.

A changed file counts with the next call, and a token that no longer stands there is revoked with it, whatever else is
wrong: a line that says nothing sound is reported and names nobody, an empty file revokes all. At start, where nothing
is revoked and somebody looks, both are refused.
"""

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import structlog

# A file that cannot be read says nothing of any token: it is being replaced by hand, the disk or its mount fails, the
# process is out of file descriptors (a volume of Kubernetes is swapped by one link, and is never half there). To lock
# everybody out for such a moment would be a fault of its own, and to let those in for ever whom somebody wants out
# another. To revoke all at once, empty the file.
UNREADABLE_SECONDS = 60.0

_LINE = re.compile(r"([\w.@-]{1,128}):([0-9a-fA-F]{64})", re.ASCII)
_LINES_TOLD = 10

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def check_tokens(path: str) -> str:
    """Return the path of a file of tokens, or the empty one.

    Raises:
        ValueError: it cannot be read, or a line, which is named by its number, says nothing of a token.
    """
    if path:
        _read_sound(Path(path))
    return path


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Args:
            path: of the file.
            clock: seconds from any origin.

        Raises:
            ValueError: see ``check_tokens``.
        """
        self._path = Path(path)
        self._clock = clock
        self._file = _read_sound(self._path)
        self._principals = self._file.principals
        self._unreadable_since: float | None = None

    def principal_of(self, token: str) -> str | None:
        """Return whose token it is; None when it is nobody's. How long it takes says nothing of the tokens."""
        self._look_again()
        digest = sha256(token.encode()).digest()
        found = None
        for known, principal in self._principals.items():  # all of them, wherever it stands
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def _look_again(self) -> None:
        """Take over what the file says when it has changed or could not be read before."""
        try:
            if _version(self._path) == self._file.version and self._unreadable_since is None:
                return
            self._file = _read(self._path)
        except OSError as error:
            self._note_unreadable(error)
            return
        self._principals, self._unreadable_since = self._file.principals, None
        path, wrong = str(self._path), self._file.wrong
        logger.info("the file of tokens was read again", path=path, tokens=len(self._principals))
        if wrong:
            lines = list(wrong)[:_LINES_TOLD]
            logger.error("lines of the file of tokens name nobody", path=path, count=len(wrong), lines=lines)
        if not self._principals:
            logger.error("the file of tokens names none: all are revoked", path=path)

    def _note_unreadable(self, error: OSError) -> None:
        """Let the tokens hold for a while longer, and revoke them then."""
        now, path = self._clock(), str(self._path)
        if self._unreadable_since is None:
            self._unreadable_since = now
            told = {"why": error.strerror, "revoked_in": UNREADABLE_SECONDS}
            logger.error("the file of tokens cannot be read", path=path, **told)
        elif self._principals and now - self._unreadable_since > UNREADABLE_SECONDS:
            self._principals = {}
            logger.error("the file of tokens cannot be read: all are revoked", path=path, why=error.strerror)


@dataclass(frozen=True, slots=True)
class _File:
    """What a file said.

    Attributes:
        version: see ``_version``.
        principals: whose each digest is.
        wrong: what is wrong with which lines: those name nobody.
    """

    version: tuple[int, ...]
    principals: dict[bytes, str]
    wrong: dict[int, str]


def _version(path: Path) -> tuple[int, ...]:
    """Return what differs once the file is another, or has been written or forbidden.

    Raises:
        OSError: it is not there.
    """
    found = path.stat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read_sound(path: Path) -> _File:
    """Read a file that must have nothing wrong.

    Raises:
        ValueError: see ``check_tokens``.
    """
    try:
        found = _read(path)
    except OSError as error:
        raise ValueError(f"no tokens can be read there: {error.strerror}") from error
    for number, why in found.wrong.items():
        raise ValueError(f"line {number} {why}")
    if not found.principals:
        raise ValueError("the file names no token")
    return found


def _read(path: Path) -> _File:
    """Read a file.

    Raises:
        OSError: it cannot be read.
    """
    found = _File(_version(path), {}, {})  # the version first: what is written meanwhile is read again
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            found.wrong[number] = "is not PRINCIPAL:DIGEST with the SHA-256 of a token in hexadecimal"
        elif found.principals.setdefault(bytes.fromhex(match[2]), match[1]) != match[1]:
            found.wrong[number] = f"gives another's token to {match[1]}"
    return found
