"""index.arrow beside shards and images behind a URL, and images that are objects of their own."""

import io
import shutil
import tarfile
from pathlib import Path

import fsspec.implementations.local
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from make_shards import add
from PIL import Image

import dali_pipes as dp
from dali_pipes import Manifest, ManifestError
from dali_pipes.cli.conf import read_targets
from dali_pipes.data.shards import copies, store_requests
from dali_pipes.tools.scan.run import index

LOCAL = fsspec.implementations.local.LocalFileSystem
FILES = Path(__file__).parents[1] / "shards/files"


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def asked(monkeypatch):
    """The name of every object of which something was read."""
    found, original = [], LOCAL.cat_file

    def noted(self, path, start=None, end=None):
        found.append(path.rsplit("/", 1)[1])
        return original(self, path, start, end)

    monkeypatch.setattr(LOCAL, "cat_file", noted)
    return found


def opened(url):
    return Manifest.open(f"file://{url}", progress=False)


def test_opening_reads_the_index_and_no_shard(store, asked):
    scanned = opened(store)
    assert scanned.save_index() == f"file://{store}/index.arrow"
    asked.clear()
    again = opened(f"{store}/")
    assert asked == ["index.arrow"] and again.root == f"file://{store}"
    assert (
        again.table.equals(scanned.table)
        and again.fingerprint == scanned.fingerprint
        and again.classes == scanned.classes
    )
    assert again.read(20).tobytes() == scanned.read(20).tobytes()
    asked.clear()
    opened(store)
    assert not asked


def test_an_index_that_was_made_before_the_upload(manifest, store, asked, tmp_path):
    """The shards' times are others there."""
    here = Manifest.scan(store, progress=False)
    assert here.save_index() == f"{store}/index.arrow"
    uploaded = tmp_path / "bucket"
    shutil.copytree(store, uploaded, copy_function=shutil.copyfile)
    there = opened(uploaded)
    assert (
        asked == ["index.arrow"]
        and there.root == f"file://{uploaded}"
        and len(there) == len(manifest)
    )
    assert [there.read(number).tobytes() for number in (0, 36)] == [
        manifest.read(number).tobytes() for number in (0, 36)
    ]
    (uploaded / "shard-000001.tar").write_bytes(b"0" * 10240)
    with pytest.raises(
        ManifestError,
        match=(
            r"shard-000001.tar has [\d,]+ bytes in the index, and has 10,240 bytes; upload it, "
            r"or write"
        ),
    ):
        opened(uploaded)
    (uploaded / "shard-000001.tar").unlink()
    with pytest.raises(
        ManifestError,
        match=r"shard-000001.tar has [\d,]+ bytes in the index, and is not there; upload it",
    ):
        opened(uploaded)


def test_a_shard_that_was_replaced_after_indexing_is_named(store):
    opened(store).save_index()
    shutil.copyfile(store / "shard-000000.tar", store / "shard-000002.tar")
    for path in copies.cache_folder().glob("*"):
        path.is_file() and path.unlink()
    made = opened(store)
    assert made.read(0).size
    options = {
        "transform": dp.EvalTransform(size=16, resize=16),
        "batch_size": 37,
        "on_bad_sample": "substitute",
    }
    with dp.build_loader(
        made, dp.DaliConfig(device="cpu"), **options, max_bad_fraction=0.5
    ) as loader:
        assert len(next(iter(loader)).ids) == 37
    assert {name.split("/")[-2] for _, name, _ in loader.bad_samples} == {
        "shard-000002.tar"
    } and len(loader.bad_samples) == 11
    assert all("has changed since it was scanned" in why for _, _, why in loader.bad_samples)


def test_an_index_is_of_all_files_that_lie_there(manifest, store):
    whole = opened(store)
    whole.save_index()
    for part in (
        whole.subset(range(10)),
        opened(store / "shard-000001.tar"),
        Manifest.scan(store / "shard-000001.tar"),
    ):
        with pytest.raises(
            ManifestError,
            match=r"of the 4 files there are not in this manifest, such as shard-00000\d.tar",
        ):
            part.save_index()
    assert len(opened(store)) == len(whole)


def test_a_damaged_index_is_named_and_read_again_when_it_is_good(store):
    opened(store).save_index()
    whole = (store / "index.arrow").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-10], b"", b"no index"):
        (store / "index.arrow").write_bytes(damaged)
        with pytest.raises(
            ManifestError,
            match=(
                r"index.arrow: damaged \(.*write it again: "
                r"Manifest.scan\('file://.*'\).save_index\(\)"
            ),
        ):
            opened(store)
    (store / "index.arrow").write_bytes(whole)
    assert len(opened(store)) == 37


@pytest.mark.parametrize("damage", ["cut off", "empty", "zeroed"])
def test_a_damaged_copy_of_an_index_is_fetched_again(store, asked, damage):
    opened(store).save_index()
    rows, asked[:] = opened(store).table.to_pylist(), []
    (copy,) = (copies.cache_folder() / "indexes").iterdir()
    content = copy.read_bytes()
    half = content[: len(content) // 2]
    copy.write_bytes(
        {"cut off": half, "empty": b"", "zeroed": half + bytes(len(content) - len(half))}[damage]
    )
    assert opened(store).table.to_pylist() == rows and asked == ["index.arrow"]
    assert opened(store).table.to_pylist() == rows and asked == ["index.arrow"]


@pytest.mark.parametrize(
    "config",
    [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=0)],
    ids=str,
)
def test_images_that_are_objects_of_their_own(manifest, config):
    far = opened(manifest.root)
    assert (
        far.classes == manifest.classes
        and far.labels.tolist() == manifest.labels.tolist()
        and not far.whole_files
    )
    assert [far.name(number).removeprefix("file://") for number in range(37)] == [
        manifest.name(number) for number in range(37)
    ]
    assert far.sizes.tolist() == manifest.sizes.tolist() and far.fingerprint == manifest.fingerprint
    options = {"transform": dp.TrainTransform(size=24), "batch_size": 8, "last_batch": "partial"}
    with (
        dp.build_loader(far, config, **options) as one,
        dp.build_loader(manifest, config, **options) as two,
    ):
        for a, b in zip(one, two, strict=True):
            assert (
                torch.equal(a.ids, b.ids)
                and torch.equal(a.labels, b.labels)
                and torch.equal(a.images, b.images)
            )


def test_the_headers_of_single_objects_are_read_alone(manifest, asked, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(manifest.root, folder)
    (folder / "a").mkdir()
    (folder / "a" / "empty.jpg").touch()
    (folder / "a" / "broken.jpg").write_bytes(b"no image")
    (folder / "a" / "notes.txt").write_text("not an image")
    far = opened(folder)
    assert len(far) == 37 and dict(far.problems) == {
        "a/empty.jpg": "empty file",
        "a/broken.jpg": "not an image, or its header is broken",
    }
    far.save_index()
    asked.clear()
    assert opened(folder).table.equals(far.table) and asked == ["index.arrow"]


def test_bad_single_objects_are_named(manifest, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(manifest.root, folder)
    far = opened(folder)
    gone = folder / manifest.path(3).relative_to(manifest.root)
    gone.unlink()
    options = {
        "transform": dp.EvalTransform(size=16, resize=16),
        "batch_size": 37,
        "on_bad_sample": "substitute",
    }
    with dp.build_loader(
        far, dp.DaliConfig(device="cpu"), **options, max_bad_fraction=0.1
    ) as loader:
        assert len(next(iter(loader)).ids) == 37
    assert [(number, name) for number, name, _ in loader.bad_samples] == [(3, f"file://{gone}")]


def test_what_is_no_image_folder_is_refused(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").touch()
    with pytest.raises(
        ManifestError, match=r"no shard there \(NAME.tar or NAME.tfrecord\), and no image \(.jpg"
    ):
        opened(tmp_path / "x")
    (tmp_path / "x" / "1.jpg").touch()
    with pytest.raises(
        ManifestError,
        match=r"1.jpg is in no class folder; put the images of each class below a separate one",
    ):
        opened(tmp_path / "x")


def test_a_batch_whose_reads_failed_for_a_while_is_tried_once_more(manifest, monkeypatch, caplog):
    """The network is back when the batch's files are looked at one by one."""
    far, original, failing = opened(manifest.root), LOCAL.cat_file, [4]
    monkeypatch.setattr(store_requests, "_ATTEMPTS", 1)

    def away(self, path, start=None, end=None):
        failing[0] -= 1
        if failing[0] >= 0:
            raise ConnectionResetError("connection reset by peer")
        return original(self, path, start, end)

    monkeypatch.setattr(LOCAL, "cat_file", away)
    options = {"transform": dp.EvalTransform(size=16, resize=16), "batch_size": 8}
    with dp.build_loader(far, dp.DaliConfig(device="cpu"), **options) as loader:
        assert [sample for batch in loader for sample in batch.ids.tolist()] == list(
            range(37)
        ) and not loader.bad_samples
    assert "epoch 0, step 0: the batch failed (" in caplog.text
    assert "and its files can be read now; trying it once more" in caplog.text


@pytest.mark.parametrize("images", ["shards", "folders"])
def test_what_cannot_be_fetched_is_no_bad_image(manifest, store, monkeypatch, images):
    """Nothing is written down of it, whatever else could be read."""
    original, url = LOCAL.cat_file, f"file://{store if images == 'shards' else manifest.root}"
    monkeypatch.setattr(store_requests, "_ATTEMPTS", 1)

    def away(self, path, start=None, end=None):
        if path.endswith(("shard-000002.tar", manifest.name(20))):
            raise ConnectionResetError("connection reset by peer")
        return original(self, path, start, end)

    monkeypatch.setattr(LOCAL, "cat_file", away)
    with pytest.raises(
        ManifestError,
        match=(
            r"(shard-000002.tar|jpg): cannot be fetched \(1 times: .*\); scan again when it "
            r"can be read"
        ),
    ):
        Manifest.scan(url, progress=False)


def test_an_index_of_class_folders_that_are_uploaded(manifest, tmp_path, asked):
    shutil.copytree(manifest.root, tmp_path / "here")
    here = Manifest.scan(tmp_path / "here", progress=False)
    here.save_index()
    assert here.root == tmp_path / "here" and here.whole_files
    shutil.copytree(tmp_path / "here", tmp_path / "bucket")
    there = opened(tmp_path / "bucket")
    assert (
        asked == ["index.arrow"] and not there.whole_files and there.fingerprint == here.fingerprint
    )
    assert there.read(5).tobytes() == here.read(5).tobytes() and there.name(5).startswith(
        f"file://{tmp_path}/bucket/"
    )


def test_a_shard_that_came_after_a_local_index_is_named(store, tmp_path):
    Manifest.scan(store, progress=False).save_index()
    shutil.copyfile(store / "shard-000000.tar", store / "shard-000009.tar")
    with pytest.raises(
        ManifestError, match=r"shard-000009.tar is not in the index; write it again"
    ):
        opened(store)


def test_a_folder_of_parquet_is_opened_by_its_url_and_indexed_there(tmp_path, asked):
    shutil.copytree(FILES, tmp_path / "hf", ignore=shutil.ignore_patterns("*.py"))
    here, there = Manifest.open(tmp_path / "hf", progress=False), opened(tmp_path / "hf")
    assert (
        len(there) == 9
        and there.classes == here.classes
        and there.read(4).tobytes() == here.read(4).tobytes()
    )
    with pytest.raises(
        ManifestError,
        match=(
            r"an index of Parquet files is written where they lie: "
            r"Manifest.open\(URL\).save_index\(\)"
        ),
    ):
        here.save_index()
    there.save_index()
    asked.clear()
    assert opened(tmp_path / "hf").table.equals(there.table) and asked == ["index.arrow"]


def test_a_folder_of_parquet_by_its_url_takes_the_options_of_a_table(tmp_path):
    images = pq.read_table(FILES / "images-00000-of-00002.parquet")["image"].slice(0, 2)
    pq.write_table(pa.table({"image": images, "label": ["cat|dog", "dog"]}), tmp_path / "x.parquet")
    made = Manifest.open(f"file://{tmp_path}", label_separator="|", progress=False)
    assert made.classes == ["cat", "dog"] and made.root == f"file://{tmp_path}"


def tars(folder, fields, count=2, each=3):
    """Tars of images with these members beside them, none of which is a label."""
    folder.mkdir()
    for number in range(count):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for sample in range(each):
                add(archive, f"{sample}.jpg", image_bytes("JPEG"))
                for extension in fields:
                    add(
                        archive,
                        f"{sample}{extension}",
                        image_bytes("PNG", "L") if extension == ".png" else f"{sample}".encode(),
                    )
    return folder


def image_bytes(kind, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, (20, 10)).save(file, kind)
    return file.getvalue()


@pytest.mark.few
@pytest.mark.parametrize(
    "named",
    [
        {"text": ".txt"},
        {"mask": ".png"},
        {"text": ".txt", "mask": ".png", "mask_values": {255: 1}, "annotated": "upright"},
    ],
)
@pytest.mark.parametrize("where", ["in the store", "before the upload"])
def test_an_index_with_targets_serves_who_asks_for_them_and_who_asks_for_none(
    tmp_path, asked, named, where
):
    folder, targets = tars(tmp_path / "captions", (".txt", ".png")), dp.Targets(**named)
    url = f"file://{folder}"
    scanned = Manifest.scan(url, targets=targets, progress=False)
    (
        scanned
        if where == "in the store"
        else Manifest.scan(folder, targets=targets, progress=False)
    ).save_index()
    asked.clear()
    for found in (Manifest.open(url, targets=targets, progress=False), opened(folder)):
        assert (
            len(found) == 6
            and asked == ["index.arrow"]
            and found.fingerprint == scanned.fingerprint
        )
        assert [found.has_target(name) for name in ("text", "mask_bytes")] == [
            "text" in named,
            "mask" in named,
        ]
        assert (
            found.facts.masks_upright == scanned.facts.masks_upright
            and found.facts.mask_values == scanned.facts.mask_values
        )


@pytest.mark.few
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"with_labels": False}, {"targets": dp.Targets(text=".txt")}),
        ({"targets": dp.Targets(text=".txt")}, {"targets": dp.Targets(mask=".png")}),
        (
            {"targets": dp.Targets(mask=".png")},
            {"targets": dp.Targets(mask=".png", mask_values={0: 1})},
        ),
        ({"targets": dp.Targets(text=".txt", mask=".png")}, {"targets": dp.Targets(text=".txt")}),
        ({"with_labels": False}, {"with_labels": False, "bits": 16}),
    ],
    ids=["no text", "another", "other values", "more", "bits"],
)
def test_an_index_that_was_written_with_other_options_is_not_taken(
    tmp_path, caplog, written, wanted
):
    folder = tars(tmp_path / "captions", (".txt", ".png"))
    Manifest.scan(f"file://{folder}", progress=False, **written).save_index()
    for copy in copies.cache_folder().glob("copy-*"):
        copy.unlink()
    found = Manifest.open(f"file://{folder}", progress=False, **wanted)
    assert len(found) == 6 and len(list(copies.cache_folder().glob("copy-*"))) == 2
    assert all(
        found.has_target({"mask": "mask_bytes"}.get(name, name))
        for name in wanted.get("targets", dp.Targets()).named
    )
    assert (
        f"index.arrow was not written with {next(iter(wanted))}=" in caplog.text
        and "write it again with these options" in caplog.text
    )


@pytest.mark.parametrize("targets", [dp.Targets(), dp.Targets(text=".txt")], ids=["labels", "text"])
def test_an_index_with_labels_serves_who_asks_for_none(store, tmp_path, asked, targets):
    folder = tars(tmp_path / "captions", (".txt",)) if targets.named else store
    Manifest.scan(f"file://{folder}", targets=targets, progress=False).save_index()
    asked.clear()
    found = Manifest.open(f"file://{folder}", with_labels=False, progress=False)
    assert asked == ["index.arrow"] and len(found) == len(opened(folder))


def test_images_of_16_bits_are_read_instead_of_an_index(store):
    opened(store).save_index()
    for options in ({"bits": 16}, {"bits": 16, "with_labels": False}):
        assert len(Manifest.open(f"file://{store}", progress=False, **options)) == 37


def test_images_that_an_index_lacks_for_want_of_a_label_are_found_without_labels(store):
    with tarfile.open(store / "unlabelled.tar", "w") as archive:
        add(archive, "x.jpg", image_bytes("JPEG"))
    opened(store).save_index()
    assert (
        len(opened(store)) == 37
        and len(Manifest.open(f"file://{store}", with_labels=False, progress=False)) == 38
    )


def test_images_that_an_index_lacks_for_a_wrong_label_are_found_without_labels(store):
    with tarfile.open(store / "mislabelled.tar", "w") as archive:
        for key, label in (("x", "2000000"), ("y", "cat")):
            add(archive, f"{key}.jpg", image_bytes("JPEG"))
            add(archive, f"{key}.cls", label.encode())
    opened(store).save_index()
    assert len(opened(store)) == 37
    assert len(Manifest.open(f"file://{store}", with_labels=False, progress=False)) == 39


@pytest.mark.parametrize("option", ["task", "label_column"])
def test_what_shards_do_not_take_is_said_beside_an_index_too(store, option):
    opened(store).save_index()
    with pytest.raises(
        dp.ConfigError, match=f"{option} would change nothing: .* does not take it; leave it out"
    ):
        Manifest.open(f"file://{store}", progress=False, **{option: "classification"})


def test_an_index_of_parquet_serves_who_asks_for_the_same_columns(tmp_path, asked):
    images = pq.read_table(FILES / "images-00000-of-00002.parquet")["image"].slice(0, 2)
    cells = {
        "image": images,
        "kind": ["cat", "dog"],
        "label": [0, 1],
        "words": ["a", "b"],
        "age": [3, 4],
    }
    pq.write_table(pa.table(cells), tmp_path / "x.parquet")
    url, options = (
        f"file://{tmp_path}",
        {"label_column": "kind", "targets": dp.Targets(text="words"), "progress": False},
    )
    Manifest.open(url, **options).save_index()
    asked.clear()
    found = Manifest.open(url, **options)
    assert (
        asked == ["index.arrow"]
        and found.classes == ["cat", "dog"]
        and found.columns["age"].tolist() == [3, 4]
    )
    assert found.take_texts("text", np.arange(2)) == ["a", "b"]
    assert opened(tmp_path).classes == ["cat", "dog"]
    assert Manifest.open(
        url, label_column="label", targets=dp.Targets(text="kind"), progress=False
    ).classes == ["0", "1"]


def test_an_index_that_would_be_empty_is_refused(tmp_path):
    folder = tars(tmp_path / "captions", (".txt",))
    for source in (folder, f"file://{folder}"):
        with pytest.raises(
            ManifestError,
            match=(
                r"would hold no image \(6 cannot be used, such as 0.tar/0.jpg: no label: "
                r".*--target\), or read"
            ),
        ):
            Manifest.scan(source, progress=False).save_index()
    assert not (folder / "index.arrow").exists()


def test_the_command_indexes_captions(tmp_path, capsys, caplog):
    folder = tars(tmp_path / "captions", (".txt",))
    index(f"file://{folder}", "header")
    # what a first look for labels leaves out is not said
    assert "0 of 6 images are used" not in caplog.text and "beside the images" not in caplog.text
    assert "the index is without labels" in capsys.readouterr().out and len(opened(folder)) == 6
    index(f"file://{folder}", "header", read_targets(["text=.txt"]))
    assert opened(folder).take_texts("text", np.arange(6)) == ["0", "1", "2"] * 2
    assert read_targets(
        ["boxes=b", "box_labels=l", "keypoints=k", "keypoint_names=[a b,c]"]
    ).keypoint_names == ["a b", "c"]
    for wrong in ("texts=.txt", "text", "text="):
        with pytest.raises(
            dp.ConfigError,
            match=f"--target {wrong}: it takes NAME=VALUE, such as text=.txt; the names are boxes",
        ):
            read_targets([wrong])
