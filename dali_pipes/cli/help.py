"""The text of --help: a job and its options in short, or one group of options in full.

config ─▶ groups of options (option_groups.py) ─▶ a line for each, or all about what is asked for
"""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from omegaconf import DictConfig, OmegaConf

from dali_pipes.cli.option_groups import Group, OptionsOfOneText, find_groups
from dali_pipes.errors import ConfigError

ALL, OWN = "all", "options"  # what --help takes besides names: everything, the job's own options
# what is set most often: --help of a job begins with those that the job has
OFTEN = (
    *("data.root", "data.train", "data.val", "arms", "workload", "to", "resize", "quality"),
    *("epochs", "batch_size", "precision", "transform.size", "optimizer.lr"),
    *("loader.num_threads", "loader.num_workers", "pairs", "minutes", "verify", "resume"),
    *("seed", "out"),
)
_FEW = 14  # a job's own options up to which all of them come first
_NARROWEST, _WIDEST = 60, 100  # columns of the text
_LEFT = 26  # columns of a name and its default, where a line explains it
_COMMANDS = ("dali-pipes ", "torchrun ")  # how the lines of examples begin
_GROUPS = "Groups: GROUP=NAME takes another one, GROUP.OPTION=VALUE sets an option in it:"
_NOTES = (
    f"--help GROUP and --help OPTION show the full text of a group or an option, such as --help "
    f"data; --help {OWN} shows that of the job's own options, --help {ALL} that of all options. "
    "The value null means that an option is not set.",
    "Groups also have the files of --conf DIR, or of conf/ in the working directory, which replace "
    "those of dali_pipes that have the same name.",
    "-m runs the job for each value of options that are given as a,b,c; --cfg job prints all "
    "options with the values that this command line gives them; --hydra-help explains more.",
)


def find_topic(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns what --help is to explain, "" for the job and None without --help, and the other
    words.

    In `--help optimizer` the second word is no option, and in `--help loader=torch` it is both.
    """
    others = list(words)
    place = next((place for place, word in enumerate(words) if word in ("-h", "--help")), None)
    if place is None:
        return None, others
    del others[place]
    topic = next(iter(others[place:]), "")
    # another flag, or Hydra's way to leave an option out
    if topic.startswith(("-", "~")):
        return "", others
    if topic and "=" not in topic:
        del others[place]
    return topic, others


def help_text(words: str, config: DictConfig, topic: str = "", width: int | None = None) -> str:
    """Returns the text of --help, in which Python's None is null, as on a command line.

    Args:
        words: what the job does, and examples.
        config: the job's options, as the command line has them.
        topic: what follows --help: the name of a group or an option, or GROUP=NAME.
        width: columns of the text; None: as many as the terminal has, up to 100.

    Raises:
        ConfigError: there is no such group or option.
    """
    columns = shutil.get_terminal_size((_WIDEST, 0)).columns
    width = width or max(_NARROWEST, min(_WIDEST, columns))

    groups = list(find_groups(config))
    name, _, choice = topic.partition("=")
    if choice and name not in [group.name for group in groups if group.options]:
        name = ""  # any option, which does not say what to explain

    if name == ALL:
        parts = [_fill_words(words, width), *(_explain(group, width) for group in groups)]
    elif name:
        parts = [_explain_topic(name, groups, width)]
    else:
        schema = OmegaConf.get_type(config)
        lines = _summarize(groups, getattr(schema, "SELDOM", ()), width)
        parts = [_fill_words(words, width), *lines]
    text = "\n\n".join(part.rstrip() for part in parts)
    return re.sub(r"\bNone\b", "null", text)


def _explain_topic(name: str, groups: list[Group], width: int) -> str:
    """Returns all about the group or the option of this name."""
    for group in groups:
        if name == (group.name or OWN) or (group.choice and name == group.choice.key):
            inside = [each.name for each in groups if each.name.startswith(f"{group.name}.")]
            hints = [f"  {each}: --help {each}" for each in inside if each not in group.members]
            return "\n".join([_explain(group, width), *hints])
    for options in (options for group in groups for options in group.options):
        if name in options.defaults:
            return _explain_options(options, width)

    names = [
        *(group.name for group in groups),
        *(option for group in groups for options in group.options for option in options.defaults),
    ]
    # a name without its group, such as lr for optimizer.lr, or else one that looks like it
    near = [each for each in names if each.endswith(f".{name}")][:3]
    near = near or get_close_matches(name, [*names, OWN, ALL], 1)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"--help {name}: no group and no option has this name{meant}; --help lists them"
    )


def _summarize(groups: list[Group], seldom: Sequence[str], width: int) -> Iterator[str]:
    """Yields the options that are set most, the groups, and the job's other options, in lines.

    Args:
        seldom: options that other jobs are given more often than this one.
    """
    lines = {
        name: _line(f"{name}={default}", options.text, width)
        for group in groups
        for options in group.options
        for name, default in options.defaults.items()
    }
    own = [name for options in groups[0].options for name in options.defaults]
    often = [name for name in OFTEN if name in lines and name not in seldom]
    title = "Set most often, with defaults:"
    if len(own) <= _FEW:
        often = [*(name for name in often if name not in own), *own]
        title = "Options, with defaults:"
    yield "\n".join([title, *map(lines.__getitem__, often)])

    members = {name for group in groups for name in group.members}
    blocks = [
        "\n".join([_line(group.title, group.text, width), *_list_choices(group, width)])
        for group in groups[1:]
        if group.name not in members
    ]
    if blocks:
        yield "\n".join([_GROUPS, *blocks])

    rest = [lines[name] for name in own if name not in often]
    if rest:
        yield "\n".join(["Other options, with defaults:", *rest])
    yield "\n".join(_fill(note, width) for note in _NOTES)


def _line(left: str, text: str, width: int) -> str:
    """Returns one line: what is set, and as much of its text as there is room for."""
    shown = left if len(left) <= width // 2 else f"{left[: width // 2]}…"
    line = f"  {shown:<{_LEFT}}  "
    room = width - len(line)
    if len(text) <= room:
        return (line + text).rstrip()

    # whole clauses, unless they leave most of the line empty
    ends = [end.start() for end in re.finditer(r"(?<=[;.]) ", text) if end.start() + 2 <= room]
    if ends and ends[-1] > room // 2:
        return f"{line}{text[: ends[-1]]} …"
    return line + textwrap.shorten(text, room, placeholder=" …")


def _explain(group: Group, width: int) -> str:
    """Returns all about a group."""
    # the job's own options have no title, and their text begins with the name of the job
    head = f"{group.title}: {group.text}" if group.title and group.text else group.text
    head = head or f"{group.title}:"
    lines = [_fill(head, width), *_explain_choices(group, width), ""]
    return "\n".join([*lines, *(_explain_options(options, width) for options in group.options)])


def _list_choices(group: Group, width: int) -> list[str]:
    if group.choice and group.choice.others:
        return [_fill(f"or {', '.join(group.choice.others)}", width, 4)]
    return [_fill(", ".join(group.members), width, 4)] if group.members else []


def _explain_choices(group: Group, width: int) -> list[str]:
    """Returns what each file of a group is, if all of them say it."""
    choice = group.choice
    if not choice or len(choice.texts) < len(choice.others):
        return _list_choices(group, width)
    return [
        textwrap.fill(
            choice.texts[name],
            width,
            initial_indent=f"  {f'or {name}':<{_LEFT}}  ",
            subsequent_indent=" " * (_LEFT + 4),
            break_on_hyphens=False,
        )
        for name in choice.others
    ]


def _explain_options(options: OptionsOfOneText, width: int) -> str:
    """Returns the options of one text with their defaults, and the text."""
    heads = [f"  {name}={default}" for name, default in options.defaults.items()]
    return "\n".join([*heads, _fill(options.text, width, 6)])


def _fill(text: str, width: int, indent: int = 0) -> str:
    first, other = " " * indent, " " * (indent or 4)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=other,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fill_words(words: str, width: int) -> str:
    """Returns the words of a job, with its examples as they stand."""
    paragraphs = inspect.cleandoc(words).split("\n\n")
    return "\n\n".join(
        paragraph
        if paragraph.startswith(_COMMANDS)
        else textwrap.fill(paragraph, width, break_on_hyphens=False)
        for paragraph in paragraphs
    )
