"""Rewrites the words of a command line for Hydra's grammar, so that a file name needs no quotes
besides the shell's own.

`spell` rewrites a word; it needs to know which options are text, from `text_options`.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dali_pipes.errors import ConfigError
from dali_pipes.options import quote

# returns the value that Hydra reads from a text, or raises ConfigError
Parse = Callable[[str], Any]

# the functions of Hydra's grammar
_FUNCTION = re.compile(r"(choice|glob|range|interval|shuffle|sort|tag|extend_list)\(")
# ~ or ~name as a whole first part of a path, where a path can begin
_HOME = re.compile(r"(^|[\[{,'\"=])(~[a-z_][\w-]*|~)(?=$|[/,\]}'\"])")
_COMMA = re.compile(r",(?![^{}]*\})")  # outside of braces; within them it is part of a pattern
# a whole part of a list in quotes
_QUOTED = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')\s*(?=,|$)""")
_NO_PATHS = ("data.filter",)  # an expression: text that is no path, and may have ~ and commas


def text_options(schema: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yields the name of each option that is text, and whether it is a list of texts, such as
    ("data.train", False).
    """
    for field in fields(schema):
        kind, name = field.type, f"{prefix}{field.name}"
        if is_dataclass(kind):
            yield from text_options(kind, f"{name}.")
        elif kind in (str, str | None):
            yield name, False
        elif kind in (list[str], list[str] | None):
            yield name, True


def spell(word: str, texts: dict[str, bool], sweeps: bool, parse: Parse) -> str:
    """Returns a word NAME=VALUE as Hydra must read it: with the home folder for ~, and with quotes
    around text that Hydra would read as something else.

    Args:
        texts: from `text_options`.
        sweeps: whether commas separate the values of a sweep.
        parse: returns the value that Hydra reads from a text.
    """
    name, equals, text = word.partition("=")
    option = name.lstrip("+")
    if not equals or name.startswith("-"):
        return word

    text = text if option in _NO_PATHS else expand_home(text)

    # what is written in Hydra's grammar already stays: quotes, null, and its functions
    is_quoted = text[:1] in ("'", '"') and _is_understood(text, parse)
    if is_quoted or text in ("", "null") or _FUNCTION.match(text):
        return f"{name}={text}"

    # an option that is text; a sweep has several texts with commas between them
    if texts.get(option) is False and not (sweeps and text.startswith("[")):
        parts = _COMMA.split(text) if sweeps and option not in _NO_PATHS else [text]
        return f"{name}={','.join(_spell_text(part, parse) for part in parts)}"

    # a list of texts, of which Hydra cannot read some without quotes
    if (
        texts.get(option)
        and text.startswith("[")
        and text.endswith("]")
        and not _is_understood(text, parse)
    ):
        parts = [_spell_text(part.strip(), parse) for part in _split_list(text[1:-1])]
        return f"{name}=[{','.join(parts)}]"

    return f"{name}={_spell_value(text, parse)}"


def _split_list(text: str) -> Iterator[str]:
    """Yields the parts of a list; commas in quotes and braces belong to a part."""
    start = 0
    while start <= len(text):
        quoted = _QUOTED.match(text, start)
        comma = _COMMA.search(text, quoted.end() if quoted else start)
        end = comma.start() if comma else len(text)
        yield text[start:end]
        start = end + 1


def expand_home(text: str) -> str:
    """Returns the text with the home folder for ~, at its start or at the start of a part; ~ada is
    the home folder of the user ada, if there is one.
    """
    # Path.expanduser raises for an unknown user, and this leaves ~name as it is
    return _HOME.sub(lambda match: match[1] + os.path.expanduser(match[2]), text)  # noqa: PTH111


def _spell_value(text: str, parse: Parse) -> str:
    """Returns a value that is not text, such as a number or the name of a group's file; with quotes
    only if Hydra cannot read it without them.
    """
    return text if text[:1] in ("[", "{") or _is_understood(text, parse) else quote(text)


def _spell_text(text: str, parse: Parse) -> str:
    """Returns a text with quotes, unless Hydra reads exactly this text without them."""
    if text[:1] in ("'", '"') and _is_understood(text, parse):
        return text
    try:
        same = parse(text) == text
    except ConfigError:
        same = False
    return text if same else quote(text)


def _is_understood(text: str, parse: Parse) -> bool:
    try:
        parse(text)
    except ConfigError:
        return False
    return True
