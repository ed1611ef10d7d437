"""TLS from PEM files: what a port shows and whom it lets in, what a channel trusts and shows.

The files of a port are looked at before each handshake, so that renewed ones count without a restart; while they do not
fit together, the former ones stay. Those of a channel are read once.
"""

import ssl
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc.experimental import insecure_channel_credentials

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def check_certificates(path: str) -> str:
    """Return the path of a file that holds certificates, or the empty one.

    Raises:
        ValueError: the file cannot be read, or holds none.
    """
    if path:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except OSError as error:  # ssl's own errors are some of these
            raise ValueError(f"no certificates can be read there: {error.strerror or error}") from error
    return path


def check_key(certificate: str, key: str) -> None:
    """Check that a file holds the key of a certificate.

    Raises:
        ValueError: it cannot be read, needs a password, or is another's key.
    """
    try:
        # The empty password: without one OpenSSL would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ValueError(f"no key of {certificate} can be read there: {error.strerror or error}") from error


def server_credentials(certificate: str, key: str, client_ca: str) -> Any:
    """Return what a port is opened with.

    Args:
        certificate: file with the chain to show; empty for plaintext.
        key: file with its key.
        client_ca: file with the authorities whose clients alone are let in; empty for everybody.
    """
    if not certificate:
        return grpc.insecure_server_credentials()
    files = _PortFiles(certificate, key, client_ca)
    return grpc.dynamic_ssl_server_credentials(files.read(), files.renewed, bool(client_ca))


def channel_credentials(ca: str, certificate: str, key: str) -> Any:
    """Return what a channel is opened with.

    Args:
        ca: file with the authorities that the server must be known to; empty for plaintext.
        certificate: file with the chain to show; empty for none.
        key: file with its key.
    """
    if not ca:
        return insecure_channel_credentials()
    return grpc.ssl_channel_credentials(Path(ca).read_bytes(), _content(key), _content(certificate))


class _PortFiles:
    """The files of a port, and when they were read."""

    def __init__(self, certificate: str, key: str, client_ca: str) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._read_at = self._changed_at()

    def read(self) -> Any:
        pair = Path(self._key).read_bytes(), Path(self._certificate).read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], _content(self._client_ca))

    def renewed(self) -> Any:
        """Return what the files hold when they have changed, else None. Called by gRPC before each handshake."""
        try:
            changed_at = self._changed_at()
            if changed_at == self._read_at:
                return None
            check_certificates(self._client_ca)
            check_key(self._certificate, self._key)
            configuration = self.read()
        except (OSError, ValueError) as error:
            logger.warning("renewed certificate cannot be used", certificate=self._certificate, why=str(error))
            return None
        self._read_at = changed_at
        logger.info("renewed certificate", certificate=self._certificate)
        return configuration

    def _changed_at(self) -> list[int]:
        return [Path(path).stat().st_mtime_ns for path in (self._certificate, self._key, self._client_ca) if path]


def _content(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
