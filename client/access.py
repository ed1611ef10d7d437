"""What a coordinator is called with: TLS by PEM files, a bearer token."""

import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import typer
from grpc.experimental import insecure_channel_credentials

from client.options import AnswerOptions

Metadata = tuple[tuple[str, str], ...]


def channel_credentials(options: AnswerOptions) -> grpc.ChannelCredentials:
    """Return what the channels are opened with: plaintext unless a flag speaks of TLS.

    Raises:
        typer.BadParameter: a file cannot be read, is none of the kind, or does not fit the other.
    """
    ca, certificate, key = options.tls_ca, options.tls_certificate, options.tls_key
    if not (options.tls or ca or certificate or key):
        return insecure_channel_credentials()
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together", param_hint="--tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        _check("--tls-ca", lambda: context.load_verify_locations(ca))
    if certificate:
        _check("--tls-certificate", lambda: context.load_verify_locations(certificate))
        # The empty password: without one OpenSSL would ask for it on the terminal.
        _check("--tls-key", lambda: context.load_cert_chain(certificate, key, password=""))
    return grpc.ssl_channel_credentials(*(Path(path).read_bytes() if path else None for path in (ca, key, certificate)))


def call_metadata(options: AnswerOptions) -> Metadata:
    """Return what every call says of who makes it.

    Raises:
        typer.BadParameter: the token cannot stand in a header.
    """
    if options.token is None:
        return ()
    if not options.token or not options.token.isascii() or not options.token.isprintable() or " " in options.token:
        raise typer.BadParameter("is not a token", param_hint="--token")
    return (("authorization", f"Bearer {options.token}"),)


def _check(flag: str, load: Callable[[], None]) -> None:
    try:
        load()
    except OSError as error:  # ssl's own errors are some of these
        raise typer.BadParameter(f"cannot be used: {error.strerror or error}", param_hint=flag) from error
