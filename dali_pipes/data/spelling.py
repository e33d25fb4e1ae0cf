"""Arguments of `Manifest`'s class methods in the texts of errors, as Python and as a command line
write them.

The command line has them as options of its group `data` (config.py).
"""

from typing import Any, TypeAlias

from dali_pipes.errors import Spelling

Text: TypeAlias = tuple[str | Spelling, ...]


def argument(name: str, value: Any = ...) -> Spelling:
    """Returns encoding='latin-1', which is data.encoding=latin-1; without a value only the name."""
    if value is ...:
        return Spelling(f"{name}=", f"data.{name}=")
    # Hydra strips blanks around a value
    plain = f"'{value}'" if str(value).isspace() else value
    return Spelling(f"{name}={value!r}", f"data.{name}={plain}")


def no_labels() -> Spelling:
    """Returns how a source is opened without labels; a command line calls the option otherwise."""
    return Spelling("with_labels=False", "data.labels=false")


def images_folder(file: object, folder: object) -> Spelling:
    """Returns how a table or COCO file is opened whose images are in `folder`."""
    return Spelling(
        f"Manifest.open('{file}', images='{folder}')",
        f"data.train={file} data.train_images={folder}",
    )


def masks_folder(images: object, masks: object, only_both: bool = False) -> Spelling:
    """Returns how a folder of images is opened whose masks are in another one.

    Args:
        only_both: images without a mask are passed over.
    """
    plain = Spelling(
        f"Manifest.from_masks('{images}', '{masks}')",
        f"data.train={images} data.train_masks={masks}",
    )
    if not only_both:
        return plain
    return Spelling(
        f"{plain.python.removesuffix(')')}, missing='skip')",
        f"{plain.command_line} data.missing=skip",
    )
