"""dali-pipes diagnose OPTIONS -- train.py ARGS: diagnose on a user's program.

The words before `--` are options; those behind it are the program, which Hydra never sees.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dali_pipes.cli.overrides import expand_home
from dali_pipes.errors import ConfigError


def diagnose_own_program() -> None:
    """Runs diagnose on the program that the words of the command line name."""
    from dali_pipes.system.stdout import print_json
    from dali_pipes.tools.diagnosis.watching.process import diagnose_program, save_diagnosis

    words = sys.argv[1:]
    place = words.index("--")
    options = program_options(words[:place])
    out = options.pop("out")
    result = diagnose_program(words[place + 1 :], **options)
    print_json(save_diagnosis(result, Path(out), words[:place]))


def program_options(words: Sequence[str]) -> dict[str, Any]:
    """Returns all options of diagnose for a program that follows `--`, changed by `words`.

    Raises:
        ConfigError: an option is unknown, or its value is of another kind or out of bounds.
    """
    # each value is of the kind that the option takes
    options: dict[str, Any] = {
        "seconds": 1.5,
        "rounds": 3,
        "cold": False,
        "limit": 600.0,
        "out": "runs/diagnose",
    }

    for word in words:
        option, _, value = word.partition("=")
        if option not in options:
            raise ConfigError(
                f"{word}: before -- diagnose takes {', '.join(f'{name}=' for name in options)} only"
            )

        try:
            options[option] = (
                {"true": True, "false": False}[value]
                if option == "cold"
                else type(options[option])(value)
            )
            options["out"] = expand_home(options["out"])
        except (KeyError, ValueError):
            takes = {bool: "true or false", int: "whole numbers", float: "numbers"}[
                type(options[option])
            ]
            raise ConfigError(f"{option} is {value}; it takes {takes}") from None

        # float() reads nan and inf as well: neither is in these bounds
        if option not in ("cold", "out") and not 0 < options[option] < 1e6:
            raise ConfigError(f"{option} is {value}; it takes a number above 0 and below 1,000,000")

    return options
