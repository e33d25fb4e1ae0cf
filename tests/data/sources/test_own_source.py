"""A kind of source is one file and a row of each of three tables."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

import dali_pipes as dp
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.sources import kinds, opening, options
from dali_pipes.data.sources.reading import finish
from dali_pipes.data.sources.rows.files import file_rows, read_headers


def read_list(source, options):
    """Reads a file whose lines are a class, a tab and a path."""
    options.refuse_untaken(source, "list")
    file = Path(source)
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    classes, paths = zip(*lines, strict=True)
    names = sorted(set(classes))
    files = [(os.fsencode(path), None) for path in paths]
    headers = list(read_headers(file.parent, files, len(files), options))
    labels = pa.array([names.index(name) for name in classes], pa.int64())
    rows = file_rows([path for path, _ in files], labels, headers)
    return finish(ImageTable.from_rows(file.parent, names, rows), options)


@pytest.fixture
def listed(monkeypatch, manifest):
    monkeypatch.setitem(kinds.ENDINGS, ".list", "list")
    monkeypatch.setitem(options.KINDS, "list", "a list of files")
    monkeypatch.setitem(opening.READERS, "list", read_list)
    root = Path(manifest.root)
    paths = [manifest.path(i).relative_to(root) for i in range(9)]
    lines = [f"{manifest.classes[manifest.labels[i]]}\t{path}" for i, path in enumerate(paths)]
    file = root / "nine.list"
    file.write_text("\n".join([*lines, f"{manifest.classes[0]}\tgone.jpg"]))
    yield file
    file.unlink()


def test_a_row_is_enough_to_open_a_source(listed, manifest):
    opened = dp.Manifest.open(listed, progress=False)
    assert [opened.name(i) for i in range(len(opened))] == [manifest.name(i) for i in range(9)]
    assert [opened.classes[each] for each in opened.labels] == [
        manifest.classes[each] for each in manifest.labels[:9]
    ]
    ((path, problem),) = opened.problems
    assert path.endswith("gone.jpg") and problem

    numbered = dp.Manifest.open(listed, classes=[*manifest.classes, "more"], progress=False)
    assert numbered.classes == [*manifest.classes, "more"]
    with pytest.raises(dp.OmissionError):
        dp.Manifest.open(listed, strict=True, progress=False)
    with pytest.raises(dp.ConfigError, match=r"encoding would change nothing: .* a list of files"):
        dp.Manifest.open(listed, encoding="latin-1", progress=False)


def test_a_row_is_enough_for_a_loader(listed):
    transform = dp.EvalTransform(size=16, resize=16)
    options = {"transform": transform, "batch_size": 9, "max_bad_fraction": 0.2}
    opened = dp.Manifest.open(listed, progress=False)
    with dp.build_loader(opened, dp.TorchConfig(num_workers=0), device="cpu", **options) as loader:
        (batch,) = loader
    assert batch.labels.tolist() == opened.labels.tolist()
