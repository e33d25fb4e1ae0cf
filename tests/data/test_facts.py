"""What is known of a manifest as a whole: it goes through a file, and nobody patches it."""

import json
from dataclasses import FrozenInstanceError, fields, replace

import pyarrow as pa
import pytest

from dali_pipes import Manifest, ManifestError
from dali_pipes.data.facts import ManifestFacts, Mix
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import Keypoints
from dali_pipes.data.omissions import Omission

GIFS = Omission(".gif files", 2, ["a.gif", "b.gif"])
FULL = ManifestFacts(
    fingerprint="f" * 64,
    description={"images": 3, "mean_kib": 1.0, "median_size": [2, 2]},
    folders={"a": (5, 2, 1, [GIFS])},
    omissions=[GIFS],
    doubts=[Omission("odd; correct it", 3, ["a.jpg"], "doubt")],
    reading={"with_labels": False},
    parent_omissions=[GIFS],
    parent_bad_images=(1, 4),
    mixture=Mix("stratified", {"one": 0.25, "other": 0.75}),
    keypoints=Keypoints(["left", "right"], [1, 0]),
    names_flip_pairs=True,
    mask_values=MaskValues({255: 1}, True),
    masks_upright=True,
    boxes_upright=True,
    category_ids=[7, None],
    turned_by_source=True,
    has_wide=True,
)


def through_json(facts):
    return ManifestFacts.read(json.loads(json.dumps(facts.write())))


@pytest.mark.parametrize("facts", [FULL, ManifestFacts(), ManifestFacts(category_ids=[])])
def test_facts_go_through_a_file(facts):
    assert through_json(facts) == facts


def test_every_fact_is_tried():
    assert all(
        getattr(FULL, each.name) != getattr(ManifestFacts(), each.name)
        for each in fields(ManifestFacts)
    )


def test_a_file_may_say_nothing():
    assert ManifestFacts.read({}) == ManifestFacts()


def test_a_part_keeps_what_targets_mean_and_not_what_was_counted():
    part = FULL.of_part()
    assert part == ManifestFacts(
        **{
            name: getattr(FULL, name)
            for name in (
                "mixture",
                "keypoints",
                "names_flip_pairs",
                "mask_values",
                "masks_upright",
                "boxes_upright",
                "category_ids",
                "turned_by_source",
                "has_wide",
            )
        },
        doubts=[],
    )
    assert FULL.of_same_samples() == replace(FULL, fingerprint=None, description=None)


@pytest.mark.parametrize(
    "mixture",
    [
        *(3, [], ["stratified"], ["stratified", 3], "ab", ["stratified", {}]),
        *(["q", {"a": 1}], [7, {"a": 1}], ["stratified", {"a": None}], ["stratified", {"a": -1}]),
        *(["stratified", {"a": 0}], ["stratified", {"a": 10**400}], ["stratified", {"a": "x"}]),
    ],
)
def test_a_mixture_without_shares_is_refused(mixture):
    with pytest.raises(ManifestError, match="mixture has no shares"):
        ManifestFacts.read({"mixture": mixture})


@pytest.mark.parametrize("name", ["classes", "rows", "root", "is_told", "more"])
def test_a_manifest_is_frozen(manifest, name):
    with pytest.raises(FrozenInstanceError):
        setattr(manifest, name, [])


ANYTHING = [1, "x", [], {}, [1], {"a": 1}, [[]], True, -1.5, 10**400, {"a": [1.5, float("inf"), 3]}]


@pytest.mark.parametrize("name", [each.name for each in fields(ManifestFacts)])
def test_whatever_a_file_says_it_is_one_line_or_a_manifest(manifest, tmp_path, name):
    manifest.save(tmp_path / "m.arrow")
    table = pa.ipc.open_file(str(tmp_path / "m.arrow")).read_all()
    ((key, value),) = table.schema.metadata.items()
    for said in ANYTHING:
        head = json.loads(value)
        head["known"][name] = said
        forged = table.replace_schema_metadata({key: json.dumps(head)})
        with pa.ipc.new_file(str(tmp_path / "f.arrow"), forged.schema) as out:
            out.write_table(forged)
        try:
            loaded = Manifest.load(tmp_path / "f.arrow")
        except ManifestError as error:
            assert "\n" not in str(error)
        else:
            assert loaded.describe() and loaded.omissions is not None
            assert loaded.with_classes([*loaded.classes, "more"])


def test_metadata_without_an_end_is_refused(manifest, tmp_path):
    manifest.save(tmp_path / "m.arrow")
    table = pa.ipc.open_file(str(tmp_path / "m.arrow")).read_all()
    forged = table.replace_schema_metadata(dict.fromkeys(table.schema.metadata, "[" * 5000))
    with pa.ipc.new_file(str(tmp_path / "f.arrow"), forged.schema) as out:
        out.write_table(forged)
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.load(tmp_path / "f.arrow")
