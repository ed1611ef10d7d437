"""Settings of a service: read once, from the environment and from flags of the same names.

Each service derives one class from ``ServiceSettings`` with its own ``env_prefix`` and documents each field by the
string under it; the README's table is generated from the same class. Under Kubernetes a Service named like the prefix
makes variables such as ``DRAFT_PORT_50052_TCP``: pods set ``enableServiceLinks: false``.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsConfigDict

from specdec.serving.tls import check_certificates, check_key


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if value.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_split)]
"""Strings separated by commas; the empty text is the empty list."""

Port = Annotated[int, Field(ge=0, le=65535)]
"""A port to listen on; 0 takes any free one."""

ExtraPort = Annotated[int, Field(ge=-1, le=65535)]
"""A port to listen on beside that for calls; 0 is none, -1 takes any free one."""

CertificateFile = Annotated[str, AfterValidator(check_certificates)]
"""Path of a PEM file with certificates, or empty."""


class ServiceSettings(BaseSettings):
    """What every service can be told. ``Subclass.load(argv)`` reads it."""

    model_config = SettingsConfigDict(
        frozen=True,
        enable_decoding=False,  # lists are comma separated, not JSON
        use_attribute_docstrings=True,
    )

    host: str = "127.0.0.1"
    """Address to listen on, for calls and for metrics."""
    port: Port = 0
    """Port for calls; 0 takes any free one."""
    metrics_port: ExtraPort = 0
    """Port for Prometheus; 0 is off, -1 takes any free one."""
    tls_certificate: CertificateFile = ""
    """PEM file with the certificate chain to take calls under; empty: plaintext. A renewed file counts at once."""
    tls_key: str = ""
    """PEM file with the certificate's private key."""
    tls_client_ca: CertificateFile = ""
    """PEM file with the authorities whose clients alone are let in (mutual TLS); empty: all clients."""
    health_port: ExtraPort = 0
    """Port for health alone, always plaintext, for probes without TLS; 0 is off, -1 takes any free one."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = "info"
    """Least severe log lines to write: debug, info, warning or error."""
    reflection: bool = True
    """Whether the port describes its services (server reflection), as grpcurl needs it that has not got the protos."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that calls in flight get to end after SIGTERM."""

    @classmethod
    def load(cls, argv: Sequence[str]) -> Self:
        """Read the environment and then the flags, which win.

        Args:
            argv: the command line without the program's name.

        Returns:
            The settings. Every unknown variable with the prefix, unknown flag and bad value is printed on stderr, all
            at once, and the process exits with code 2; ``--help`` lists the flags and exits with 0.
        """
        flags, problems = _read_flags(cls, argv)
        problems = _unknown_variables(cls) + problems
        try:
            settings = cls(**flags)
        except ValidationError as error:
            problems += [_describe_problem(cls, flags, dict(each)) for each in error.errors(include_url=False)]
        if problems:
            sys.stderr.write("".join(f"{problem}\n" for problem in problems))
            sys.exit(2)
        return settings

    @model_validator(mode="after")
    def _tls_files_fit(self) -> Self:
        self._check_pair("tls_certificate", "tls_key")
        self._check_needed("tls_client_ca", "tls_certificate")
        return self

    def _check_pair(self, certificate: str, key: str) -> None:
        """Refuse a certificate without its key, and a key without its certificate."""
        self._check_needed(certificate, key)
        self._check_needed(key, certificate)
        if getattr(self, key):
            try:
                check_key(getattr(self, certificate), getattr(self, key))
            except ValueError as error:
                raise ValueError(f"{_variable(type(self), key)}: {error}") from error

    def _check_needed(self, name: str, needed: str) -> None:
        """Refuse a setting that means nothing without another."""
        if getattr(self, name) and not getattr(self, needed):
            raise ValueError(f"{_variable(type(self), needed)} is needed with {_variable(type(self), name)}")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as a table shows it.

    Attributes:
        name: of the field.
        environment: name of the variable.
        flag: name of the flag.
        default: as it would be written, or "required".
        meaning: what it does.
    """

    name: str
    environment: str
    flag: str
    default: str
    meaning: str


def describe(cls: type[ServiceSettings]) -> list[SettingRow]:
    """List all settings of a service in the order of their declaration."""
    return [
        SettingRow(name, _variable(cls, name), _flag(name), _default_text(field), field.description or "")
        for name, field in cls.model_fields.items()
    ]


def _variable(cls: type[ServiceSettings], name: str) -> str:
    return f"{cls.model_config['env_prefix']}{name}".upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default_text(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _unknown_variables(cls: type[ServiceSettings]) -> list[str]:
    known = {_variable(cls, name) for name in cls.model_fields}
    prefix = cls.model_config["env_prefix"].upper()
    unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)
    return [f"{name}: unknown variable" for name in unknown]


def _read_flags(cls: type[ServiceSettings], argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    program = f"python -m {cls.__module__.partition('.')[0]}"
    parser = argparse.ArgumentParser(program, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter)
    for row in describe(cls):
        # A flag without its value reads as None, so that it is reported beside everything else.
        text = f"{row.meaning}\n[{row.environment}: {row.default}]".replace("%", "%%")
        parser.add_argument(row.flag, dest=row.name, nargs="?", default=argparse.SUPPRESS, metavar="VALUE", help=text)
    found, unknown = parser.parse_known_args(argv)
    given: dict[str, str | None] = vars(found)
    problems = [f"{each.partition('=')[0]}: unknown flag or argument" for each in unknown]
    problems += [f"{_flag(name)}: needs a value" for name, value in given.items() if value is None]
    return {name: value for name, value in given.items() if value is not None}, problems


def _describe_problem(cls: type[ServiceSettings], flags: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    name = str(error["loc"][0]) if error["loc"] else ""
    if name not in cls.model_fields:
        return f"settings: {error['msg']}"
    source = _flag(name) if name in flags else _variable(cls, name)
    if error["type"] == "missing":
        return f"{source}: is required (or {_flag(name)})"
    shown = "" if _holds_secret(cls.model_fields[name]) else f", got {error['input']!r}"
    return f"{source}: {error['msg']}{shown}"


def _holds_secret(field: FieldInfo) -> bool:
    return SecretStr.__name__ in repr(field.annotation)
