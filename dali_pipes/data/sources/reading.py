"""What a reader does last: it notes the options that its rows depend on (`note_reading`), for an
index of them, gives the images their classes, looks for what is in doubt, and refuses that and what
is left out (`finish`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dali_pipes.data.doubts import find_doubts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.sets.classes import give_classes
from dali_pipes.data.table_options import TableOptions


def note_reading(
    targets: Targets, with_labels: bool, table: TableOptions | None = None, bits: int = 8
) -> dict[str, Any]:
    """The options that a manifest's rows depend on and that are not the defaults.

    They are in JSON's types.
    """
    noted: dict[str, Any] = {} if with_labels else {"with_labels": False}
    if bits != 8:
        noted["bits"] = bits
    for name, options, default in (
        ("targets", targets, NO_TARGETS),
        ("table", table or TableOptions(), TableOptions()),
    ):
        usual = asdict(default)
        if changed := {
            option: value for option, value in asdict(options).items() if value != usual[option]
        }:
            noted[name] = changed

    # options such as box_format change nothing where no target is read
    if not targets.named:
        noted.pop("targets", None)

    # through JSON, since an index gives them back so: lists, and text for keys
    return dict(json.loads(json.dumps(noted)))


def finish(
    images: ImageTable,
    classes: Sequence[str] | None,
    strict: bool,
    are_named: bool = False,
    whole: ImageTable | None = None,
) -> ImageTable:
    """Gives the images these classes, and finds what is in doubt.

    Args:
        are_named: whether the source says which class has which number.
        whole: those by which the classes were numbered; None: these.

    Raises:
        ManifestError: an image has a class that is none of them.
        OmissionError: `strict`, and something is left out or in doubt.
    """
    if classes is not None:
        images = give_classes(images, classes)
    if images.facts.doubts is None:
        doubts = find_doubts(images, are_named or classes is not None, whole)
        images = images.with_facts(doubts=doubts)
    if strict:
        images.refuse_omissions()
    return images
