"""Drawn tables, trees and annotation files: what was written is delivered or named, with the
classes that a reader of a few lines finds, which knows nothing of the package's.
"""

import csv
import itertools
import json
import tarfile
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from later import later
from make_shards import add
from PIL import Image

import dali_pipes as dp

hf = later("datasets")
pytestmark = pytest.mark.slow
NAMES = ["cat", "dog", "é", "two words", "10x"]
FOLDERS = itertools.count()


def drawn(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.fixture
def place(tmp_path):
    def make():
        folder = tmp_path / str(next(FOLDERS))
        folder.mkdir()
        return folder

    return make


def content(number, state):
    """The bytes of a file: a good image, or one that cannot be used."""
    return {"good": picture(number), "cut": picture(number)[:20], "empty": b""}[state]


STATES = st.sampled_from(["good"] * 6 + ["cut", "empty"])


# tables

# how a label is written: what is written of the class numbers of an image, and whether these are
# several
WRITTEN = {
    "number": (lambda numbers: numbers[0], False),
    "name": (lambda numbers: NAMES[numbers[0]], False),
    "numbers": (list, True),
    "names": (lambda numbers: [NAMES[number] for number in numbers], True),
    "vector": (lambda numbers: [int(place in numbers) for place in range(len(NAMES))], True),
    "booleans": (lambda numbers: [place in numbers for place in range(len(NAMES))], True),
    "text of numbers": (lambda numbers: str(numbers), True),
    "JSON of names": (lambda numbers: json.dumps([NAMES[n] for n in numbers]), True),
    "NumPy's vector": (
        lambda numbers: str(np.array([int(place in numbers) for place in range(len(NAMES))])),
        True,
    ),
}
ONLY_ONE = ("tar", "json")


@st.composite
def tables(draw):
    source = draw(st.sampled_from(["csv", "parquet", "embedded", "from_hf", "tar", "json"]))
    forms = ["number"] if source in ONLY_ONE else list(WRITTEN)
    form = draw(st.sampled_from(forms))
    lowest = draw(st.sampled_from([0, 0, 1])) if form == "number" else 0
    several = WRITTEN[form][1]
    numbers = st.integers(lowest, len(NAMES) - 1)
    classes = st.lists(numbers, min_size=not several, max_size=3 if several else 1, unique=True)
    rows = draw(st.lists(st.tuples(classes.map(sorted), STATES), min_size=1, max_size=9))
    return source, form, rows


def write(folder, source, form, rows):
    """Writes the table; returns what opens it."""
    cells = [WRITTEN[form][0](numbers) for numbers, _ in rows]
    images = [content(number, state) for number, (_, state) in enumerate(rows)]
    paths = [f"{number}.png" for number in range(len(rows))]
    options = {"progress": False}
    if source in ONLY_ONE:
        with tarfile.open(folder / "0.tar", "w") as archive:
            for number, image in enumerate(images):
                add(archive, f"{number}.png", image)
                text = (
                    json.dumps({"label": cells[number]}) if source == "json" else str(cells[number])
                )
                add(archive, f"{number}.{'json' if source == 'json' else 'cls'}", text.encode())
        return lambda: dp.Manifest.open(folder, **options)
    if source == "embedded":
        column = [{"bytes": image, "path": path} for image, path in zip(images, paths, strict=True)]
        pq.write_table(pa.table({"image": column, "label": cells}), folder / "t.parquet")
        return lambda: dp.Manifest.open(folder / "t.parquet", **options)

    for path, image in zip(paths, images, strict=True):
        (folder / path).write_bytes(image)
    if source == "parquet":
        pq.write_table(pa.table({"path": paths, "label": cells}), folder / "t.parquet")
        return lambda: dp.Manifest.open(folder / "t.parquet", **options)
    if source == "from_hf":
        table = {"image": [str(folder / path) for path in paths], "label": cells}
        dataset = hf.Dataset.from_dict(table).cast_column("image", hf.Image())
        return lambda: dp.Manifest.from_hf(dataset, **options)
    with open(folder / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *zip(paths, cells, strict=True)])
    return lambda: dp.Manifest.open(folder / "t.csv", **options)


def meant(form, rows):
    """The names of the classes of each image; None: nobody can know."""
    by_number = form in (
        "number",
        "numbers",
        "text of numbers",
        "vector",
        "booleans",
        "NumPy's vector",
    )
    sets = [[str(n) if by_number else NAMES[n] for n in numbers] for numbers, _ in rows]
    if form in ("numbers", "text of numbers"):
        lengths = {len(numbers) for numbers, _ in rows}
        # lists of two, all [0, 1], are vectors by the rule that docs/targets.md has
        if lengths == {2} and all(max(numbers) < 2 for numbers, _ in rows):
            return [[str(place) for place, one in enumerate(numbers) if one] for numbers, _ in rows]
    return sets


def classes_of(manifest):
    """The names of the classes of each image, by its number."""
    labels = [np.atleast_1d(row).tolist() for row in manifest.labels]
    return {
        width - 1: sorted(manifest.classes[label] for label in row if label >= 0)
        for width, row in zip(manifest.sizes[:, 1].tolist(), labels, strict=True)
    }


@drawn(250)
@given(tables())
def test_tables(place, table):
    source, form, rows = table
    read = write(place(), source, form, rows)
    good = [number for number, (_, state) in enumerate(rows) if state == "good"]
    if not any(numbers for numbers, _ in rows) and form not in (
        "vector",
        "booleans",
        "NumPy's vector",
    ):
        return  # an empty column has no kind of labels
    try:
        manifest = read()
    except dp.DaliPipesError:
        # only where nothing is left
        assert not good
        return
    expected = meant(form, rows)
    assert classes_of(manifest) == {number: sorted(expected[number]) for number in good}
    assert len(manifest) + len(manifest.problems) == len(rows)
    counted = sum(each.number for each in manifest.omissions if each.unit == "image")
    assert len(manifest) + counted == len(rows)

    if form == "number":
        used = {rows[number][0][0] for number in good}
        dead = set(range(max(numbers[0] for numbers, _ in rows) + 1)) - used
        said = [each for each in manifest.omissions if each.unit in ("doubt", "note")]
        assert len(said) == bool(dead and used)
        assert [each.unit for each in said] == (["doubt"] if dead == {0} and used else ["note"])[
            : len(said)
        ]
    folder = place()
    manifest.save(folder / "m.arrow")
    loaded = dp.Manifest.load(folder / "m.arrow")
    assert classes_of(loaded) == classes_of(manifest) and loaded.omissions == manifest.omissions


# trees


@st.composite
def trees(draw):
    numbers = st.lists(st.integers(0, 12).map(str), min_size=1, max_size=6, unique=True)
    names = st.lists(
        st.sampled_from([*NAMES, "e\u0301t\u0301"]), min_size=1, max_size=4, unique=True
    )
    classes = draw(st.one_of(numbers, names))
    files = st.lists(
        st.tuples(
            st.sampled_from(classes), STATES, st.sampled_from([".png", ".PNG", ".gif", ".txt"])
        ),
        min_size=1,
        max_size=10,
    )
    return classes, draw(files)


@drawn(150)
@given(trees())
def test_trees(place, tree):
    classes, files = tree
    folder = place()
    for name in classes:
        (folder / name).mkdir()
    for number, (name, state, ending) in enumerate(files):
        (folder / name / f"{number}{ending}").write_bytes(content(number, state))

    images = [each for each in files if each[2].lower() == ".png"]
    good = {n: each[0] for n, each in enumerate(files) if each in images and each[1] == "good"}
    try:
        manifest = dp.Manifest.open(folder, progress=False)
    except dp.DaliPipesError:
        assert not good or not images
        return
    assert manifest.classes == [unicodedata.normalize("NFC", name) for name in sorted(classes)]
    got = {number: names[0] for number, names in classes_of(manifest).items()}
    assert {n: unicodedata.normalize("NFC", name) for n, name in good.items()} == got
    counts = Counter(unit for each in manifest.omissions for unit in [each.unit] * each.number)
    texts = sum(ending == ".txt" for *_, ending in files)
    assert len(manifest) + counts["image"] == len(files) - texts and counts["file"] == texts

    are_numbers = all(name.isdecimal() for name in classes)
    by_text = are_numbers and sorted(classes) != sorted(classes, key=int)
    assert any(each.unit == "doubt" for each in manifest.omissions) >= by_text
    if not are_numbers:
        assert not counts["doubt"]


# annotation files

SIDE = 40


@st.composite
def annotations(draw):
    count = draw(st.integers(1, 4))
    kinds = draw(st.lists(st.integers(1, 90), min_size=1, max_size=4, unique=True))
    boxes = st.tuples(*[st.integers(-3, SIDE)] * 2, *[st.integers(-1, SIDE)] * 2)
    objects = st.lists(
        st.tuples(st.integers(0, count), st.sampled_from([*kinds, 91]), boxes), max_size=8
    )
    begins = draw(st.sampled_from(["", "./", "C:\\x\\", "/other/"]))
    return count, kinds, draw(objects), begins


@drawn(150)
@given(annotations())
def test_annotation_files(place, drawn_file):
    count, kinds, objects, begins = drawn_file
    folder = place()
    for number in range(count):
        Image.new("RGB", (SIDE, SIDE)).save(folder / f"{number}.png")
    file = folder / "a.json"
    file.write_text(
        json.dumps(
            {
                "images": [{"id": n + 5, "file_name": f"{begins}{n}.png"} for n in range(count)],
                "categories": [{"id": kind, "name": f"kind {kind}"} for kind in kinds],
                "annotations": [
                    {"id": n, "image_id": image + 5, "category_id": kind, "bbox": box}
                    for n, (image, kind, box) in enumerate(objects)
                ],
            }
        )
    )

    def is_good(image, kind, box):
        x, y, width, height = box
        is_inside = x + width > 0 and y + height > 0 and x < SIDE and y < SIDE
        # within the first pixel, as if in fractions
        is_tiny = (
            x >= 0 and y >= 0 and x + width <= 1 and y + height <= 1 and min(width, height) < 1
        )
        return (
            image < count and kind != 91 and width > 0 and height > 0 and is_inside and not is_tiny
        )

    good = [each for each in objects if is_good(*each)]
    try:
        manifest = dp.Manifest.open(file, progress=False)
    except dp.DaliPipesError:
        assert objects and not good
        return
    got = manifest.take_objects(np.arange(len(manifest)))
    assert len(manifest) == count
    delivered = [
        (image, manifest.classes[label], *box)
        for image, label, box in zip(
            got.images.tolist(), got.labels.tolist(), got.boxes.tolist(), strict=True
        )
    ]
    expected = [
        (image, f"kind {kind}", x, y, x + width, y + height)
        for image, kind, (x, y, width, height) in sorted(good, key=lambda each: each[0])
    ]
    assert delivered == expected
    counted = sum(each.number for each in manifest.omissions if each.unit == "object")
    strays = sum(each.number for each in manifest.omissions if each.unit == "image")
    assert len(delivered) + counted + strays == len(objects)
