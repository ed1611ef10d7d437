"""The commands of ``specdec``."""

import sys
from typing import Annotated

import typer

from client.access import call_metadata, channel_credentials
from client.answering import answer_without_speculation, show_answer
from client.connection import Coordinators
from client.conversation import Conversation, converse, messages
from client.display import Display
from client.failures import RequestFailed
from client.measurement import Measurement
from client.options import AnswerOptions, with_answer_options
from client.requests import addresses, base_request, new_session_id, valid_text

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Talk to a specdec coordinator. Text goes to standard output, notes and tables to standard error.\n\n"
    "Exit status: 1 wrong flags or a refused request, 2 unavailable, 3 session unknown or busy, 4 server fault, "
    "5 out of time, 130 stopped.",
)


@app.command()
@with_answer_options
def generate(
    options: AnswerOptions,
    prompt: Annotated[
        str | None, typer.Argument(help="Without it, or with -: standard input, less its last newline.")
    ] = None,
    *,
    chat: Annotated[bool, typer.Option("--chat", help="Send it as a user's message in the chat template.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Answer again with gamma 0 and show both.")] = False,
) -> None:
    """Continue a text as it stands; --chat answers it as a message, which is what instruct models expect."""
    text = _input_text(prompt)
    display = Display(show_tokens=options.show_tokens, json=options.json)
    with _coordinators(options, display) as coordinators:
        request = base_request(options, *_session(coordinators, options))
        if chat:
            request.messages.add(role="user", content=text)
        else:
            request.prompt = text
        display.legend()
        measurement = Measurement()
        try:
            show_answer(coordinators, request, display, measurement, options.timeout)
            if compare:
                display.note("the same with gamma 0 ...")
                without = answer_without_speculation(coordinators, request.session_id, options.timeout)
        except (RequestFailed, KeyboardInterrupt):
            _report(display, measurement, request.session_id)
            raise
    if compare:
        display.comparison(measurement, without)
    else:
        _report(display, measurement, request.session_id)


@app.command()
@with_answer_options
def chat(options: AnswerOptions) -> None:
    """Hold a conversation: each line of input is a message. /exit or Ctrl-D ends it, Ctrl-C stops an answer."""
    display = Display(show_tokens=options.show_tokens, json=options.json)
    with _coordinators(options, display) as coordinators:
        conversation = Conversation(coordinators, options, display)
        display.legend()
        try:
            converse(conversation, messages(display), display)
        finally:
            conversation.report()


def _coordinators(options: AnswerOptions, display: Display) -> Coordinators:
    return Coordinators(addresses(options), channel_credentials(options), call_metadata(options), display.waiting)


def _report(display: Display, measurement: Measurement, session_id: str) -> None:
    if measurement.tokens:
        display.table([("", measurement)])
        display.note(f"session {session_id}")


def _input_text(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a PROMPT, or text on standard input", param_hint="PROMPT")
    text = sys.stdin.read().removesuffix("\n") if prompt in (None, "-") else prompt
    return valid_text(text or "", "PROMPT")


def _session(coordinators: Coordinators, options: AnswerOptions) -> tuple[str, int]:
    """Session id and committed length to send: a new session, or the one of the flag as it is."""
    if options.session_id is None:
        return new_session_id(), 0
    session = coordinators.session(options.session_id)
    return options.session_id, len(session.token_ids) if session else 0
