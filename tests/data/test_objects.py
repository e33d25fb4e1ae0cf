"""Targets stay with their images, whatever becomes of the manifest; one that is damaged is
refused.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dali_pipes import Manifest, ManifestError, Targets
from dali_pipes.data.objects import Keypoints
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import RULES, replace_column

TARGETS = Targets(
    boxes="b", box_labels="l", keypoints="k", keypoint_names=["left", "right"], mask="m", text="t"
)


def made(folder, names, targets=TARGETS, left=0.0):
    """Image n has n objects of the class names[n - 1]; the first box of the last image is empty."""
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (40, 30)).save(folder / f"{number}.jpg")
        Image.new("L", (40, 30)).save(folder / f"{number}.png")
    columns = {
        "path": [f"{number}.jpg" for number in range(4)],
        "m": [f"{number}.png" for number in range(4)],
        "t": [f"{folder.name} {number}" for number in range(4)],
        "b": [
            [
                [left + number, 0.0, 30.0, 0.0 if number == 3 and not k else 20.0]
                for k in range(number)
            ]
            for number in range(4)
        ],
        "l": [[names[number - 1]] * number for number in range(4)],
        "k": [[[[1.0, 2.0, 2.0], [3.0, 4.0, 1.0]]] * number for number in range(4)],
    }
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return Manifest.from_table(folder / "t.parquet", targets=targets, progress=False)


@pytest.fixture
def manifest(tmp_path):
    return made(tmp_path / "one", ["cat", "dog", "emu"])


def described(manifest):
    """By the name of the image: its mask, text, and the class name, box and keypoints of each
    object.
    """
    found = {}
    for number in range(len(manifest)):
        objects = manifest.take_objects(np.array([number]))
        names = [manifest.classes[label] for label in objects.labels]
        shown = manifest.labels[number]
        assert {manifest.classes[label] for label in shown[shown >= 0]} == set(names)
        text = manifest.take_texts("text", np.array([number]))
        cells = names, objects.boxes.tolist(), objects.areas.tolist(), objects.keypoints.tolist()
        found[manifest.name(number)] = (str(manifest.mask_extent(number)), text, *cells)
    return found


@pytest.mark.parametrize("name", ["m.arrow", "m.parquet"])
def test_saved_and_loaded_targets_are_the_same(manifest, tmp_path, name):
    manifest.save(tmp_path / name)
    loaded = Manifest.load(tmp_path / name)
    loaded.verify()
    assert loaded.table.equals(manifest.table)
    assert (
        loaded.facts.keypoints
        == manifest.facts.keypoints
        == (
            ["left", "right"],
            [1, 0],
        )
    )
    assert (
        described(loaded) == described(manifest)
        and loaded.dropped == manifest.dropped
        and len(loaded.dropped) == 1
    )
    assert loaded.fingerprint == manifest.fingerprint


def test_parts_keep_their_targets(manifest):
    whole = described(manifest)
    for part in (
        manifest.subset(np.array([3, 1])),
        manifest.filter("path != '0.jpg'"),
        *manifest.split({"a": 0.5, "b": 0.5}).values(),
    ):
        assert (
            described(part) == {name: whole[name] for name in described(part)}
            and part.facts.keypoints == manifest.facts.keypoints
        )
    assert not manifest.subset(np.arange(3)).dropped


def test_joined_manifests_keep_their_targets(manifest, tmp_path):
    other = made(tmp_path / "two/deep", ["emu", "fox", "cat"])
    joined = Manifest.concat([manifest, other])
    assert (
        joined.classes == ["cat", "dog", "emu", "fox"]
        and joined.facts.keypoints == manifest.facts.keypoints
    )
    assert described(joined) == described(manifest) | described(other) and len(joined.dropped) == 2
    mixed = Manifest.mix({"one": (manifest, 0.5), "two": (other, 0.5)})
    assert described(mixed) == described(joined) and mixed.facts.keypoints and mixed.facts.mixture
    part = Manifest.concat([manifest.subset(np.array([2])), other])
    assert described(part).items() <= described(joined).items()


def test_classes_are_renumbered_in_the_objects_too(manifest):
    merged = manifest.map_classes({"emu": "cat"})
    assert merged.classes == ["cat", "dog"] and merged.take_objects(
        np.arange(4)
    ).labels.tolist() == [0, 1, 1, 0, 0]
    assert merged.labels.ravel().tolist() == [-1, 0, 1, 0]


def test_objects_of_merged_classes_are_in_the_label_once(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "0.jpg")
    pq.write_table(
        pa.table({"path": ["0.jpg"], "b": [[[0, 0, 9, 9]] * 2], "l": [["cat", "dog"]]}),
        tmp_path / "t.parquet",
    )
    manifest = Manifest.from_table(
        tmp_path / "t.parquet", targets=Targets(boxes="b", box_labels="l"), progress=False
    )
    assert manifest.map_classes({"dog": "cat"}).labels.tolist() == [[0]]


def test_manifests_of_different_targets_are_not_joined(manifest, tmp_path):
    without = made(tmp_path / "two", ["cat"] * 3, Targets(boxes="b", box_labels="l", mask="m"))
    with pytest.raises(ManifestError, match="different keypoints"):
        Manifest.concat([manifest, without])
    texts = made(
        tmp_path / "three", ["cat"] * 3, Targets(boxes="b", box_labels="l", mask="m", text="t")
    )
    with pytest.raises(ManifestError, match="only some of the manifests have text"):
        Manifest.concat([texts, without])


DAMAGES = [
    ("boxes", [[0.0] * 4, [], [], []]),
    ("box_labels", [[0], [], [0], [0]]),
    ("box_labels", [[], [3], [0, 0], [0, 0]]),
    ("box_labels", [[], [-1], [0, 0], [0, 0]]),
    ("areas", [[], [], [1.0, 1.0], [1.0, 1.0]]),
    ("keypoints", [[], [1.0] * 3, [1.0] * 12, [1.0] * 12]),
]


@pytest.mark.parametrize(("name", "values"), DAMAGES)
@pytest.mark.parametrize("file", ["m.arrow", "m.parquet"])
def test_a_damaged_manifest_is_refused(manifest, tmp_path, name, values, file):
    samples = manifest.samples
    forged = replace_column(
        samples, f"target:{name}", pa.array(values, samples[f"target:{name}"].type)
    )
    with pytest.raises(ManifestError, match=r"the manifest has objects .*scan again"):
        Manifest.from_rows(manifest.root, manifest.classes, forged, facts=manifest.facts)
    saved.write(
        tmp_path / file,
        str(manifest.root),
        manifest.classes,
        forged,
        manifest.table[:0],
        {"keypoints": manifest.facts.keypoints, "rules": RULES},
    )
    with pytest.raises(ManifestError, match=r"the manifest has objects .*scan again"):
        Manifest.load(tmp_path / file).take_objects(np.arange(4))


@pytest.mark.parametrize("path", ["/etc/passwd", "a\0b"])
def test_a_strange_path_of_a_mask_is_refused(manifest, path):
    forged = replace_column(
        manifest.samples, "target:mask", pa.array([path] * 4, pa.large_string())
    )
    with pytest.raises(ManifestError, match="a path that is absolute or has a NUL byte"):
        Manifest.from_rows(
            manifest.root, manifest.classes, forged, facts=manifest.facts
        ).mask_extent(0)


@pytest.mark.parametrize(
    "keypoints",
    [1, [["a"]], [["a"], [1]], [["a", "b"], [0, 0]], [[1], [0]], [["a"], ["x"]], [["a"], [-1]]],
)
def test_strange_keypoints_are_refused(manifest, tmp_path, keypoints):
    known = {"keypoints": keypoints}
    saved.write(
        tmp_path / "m.arrow",
        str(manifest.root),
        manifest.classes,
        manifest.samples,
        manifest.table[:0],
        {"rules": RULES} | known,
    )
    with pytest.raises(ManifestError, match="keypoints"):
        Manifest.load(tmp_path / "m.arrow").facts.keypoints  # noqa: B018


def test_strange_target_columns_are_no_manifest(manifest, tmp_path):
    odd = manifest.samples.append_column("target:odd", pa.array([1] * 4))
    saved.write(
        tmp_path / "m.arrow", str(manifest.root), manifest.classes, odd, odd[:0], {"rules": RULES}
    )
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.load(tmp_path / "m.arrow")
    with pytest.raises(ManifestError, match="not a manifest"):
        text = replace_column(manifest.samples, "target:boxes", pa.array([json.dumps([])] * 4))
        saved.write(
            tmp_path / "n.arrow",
            str(manifest.root),
            manifest.classes,
            text,
            text[:0],
            {"rules": RULES},
        )
        Manifest.load(tmp_path / "n.arrow")


def test_keypoints_swap_by_their_names():
    named = Keypoints.from_names(
        ["nose", "left_eye", "right_eye", "Left Ear", "Right Ear", "left_only"]
    )
    assert named.flipped == [0, 2, 1, 4, 3, 5] and Keypoints.read(list(named)) == named


@pytest.mark.parametrize("ids", [[1, 0], (1, 0), np.array([1, 0], np.int32)])
def test_ids_of_objects_are_any_numbers(ids, tmp_path):
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    rows = {"path": ["0.png", "1.png"], "b": [[[0, 0, 4, 4]], []], "l": [[0], []]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    targets = Targets(boxes="b", box_labels="l")
    manifest = Manifest.open(tmp_path / "t.parquet", targets=targets, progress=False)
    assert manifest.take_objects(ids).counts.tolist() == [0, 1]
