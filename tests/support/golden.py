"""What comes out today, kept in a file, so that a change says only what it means to change.

`UPDATE_GOLDEN=1 pytest tests/golden` writes the files anew; `git diff` then shows what moved.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SHOWN = 40  # differences, of which a change of everything has thousands


def hold_to(file: Path, found: Mapping[str, Any], part: str | None = None) -> None:
    """Fails with each place where `found` differs from the JSON file: what it was, what it is.

    What JSON cannot tell apart (tuples and lists, whole keys and texts) is equal here.

    Args:
        part: the key of the file that `found` belongs to, where several tests share a file; None:
            it is all of it.
    """
    found = json.loads(json.dumps(found, ensure_ascii=False))
    kept = json.loads(file.read_text()) if file.exists() else {}
    if part is not None:
        found = {**kept, part: found}
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        return

    lines = [f"{place}: was {was}, is {now}" for place, was, now in differences(kept, found)]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
    assert not lines, f"{file.name} does not say so any more:\n" + "\n".join(lines)


def differences(was: Any, now: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """Each place at which two values of JSON differ, with what is on either side."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            inner = f"{place} / {key}" if place else key
            if key not in now or key not in was:
                yield inner, _shown(was.get(key, _NOTHING)), _shown(now.get(key, _NOTHING))
            else:
                yield from differences(was[key], now[key], inner)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (before, after) in enumerate(zip(was, now, strict=True)):
            yield from differences(before, after, f"{place} [{index}]")
    elif type(was) is not type(now) or was != now:
        yield place, _shown(was), _shown(now)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _shown(value: Any) -> str:
    text = repr(value) if value is _NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} letters)"
