"""The training program that a loader of any kind belongs to."""

from typing import Any

from dali_pipes.tools.diagnosis.dataloader_program import DataLoaderProgram
from dali_pipes.tools.diagnosis.window import Step


def program_of(loader: Any, step: Step = lambda batch: None) -> DataLoaderProgram:
    """`step` is never called where a program's own loop is the step."""
    return DataLoaderProgram(loader, step)
