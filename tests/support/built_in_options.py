"""The options that a group has without those of a user."""

from pathlib import Path

from dali_pipes.cli.named_options import NAMED_OPTIONS

CONF = Path(__file__).parents[2] / "conf"


def list_options(group):
    """The names of files of conf/GROUP and of named options, sorted."""
    files = [file.stem for file in (CONF / group).glob("*.yaml")]
    return sorted([*files, *NAMED_OPTIONS.get(group, {})])
