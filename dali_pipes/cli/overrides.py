"""The words of a command line as Hydra's grammar wants them, so that a name of a file needs no
quotes but the shell's own.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from dali_pipes.errors import ConfigError

# what Hydra makes of the text of a word: its value, or ConfigError
Parse = Callable[[str], Any]

_FUNCTION = re.compile(r"(choice|glob|range|interval|shuffle|sort|tag|extend_list)\(")  # of Hydra's
_HOME = re.compile(r"(^|[\[{,'\"=])(~[a-z_][\w-]*|~)(?=$|[/,\]}'\"])")
_COMMA = re.compile(r",(?![^{}]*\})")  # outside of braces, where it parts the values of a sweep
_NO_PATHS = ("data.filter",)


def text_options(schema: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """The options that are text, such as ("data.train", False), or lists of texts, of which the
    second is true.
    """
    for each in fields(schema):
        kind, name = each.type, f"{prefix}{each.name}"
        if is_dataclass(kind):
            yield from text_options(kind, f"{name}.")
        elif kind in (str, str | None):
            yield name, False
        elif kind in (list[str], list[str] | None):
            yield name, True


def spelled(word: str, texts: dict[str, bool], sweeps: bool, parse: Parse) -> str:
    """A word NAME=VALUE as Hydra reads it, with ~ as the home folder and quotes around what would
    be something else than text.

    Args:
        texts: as `text_options` has them.
        sweeps: commas part the values of a sweep.
    """
    name, equals, text = word.partition("=")
    option = name.lstrip("+")
    if not equals or name.startswith("-"):
        return word
    text = text if option in _NO_PATHS else at_home(text)
    is_quoted = text[:1] in ("'", '"') and _is_understood(text, parse)
    if is_quoted or text in ("", "null") or _FUNCTION.match(text):
        return f"{name}={text}"
    if texts.get(option) is False and not (sweeps and text.startswith("[")):
        parts = _COMMA.split(text) if sweeps and option not in _NO_PATHS else [text]
        return f"{name}={','.join(_text(each, parse) for each in parts)}"
    if (
        texts.get(option)
        and text.startswith("[")
        and text.endswith("]")
        and not _is_understood(text, parse)
    ):
        return (
            f"{name}=[{','.join(_text(each.strip(), parse) for each in _COMMA.split(text[1:-1]))}]"
        )
    return f"{name}={_as_it_is(text, parse)}"


def at_home(text: str) -> str:
    """The text with the home folder in the place of ~, at its start or at that of a part; a user's,
    as ~ada, if there is one.
    """
    return _HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), text)  # noqa: PTH111  which leaves who is no user


def quoted(text: str) -> str:
    """In Hydra's quotes, in which a backslash is one only before a quote."""
    escaped = re.sub(r'(\\*)(")', r"\1\1\\\2", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'


def _as_it_is(text: str, parse: Parse) -> str:
    """With quotes, if Hydra reads nothing without them: of what is no text, such as a number or the
    name of a group's file.
    """
    return text if text[:1] in ("[", "{") or _is_understood(text, parse) else quoted(text)


def _text(text: str, parse: Parse) -> str:
    """With quotes, unless Hydra reads just this text without them."""
    if text[:1] in ("'", '"') and _is_understood(text, parse):
        return text
    try:
        same = parse(text) == text
    except ConfigError:
        same = False
    return text if same else quoted(text)


def _is_understood(text: str, parse: Parse) -> bool:
    try:
        parse(text)
    except ConfigError:
        return False
    return True
