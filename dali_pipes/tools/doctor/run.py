"""All checks, one after the other."""

import json
from collections.abc import Sequence

from rich.console import Console

from dali_pipes.backends.config import DaliConfig
from dali_pipes.data.images import open_images
from dali_pipes.errors import ConfigError
from dali_pipes.system.progress import track
from dali_pipes.tools.doctor.checks import Check, all_checks
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.doctor.finding import FAILED
from dali_pipes.tools.doctor.report import Line, as_json, can_train_on_gpu, print_lines
from dali_pipes.tools.doctor.software import installed


def doctor(config: DoctorConfig) -> bool:
    """Prints the findings, a table on stderr and a line of JSON on stdout. Returns whether training on a GPU can work here.

    Raises:
        ConfigError, ManifestError: the images do not exist, or the loader is not DALI's.
    """
    if not isinstance(config.loader, DaliConfig):
        raise ConfigError("the doctor tests DALI's decoding; choose loader=dali, dali_fastest, dali_cpu or one that tune.py wrote")
    named = config.data.source(config.split) if config.data.root or config.data.train or config.data.val else None
    manifest = open_images(config.data, config.split) if named else None
    lines = examine(all_checks(config, manifest), config.limit_s)
    print_lines(lines, Console(stderr=True, highlight=False))
    print(json.dumps(as_json(lines, installed()), ensure_ascii=False))
    return can_train_on_gpu(lines)


def examine(checks: Sequence[Check], limit_s: float) -> list[Line]:
    """A line for each check; without a GPU, one for all that need it."""
    lines, there_is_a_gpu = list[Line](), True
    for check in track(checks, lambda check: f"{check.group}: {check.name}", len(checks)):
        if check.needs_gpu and not there_is_a_gpu:
            continue
        finding = check.run(limit_s)
        there_is_a_gpu &= not (check.gate and finding.status == FAILED)
        lines.append(Line(check.group, check.name, finding))
    return lines
