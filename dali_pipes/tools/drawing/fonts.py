"""Fonts for pictures of pixels, where no browser looks for the letters.

Matplotlib's DejaVu Sans has Latin, Greek, Cyrillic, Arabic and Hebrew letters. `find_fonts` takes
installed fonts for letters that it lacks, such as Chinese ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from unicodedata import category

import matplotlib
from matplotlib.font_manager import findSystemFonts, fontManager, get_font
from PIL import ImageFont

_OWN = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # DejaVu Sans has it
_NAMED = 12  # classes that a line names


@dataclass(frozen=True, slots=True)
class Fonts:
    """Font files, of which the first one that has a letter draws it."""

    files: tuple[str, ...]

    def lack(self, text: str) -> bool:
        """Says whether no file has one of the letters."""
        return any(self._file_of(letter) is None for letter in text if not _is_empty(letter))

    def readable(self, text: str) -> str:
        """Returns the text with a replacement character for each letter that no file has."""
        return "".join(_UNKNOWN if self.lack(letter) else letter for letter in text)

    def name(self, classes: Sequence[str]) -> list[str]:
        """Returns the names of classes, with a number for each name that cannot be drawn."""
        return [
            f"class {number}" if self.lack(name) else name for number, name in enumerate(classes)
        ]

    def note(self, classes: Sequence[str]) -> str:
        """Returns a sentence with the names of the classes that have only a number; "" if there
        are none.
        """
        lacking = [(number, name) for number, name in enumerate(classes) if self.lack(name)]
        if not lacking:
            return ""
        named = ", ".join(f"class {number} is {name}" for number, name in lacking[:_NAMED])
        more = len(lacking) - _NAMED
        return (
            "No installed font has the letters of these names, so the picture shows numbers: "
            + named
            + (f", and {more:,} more" if more > 0 else "")
        )

    @property
    def families(self) -> list[str]:
        """Their names for Matplotlib's `font.family`."""
        for file in self.files[1:]:
            # Matplotlib's own list may be older than a font that was installed since
            if file not in {known.fname for known in fontManager.ttflist}:
                fontManager.addfont(file)
        return [get_font(file).family_name for file in self.files]

    def pieces(self, text: str, size: int) -> Iterator[tuple[str, Any]]:
        """Yields pieces of the text, each with Pillow's font of this size that has its letters."""
        for file, letters in groupby(text, lambda letter: self._file_of(letter) or self.files[0]):
            yield "".join(letters), _pillow_font(file, size)

    def _file_of(self, letter: str) -> str | None:
        return next(
            (file for file in self.files if get_font(file).get_char_index(ord(letter))), None
        )


def find_fonts(texts: Iterable[str]) -> Fonts:
    """Returns DejaVu Sans, with installed fonts for those letters of the texts that it lacks."""
    fonts = Fonts((str(_OWN),))
    missing = {letter for text in texts for letter in text if fonts.lack(letter)}
    if not missing:
        return fonts

    # as few fonts as possible, so that a name is of one style
    having = {file: _letters_of(file, missing) for file in sorted(findSystemFonts())}
    files = list(fonts.files)
    while having and (found := max(having.items(), key=lambda one: _rank(*one)))[1]:
        files.append(found[0])
        having = {file: letters - found[1] for file, letters in having.items()}
    return Fonts(tuple(files))


def _is_empty(letter: str) -> bool:
    """Says whether a letter has no shape, as a space, or a sign that joins two others."""
    return letter.isspace() or category(letter) == "Cf" or letter in "\ufe0e\ufe0f"


def _letters_of(file: str, letters: set[str]) -> frozenset[str]:
    try:
        font = get_font(file)
    except (OSError, RuntimeError):  # a file that is no font, or one of bitmaps
        return frozenset()
    if not font.scalable:
        return frozenset()
    return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))


def _rank(file: str, letters: frozenset[str]) -> tuple[int, bool]:
    return len(letters), get_font(file).style_name == "Regular" if letters else False


@cache
def _pillow_font(file: str, size: int) -> Any:
    return ImageFont.truetype(file, size)
