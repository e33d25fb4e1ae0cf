"""Files from an untrusted .tar.gz: checked, read by name into memory, and never extracted."""

import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from dali_pipes.errors import PreparationError
from dali_pipes.system.progress import track

_BLOCK = 2**20


def digest(archive: Path) -> str:
    """SHA-256, in hexadecimal.

    Raises:
        PreparationError: there is no such file.
    """
    if not archive.is_file():
        raise PreparationError(f"{archive}: no such file; give the archive as it was downloaded")
    found = hashlib.sha256()
    with archive.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        for block in track(blocks, "checking the archive", -(-archive.stat().st_size // _BLOCK)):
            found.update(block)
    return found.hexdigest()


def first_name(archive: Path) -> str:
    """The name of its first entry; "" if it cannot be read."""
    try:
        with tarfile.open(archive, "r|gz") as tar:
            member = tar.next()
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return ""
    return member.name if member else ""


def read_members(archive: Path, largest: Mapping[str, int]) -> dict[str, bytes]:
    """The regular files of these names. Links, folders and other names are skipped; of two with the same name the first counts.

    Args:
        largest: by name, the maximum size of the file in bytes.

    Raises:
        PreparationError: the archive is damaged, a file is missing or too large, or the archive holds far more than it should.
    """
    found: dict[str, bytes] = {}
    passed = 0
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in track(tar, "reading the archive", len(largest) + 3):
                passed += member.size
                if passed > 2 * sum(largest.values()) + _BLOCK:
                    raise PreparationError(f"{archive} holds far more than it should; download it again")
                if not member.isreg() or member.name not in largest or member.name in found:
                    continue
                if member.size > largest[member.name]:
                    raise PreparationError(f"{archive}: {member.name} has {member.size:,} bytes, more than it can have")
                file = tar.extractfile(member)
                found[member.name] = file.read() if file else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise PreparationError(f"{archive} is damaged or cut short ({error}); download it again") from None
    missing = [name for name in largest if name not in found]
    if missing:
        raise PreparationError(f"{archive} holds no {missing[0]}; give the binary version as it was downloaded")
    return found
