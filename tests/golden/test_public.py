"""The public names of `dali_pipes`, and how each is called: parameters with their kinds and
defaults. Types are left out, since Python writes them in other words from version to version.
"""

import inspect
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from golden import hold_to

import dali_pipes as dp

# what users call of the objects that they hold; options are fields, and are all kept
METHODS = {
    "Batch": "pin_memory targets text to",
    "BatchDraws": "uniform",
    "Loader": "close explain load_state_dict set_epoch state_dict stats",
    "Manifest": (
        "concat describe filter from_coco from_hf from_masks from_table load map_classes mix name "
        "of_whole open path read save save_index scan split subset verify with_classes"
    ),
    "Plan": "batch epoch_size order steps",
    "Rank": "from_env",
}
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "by place",
    inspect.Parameter.VAR_POSITIONAL: "all further ones",
    inspect.Parameter.KEYWORD_ONLY: "by name",
    inspect.Parameter.VAR_KEYWORD: "all further names",
}


def describe(name):
    value = getattr(dp, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return {"is": "a type"}

    said = {"parameters": parameters_of(value)}
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__mro__[1:]]
        said["is a"] = [base for base in bases if base in dp.__all__ or base.endswith("Error")]
    if name in METHODS:
        members = {each: getattr(value, each, None) for each in METHODS[name].split()}
        said["methods"] = {
            each: parameters_of(member) if callable(member) else "a value" if member else "nothing"
            for each, member in members.items()
        }
    return said


def parameters_of(value):
    """Returns each parameter with its place or kind, and its default."""
    makers = {}
    if is_dataclass(value):
        # what is made anew for each object has no default in the signature
        made = [each for each in fields(value) if each.default_factory is not MISSING]
        makers = {each.name: each.default_factory for each in made}

    found = {}
    for place, parameter in enumerate(inspect.signature(value).parameters.values()):
        said = KINDS.get(parameter.kind, f"number {place}")
        if parameter.name in makers:
            said += f", default {makers[parameter.name]()!r}"
        elif parameter.default is not parameter.empty:
            said += f", default {parameter.default!r}"
        found[parameter.name] = said
    return found


def test_the_public_names_are_called_as_before():
    found = {name: describe(name) for name in dp.__all__}
    assert " at 0x" not in str(found)
    hold_to(Path(__file__).with_name("public.json"), found)
