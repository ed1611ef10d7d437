"""Entry point of the ``specdec`` command."""

import io
import sys

import typer

from client.commands import app
from client.failures import INVALID, RequestFailed


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its status; every failure is one line on standard error.

    Args:
        arguments: in place of those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of another encoding shows what it can
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):  # bytes that are not text are refused later, by name
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        status = app(arguments, prog_name="specdec", standalone_mode=False)
    except RequestFailed as failure:
        print(f"specdec: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
    except typer.TyperException as error:
        print(f"specdec: {error.format_message()} (see specdec --help)", file=sys.stderr)
        sys.exit(INVALID)
    sys.exit(status or 0)


if __name__ == "__main__":
    main()
