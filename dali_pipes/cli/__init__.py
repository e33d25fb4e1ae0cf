"""The command line: configurations composed by Hydra, help, and mistakes reported in one line.

`main` is the command dali-pipes, the one way in which a job starts. `command` finds the job, `jobs`
has a function for each and `conf` its options; `hydra` composes them and calls the job. The modules
are imported late, so that a broken installation ends in one line too.
"""

import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from dali_pipes.cli.broken_installation import importing
from dali_pipes.cli.streams import LastingStream, open_closed_streams


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]

    When a reader such as `| head` closes the pipe, the job goes on to its end; then the program
    ends with the status of SIGPIPE and no message.
    """
    open_closed_streams()
    out: Any = LastingStream(sys.stdout)
    errors: Any = LastingStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(errors):
        with importing():
            from dali_pipes.cli import command
            from dali_pipes.cli.messages import stop

        try:
            command.main()
        except SystemExit as end:
            if end.code:
                raise

        # here, since at exit Python would report an error itself
        out.flush()
        if isinstance(out.lost, BrokenPipeError):
            sys.exit(141)  # 128 + SIGPIPE
        if out.lost:
            reason = str(out.lost.strerror).lower()
            stop(f"what was printed could not be written to stdout: {reason}")
