"""Bearer tokens: which is whose.

They stand in a file as PRINCIPAL:DIGEST, one a line, the digest being the token's SHA-256 in hexadecimal. So whoever
reads the file cannot call; a token must be random (32 bytes, say), not a password. A principal may have several, so
that a new one can be handed out before the old one goes. A changed file counts with the next call.
"""

import hmac
import re
from hashlib import sha256
from pathlib import Path

import structlog

_LINE = re.compile(r"([\w.@-]{1,128}):([0-9a-fA-F]{64})", re.ASCII)

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def check_tokens(path: str) -> str:
    """Return the path of a file of tokens, or the empty one.

    Raises:
        ValueError: it cannot be read, or a line, which is named by its number, says nothing of a token.
    """
    if path:
        _read(Path(path))
    return path


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ValueError: see ``check_tokens``.
        """
        self._path = Path(path)
        self._version = self._found_version()
        self._principals = _read(self._path)

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
        """Take over what the file says when it has changed; while it says nothing sound, what it said before stays."""
        version = self._found_version()
        if version == self._version:
            return
        self._version = version
        try:
            self._principals = _read(self._path)
        except ValueError as error:
            logger.warning("the changed file of tokens cannot be used", path=str(self._path), why=str(error))
        else:
            logger.info("the file of tokens was read again", path=str(self._path), tokens=len(self._principals))

    def _found_version(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path) -> dict[bytes, str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no tokens can be read there: {getattr(error, 'strerror', '') or 'it is no text'}") from error
    principals: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"line {number} is not PRINCIPAL:DIGEST with the SHA-256 of a token in hexadecimal")
        digest = bytes.fromhex(match[2])
        if principals.get(digest, match[1]) != match[1]:
            raise ValueError(f"line {number} gives another's token to {match[1]}")
        principals[digest] = match[1]
    if not principals:
        raise ValueError("the file names no token")
    return principals
