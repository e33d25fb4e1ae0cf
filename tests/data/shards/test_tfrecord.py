"""The images of TFRecord files that TensorFlow wrote, and of files that lie."""

import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from later import later

import dali_pipes as dp
from dali_pipes import Manifest, ManifestError
from dali_pipes.data.shards.tfrecord import _masked_crc, list_images
from dali_pipes.tools.scan.run import index

tf = later("tensorflow")


def feature(value):
    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value, value]))
    if isinstance(value, (int, list)):
        return tf.train.Feature(
            int64_list=tf.train.Int64List(value=value if isinstance(value, list) else [value])
        )
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def example(**features) -> bytes:
    named = {name.replace("__", "/"): feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)


def found(path):
    number = os.open(path, os.O_RDONLY)
    try:
        total = os.fstat(number).st_size
        every = list(list_images(number, total))
    finally:
        os.close(number)
    for part in every:
        assert part.offset >= 0 and part.offset + part.length <= total
    return every


@pytest.fixture
def folder(manifest, tmp_path):
    (tmp_path / "records").mkdir()
    for shard in range(3):
        ids = range(shard, len(manifest), 3)
        images = ((manifest.read(number).tobytes(), int(manifest.labels[number])) for number in ids)
        records = [
            example(
                image__encoded=image,
                image__class__label=label,
                image__filename=b"x.jpg",
                image__height=3,
                image__object__bbox=0.5,
            )
            for image, label in images
        ]
        write(tmp_path / "records" / f"train-{shard:05d}-of-00003", records)
    return tmp_path / "records"


def test_images_and_labels_are_those_that_were_written(manifest, folder):
    records = Manifest.open(folder, progress=False)
    order = [number for shard in range(3) for number in range(shard, len(manifest), 3)]
    assert records.labels.tolist() == manifest.labels[order].tolist() and not records.problems
    assert [records.read(number).tobytes() for number in range(37)] == [
        manifest.read(number).tobytes() for number in order
    ]
    assert records.name(13) == f"{folder}/train-00001-of-00003/0" and records.classes == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]


@pytest.mark.parametrize(
    "config",
    [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=0)],
    ids=str,
)
def test_pixels_are_those_of_the_folder(manifest, folder, config):
    records = Manifest.open(folder, progress=False)
    order = [number for shard in range(3) for number in range(shard, len(manifest), 3)]
    options = {"transform": dp.TrainTransform(size=48), "batch_size": 8, "last_batch": "partial"}
    same = manifest.subset(np.array(order))
    with (
        dp.build_loader(same, config, **options) as one,
        dp.build_loader(records, config, **options) as two,
    ):
        for a, b in zip(one, two, strict=True):
            assert (
                torch.equal(a.ids, b.ids)
                and torch.equal(a.labels, b.labels)
                and torch.equal(a.images, b.images)
            )


def test_names_of_tensorflow_datasets(tmp_path):
    write(tmp_path / "a.tfrecord", [example(image=b"pixels", label=300)])
    (part,) = found(tmp_path / "a.tfrecord")
    assert part.label == 300 and part.length == len(b"pixels")


ODD = {
    "no image": (lambda: example(label=1), "no image/encoded in this record"),
    "no label": (lambda: example(image=b"x"), "no label"),
    "negative label": (lambda: example(image=b"x", label=-1), "no label"),
    "two labels": (lambda: example(image=b"x", label=[1, 2]), "no label"),
    "image of numbers": (lambda: example(image=3, label=1), "not one string of bytes"),
    "no Example": (lambda: b"\xff" * 40, "not a tf.train.Example"),
    "empty record": (lambda: b"", "no image/encoded in this record"),
    "field beyond the record": (lambda: b"\x0a\x7f\x01", "a field reaches beyond"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_records_are_named_and_cost_no_other(tmp_path, name):
    make, message = ODD[name]
    write(
        tmp_path / "a.tfrecord",
        [example(image=b"x", label=1), make(), example(image=b"y", label=0)],
    )
    one, odd, two = found(tmp_path / "a.tfrecord")
    assert (one.label, one.problem, two.label, two.problem) == (1, None, 0, None)
    assert odd.member == b"1" and message in (odd.problem or "")


def test_files_that_end_too_early_or_are_damaged(tmp_path):
    write(tmp_path / "a.tfrecord", [example(image=b"x" * 100, label=1)] * 3)
    content = (tmp_path / "a.tfrecord").read_bytes()
    size = len(content) // 3
    lie = struct.pack("<Q", 2**62)
    for changed, message in {
        content[: 2 * size + 50]: "is cut off (record 2 has ",
        content[: 2 * size + 5]: "is damaged (at byte ",
        content[: 2 * size] + b"\0" * 20: "is damaged (at byte ",
        content[: 2 * size]
        + lie
        + struct.pack("<I", _masked_crc(lie))
        + b"x": "is cut off (record 2 has 4,611,686,018,427,387,904",
    }.items():
        (tmp_path / "a.tfrecord").write_bytes(changed)
        *good, last = found(tmp_path / "a.tfrecord")
        assert (
            [part.label for part in good] == [1, 1]
            and last.member == b""
            and message in last.problem
        )
    for content, message in {
        b"\x1f\x8b" + bytes(100): "compressed with gzip",
        b"junk" * 10: "is not a TFRecord file",
    }.items():
        (tmp_path / "a.tfrecord").write_bytes(content)
        with pytest.raises(dp.ConfigError, match="no usable image"):
            dp.Plan(Manifest.open(tmp_path, progress=False), dp.TrainTransform(), 1)
        assert message in Manifest.open(tmp_path, progress=False).problems[0][1]


def test_an_empty_folder_of_records(tmp_path):
    with pytest.raises(ManifestError, match="no class folders"):
        Manifest.open(tmp_path, progress=False)


@given(st.binary(max_size=200), st.integers(0, 10))
def test_whatever_a_record_holds_nothing_outside_it_is_read(tmp_path_factory, junk, keep):
    folder = tmp_path_factory.mktemp("junk")
    good = example(image=b"x" * 50, label=1)
    write(folder / "a.tfrecord", [good[: len(good) * keep // 10] + junk])
    (part,) = found(folder / "a.tfrecord")
    assert part.problem or part.offset >= 12


def test_the_command_indexes_records_without_labels(tmp_path, manifest, capsys):
    records = [example(image__encoded=manifest.read(number).tobytes()) for number in range(3)]
    write(tmp_path / "a.tfrecord", records)
    index(str(tmp_path), "header")
    assert "the index is without labels" in capsys.readouterr().out
    assert len(Manifest.open(f"file://{tmp_path}", progress=False)) == 3

    # a label that is no class number is no reason to leave out all labels
    write(tmp_path / "a.tfrecord", [example(image__encoded=b"x", image__class__label=b"cat")])
    with pytest.raises(ManifestError, match=r"would hold no image .*is not one class number"):
        index(str(tmp_path), "header")
