"""The flags that ``specdec generate`` and ``specdec chat`` share, written once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer

_SERVER = "Connection"
_SAMPLING = "Sampling (unset: the model's own defaults, else greedy and 256 tokens)"
_SPECULATION = "Speculation (never changes the law of the text)"
_OUTPUT = "Output"


class VerificationName(StrEnum):
    """How draft tokens are verified."""

    TOKEN = "token"
    BLOCK = "block"
    COUPLED = "coupled"


def _option(text: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, metavar=metavar, **{"show_default": False, **more})


def _count(text: str, panel: str = _SAMPLING) -> Any:
    return _option(text, panel, "N")


def _number(text: str) -> Any:
    return _option(text, _SAMPLING, "X")


def _file(text: str, name: str) -> Any:
    return _option(text, _SERVER, "PEM", envvar=f"SPECDEC_TLS_{name}")


def _switch(name: str, text: str, panel: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What a request may choose and how its answer is shown; None leaves the choice to the server."""

    address: Annotated[
        str,
        _option(
            "Coordinator, or a comma list tried in turn.",
            _SERVER,
            "HOST:PORT",
            envvar="SPECDEC_ADDRESS",
            show_default=True,
        ),
    ] = "localhost:50051"
    timeout: Annotated[float | None, _option("For a whole answer.", _SERVER, "SECONDS", min=0.001, max=1e6)] = None
    tls: Annotated[bool, _switch("--tls", "Speak TLS; the files below imply it.", _SERVER)] = False
    tls_ca: Annotated[
        str | None, _file("Authorities that vouch for the coordinator; without: the public ones.", "CA")
    ] = None
    tls_certificate: Annotated[str | None, _file("Certificate to show (mutual TLS).", "CERTIFICATE")] = None
    tls_key: Annotated[str | None, _file("Its private key.", "KEY")] = None
    token: Annotated[
        str | None,
        _option("Bearer token; rather in the variable, where others do not see it.", _SERVER, envvar="SPECDEC_TOKEN"),
    ] = None
    session_id: Annotated[str | None, _option("Continue this session; a new one gets this id.", _SERVER, "ID")] = None
    temperature: Annotated[float | None, _number("Divides the logits; 0 is greedy.")] = None
    top_k: Annotated[int | None, _count("Keep the N likeliest tokens; 0 keeps all.")] = None
    top_p: Annotated[float | None, _number("Keep the likeliest tokens up to this probability.")] = None
    min_p: Annotated[float | None, _number("Drop tokens below this share of the likeliest.")] = None
    repetition_penalty: Annotated[float | None, _number("On tokens in prompt or answer; 1 is none.")] = None
    presence_penalty: Annotated[float | None, _number("On tokens in the answer; 0 is none.")] = None
    frequency_penalty: Annotated[float | None, _number("On tokens in the answer, each time; 0 is none.")] = None
    logit_bias: Annotated[
        list[str] | None, _option("Added to a token's logit; -100 bans it. Repeatable.", _SAMPLING, "ID=X")
    ] = None
    seed: Annotated[int | None, _count("Makes random choices repeatable.")] = None
    max_new_tokens: Annotated[int | None, _count("Tokens of the answer at most.")] = None
    min_new_tokens: Annotated[int | None, _count("Tokens before the answer may end.")] = None
    stop: Annotated[list[str] | None, _option("Ends the answer. Repeatable.", _SAMPLING, "TEXT")] = None
    stop_token_id: Annotated[list[int] | None, _option("Ends the answer. Repeatable.", _SAMPLING, "ID")] = None
    ignore_eos: Annotated[bool, _switch("--ignore-eos", "Go on past the model's end of text.", _SAMPLING)] = False
    logprobs: Annotated[int | None, _count("Log-probabilities of N alternatives a token; needs --json.")] = None
    gamma: Annotated[int | None, _count("Draft tokens a round; 0 is off, unset the server's choice.", _SPECULATION)] = (
        None
    )
    verification: Annotated[VerificationName | None, _option("How draft tokens are verified.", _SPECULATION)] = None
    show_tokens: Annotated[bool, _switch("--show-tokens", "Mark each token by where it came from.", _OUTPUT)] = False
    json: Annotated[bool, _switch("--json", "Events as JSON lines instead of text.", _OUTPUT)] = False


def with_answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of AnswerOptions in place of its parameter ``options``."""
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "options"]
    shared = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(AnswerOptions)
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = AnswerOptions(**{one.name: values.pop(one.name) for one in fields(AnswerOptions)})
        command(options=options, **values)

    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    signature = inspect.Signature(keyword_only + shared)
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return run
