"""What a reader does last: it notes the options that its rows depend on (`note_reading`), for an
index of them, gives the images their classes, looks for what is in doubt, and refuses that and what
is left out (`finish`).
"""

import json
from dataclasses import asdict
from typing import Any

from dali_pipes.data.doubts import find_doubts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.objects import NO_TARGETS
from dali_pipes.data.sets.classes import give_classes
from dali_pipes.data.sources.options import SourceOptions

# how a table is read, by option: the attribute that has its value, also where nobody gave one
_OF_ROWS = {
    "path_column": "path_name",
    "label_column": "label_name",
    "label_separator": "label_separator",
    "delimiter": "delimiter",
    "encoding": "encoding",
    "task": "task",
}


def note_reading(options: SourceOptions) -> dict[str, Any]:
    """The options that a manifest's rows depend on and that are not the defaults.

    They are in JSON's types.
    """
    noted: dict[str, Any] = {} if options.with_labels else {"with_labels": False}
    if options.bits != 8:
        noted["bits"] = options.bits
    usual = SourceOptions()
    for name, value_of in _OF_ROWS.items():
        if (value := getattr(options, value_of)) != getattr(usual, value_of):
            noted[name] = value

    # options such as box_format change nothing where no target is read
    if options.targets.named:
        targets, defaults = asdict(options.targets), asdict(NO_TARGETS)
        noted["targets"] = {
            name: value for name, value in targets.items() if value != defaults[name]
        }

    # through JSON, since an index gives them back so: lists, and text for keys
    return dict(json.loads(json.dumps(noted)))


def finish(
    images: ImageTable,
    options: SourceOptions,
    are_named: bool = False,
    whole: ImageTable | None = None,
) -> ImageTable:
    """Gives the images the classes of `options`, and finds what is in doubt.

    Args:
        are_named: whether the source says which class has which number.
        whole: those by which the classes were numbered; None: these.

    Raises:
        ManifestError: an image has a class that is none of them.
        OmissionError: `options.strict`, and something is left out or in doubt.
    """
    classes = options.classes
    if classes is not None:
        images = give_classes(images, classes)
    if images.facts.doubts is None:
        doubts = find_doubts(images, are_named or classes is not None, whole)
        images = images.with_facts(doubts=doubts)
    if options.strict:
        images.refuse_omissions()
    return images
