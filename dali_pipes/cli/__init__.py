"""The command line: configurations composed by Hydra, help, and mistakes reported in one line.

`main` is the command dali-pipes, the one way in which a job starts. `command` finds the job, `jobs`
has a function for each and `conf` its options; `hydra` composes them and calls the job. The modules
are imported late, so that a broken installation ends in one line too.
"""

import sys

from dali_pipes.cli.broken_installation import importing
from dali_pipes.cli.streams import open_streams


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]

    When a reader such as `| head` closes the pipe of a job that prints its result, the program ends
    as others do, with SIGPIPE's status and no message.
    """
    out = open_streams(sys.argv[1:])
    with importing():
        from dali_pipes.cli import command
        from dali_pipes.cli.messages import stop

    try:
        try:
            command.main()
        finally:
            out.flush()  # here, since at exit Python would report an error itself
            if out.lost:
                stop(out.lost)
    except BrokenPipeError:
        sys.exit(141)  # 128 + SIGPIPE
