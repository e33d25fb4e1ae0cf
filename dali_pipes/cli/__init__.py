"""The command line: configurations composed by Hydra, help, and mistakes reported in one line.

`main` is the command dali-pipes, the one way in which a job starts. `command` finds the job, `jobs`
has a function for each and `conf` its options; `hydra` composes them and calls the job. The modules
are imported late, so that a broken installation ends in one line too.
"""

import os
import sys

from dali_pipes.cli.broken_installation import importing


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]

    When a reader such as `| head` closes the pipe, the program ends as others do, with SIGPIPE's
    status and no message.
    """
    with importing():
        from dali_pipes.cli import command

    try:
        command.main()
        # here, since at exit Python would report a closed pipe or a full disk itself
        sys.stdout.flush()
    except BrokenPipeError:
        # what is left in the buffer goes nowhere, or Python's flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # 128 + SIGPIPE
    except OSError as error:  # stdout on a full disk; jobs explain errors of their own files
        from dali_pipes.cli.messages import explain_file_error, stop

        stop(explain_file_error(error))
