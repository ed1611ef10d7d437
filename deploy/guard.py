"""Ends what its parent started when the parent is gone, however it went: ``python -m deploy.guard FOLDER NAME…``.

The parent holds the other end of standard input and never writes to it.
"""

import signal
import sys
from pathlib import Path

from deploy.process import LoggedProcess

GRACE_SECONDS = 5.0


def main() -> None:
    """Wait for the end of standard input, then end the processes named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, *names = sys.argv[1:]
    sys.stdin.buffer.read()
    for name in names:
        LoggedProcess(Path(folder), name).end(GRACE_SECONDS)


if __name__ == "__main__":
    main()
