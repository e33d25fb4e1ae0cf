"""CIFAR from a small archive that is made here in the official layout, and from archives that are
not what they should be.
"""

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from prepared import digests

import dali_pipes as dp
from dali_pipes.tools.preparation.cifar import LAYOUTS, read_archive
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preparation.run import prepare

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR100 = [f"thing_{number:02d}" for number in range(100)]
RNG = np.random.default_rng(0)
FILES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
LABELS = {name: RNG.integers(0, 10, 12, np.uint8) for name in FILES}
PIXELS = {name: RNG.integers(0, 256, (12, 3, 32, 32), np.uint8) for name in FILES}


def cifar10() -> dict[str, bytes]:
    """The files of the archive, each of 12 records."""
    files = {"cifar-10-batches-bin/batches.meta.txt": ("\n".join(CIFAR10) + "\n\n").encode()}
    for name, labels in LABELS.items():
        records = zip(labels, PIXELS[name], strict=True)
        files[f"cifar-10-batches-bin/{name}"] = b"".join(
            bytes([label]) + planes.tobytes() for label, planes in records
        )
    return files | {"cifar-10-batches-bin/readme.html": b"<meta>"}


def cifar100() -> dict[str, bytes]:
    record = bytes([3, 7]) + bytes(range(256)) * 12
    names = "\n".join(CIFAR100).encode()
    return {
        "cifar-100-binary/coarse_label_names.txt": b"coarse\n" * 20,
        "cifar-100-binary/fine_label_names.txt": names + b"\n",
        "cifar-100-binary/test.bin": record * 2,
        "cifar-100-binary/train.bin": record * 5,
    }


def packed(file, files, members=()):
    with tarfile.open(file, "w:gz") as tar:
        for member, content in [
            *((tarfile.TarInfo(name), content) for name, content in files.items()),
            *members,
        ]:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def run(archive, out, source="cifar10", **options):
    options = {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()} | options
    prepare(PrepareConfig(source=source, archive=str(archive), out=str(out), **options))


def test_every_pixel_and_label_arrives(tmp_path, capsys):
    run(packed(tmp_path / "c.tar.gz", cifar10()), tmp_path / "out")
    for split, files in (("train", FILES[:5]), ("val", ["test_batch.bin"])):
        labels = np.concatenate([LABELS[name] for name in files])
        pixels = np.concatenate([PIXELS[name] for name in files])
        images = dp.Manifest.scan(tmp_path / "out" / split, progress=False)
        assert images.classes == CIFAR10 and len(images) == len(labels) and not images.problems
        for sample_id in range(len(images)):
            number = int(images.path(sample_id).stem)
            assert images.labels[sample_id] == labels[number]
            assert np.array_equal(
                np.asarray(Image.open(images.path(sample_id))), pixels[number].transpose(1, 2, 0)
            )
    assert capsys.readouterr().out.splitlines() == [
        *("train: 60 images of 10 classes", "val: 12 images of 10 classes"),
        f"Use them with data.root={tmp_path / 'out'}",
    ]


def test_loaders_read_it(tmp_path):
    run(packed(tmp_path / "c.tar.gz", cifar10()), tmp_path / "out")
    images = dp.Manifest.scan(tmp_path / "out/val", progress=False)
    transform = dp.EvalTransform(size=32, resize=32, dtype="uint8")
    for loader in (dp.TorchConfig(num_workers=0), dp.DaliConfig(device="cpu")):
        with dp.build_loader(images, loader, transform=transform, batch_size=12) as batches:
            batch = next(iter(batches))
        expected = [
            PIXELS["test_batch.bin"][int(images.path(sample_id).stem)]
            for sample_id in batch.ids.tolist()
        ]
        assert np.array_equal(batch.images.numpy(), np.stack(expected))


def test_cifar100_takes_the_fine_label(tmp_path):
    run(packed(tmp_path / "c.tar.gz", cifar100()), tmp_path / "out", source="cifar100")
    images = dp.Manifest.scan(tmp_path / "out/train", progress=False)
    assert images.classes == CIFAR100 and images.labels.tolist() == [7] * 5


def test_what_is_there_is_kept_and_what_is_not_is_made(tmp_path, capsys):
    archive = packed(tmp_path / "c.tar.gz", cifar10())
    run(archive, tmp_path / "out")
    before = digests(tmp_path / "out")
    files = sorted((tmp_path / "out/train").rglob("*.png"))
    stamps = {file: file.stat().st_mtime_ns for file in files[3:]}
    files[0].unlink()
    files[1].unlink()
    files[2].write_bytes(b"")  # what a machine that lost power may leave
    capsys.readouterr()
    run(archive, tmp_path / "out")
    assert digests(tmp_path / "out") == before
    assert {file: file.stat().st_mtime_ns for file in files[3:]} == stamps
    assert (
        "train: 60 images of 10 classes, 57 of them kept from an earlier run"
        in capsys.readouterr().out
    )


def test_another_archive_into_the_same_folder_is_refused(tmp_path):
    run(packed(tmp_path / "c.tar.gz", cifar10()), tmp_path / "out")
    with pytest.raises(
        dp.DaliPipesError,
        match="was started with other options: source was cifar10, and now is cifar100",
    ):
        run(packed(tmp_path / "d.tar.gz", cifar100()), tmp_path / "out", source="cifar100")


def test_an_archive_that_is_not_the_official_one_is_refused_without_being_read(
    tmp_path, monkeypatch
):
    archive = packed(tmp_path / "c.tar.gz", cifar10())
    monkeypatch.setattr("dali_pipes.tools.preparation.run.read_archive", None)
    with pytest.raises(
        dp.DaliPipesError,
        match=f"and not {LAYOUTS['cifar10'].sha256}, the one of the official cifar-10-binary",
    ):
        run(archive, tmp_path / "out", sha256=None)
    with pytest.raises(dp.DaliPipesError, match=f"and not {'ab' * 32}, the one that was asked for"):
        run(archive, tmp_path / "out", sha256="AB" * 32)
    assert not (tmp_path / "out").exists()


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was read",)


def test_the_python_version_is_named_and_no_pickle_is_read(tmp_path):
    files = {"cifar-10-batches-py/data_batch_1": pickle.dumps(Bomb())}
    archive = packed(tmp_path / "cifar-10-python.tar.gz", files)
    with pytest.raises(
        dp.DaliPipesError,
        match=r"is the Python version, made of pickles.*; give the binary version",
    ):
        run(archive, tmp_path / "out", sha256=None)
    with pytest.raises(dp.DaliPipesError, match=r"holds no cifar-10-batches-bin/"):
        run(archive, tmp_path / "out")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_reported(tmp_path, share):
    content = packed(tmp_path / "c.tar.gz", cifar10()).read_bytes()
    (tmp_path / "c.tar.gz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(dp.DaliPipesError, match=r"is damaged or cut short"):
        run(tmp_path / "c.tar.gz", tmp_path / "out")
    with pytest.raises(dp.DaliPipesError, match="its SHA-256 is"):
        run(tmp_path / "c.tar.gz", tmp_path / "out", sha256=None)


NO_ARCHIVES = {
    "nothing": b"",
    "a web page": b"<html>404</html>",
    "no tar": gzip.compress(b"no tar"),
    "an empty one": gzip.compress(b""),
}


@pytest.mark.parametrize("content", NO_ARCHIVES.values(), ids=NO_ARCHIVES.keys())
def test_what_is_no_archive_is_reported(tmp_path, content):
    (tmp_path / "c.tar.gz").write_bytes(content)
    with pytest.raises(dp.DaliPipesError, match=r"is damaged or cut short|holds no"):
        run(tmp_path / "c.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("name", [*cifar10()][:-1])
def test_a_missing_file_is_named(tmp_path, name):
    files = cifar10()
    del files[name]
    with pytest.raises(dp.DaliPipesError, match=f"holds no {name}; give the binary version"):
        run(packed(tmp_path / "c.tar.gz", files), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1" * 3072, "records of 3,073 do not fill that"),
        (b"", "has 0 bytes"),
        (b"\12" + b"\0" * 3072, "train has label 10, and there are 10 classes"),
        (b"\0" * (10_001 * 3073), "more than it can have"),
    ],
)
def test_a_file_of_the_wrong_form_is_reported(tmp_path, content, message):
    files = cifar10() | {"cifar-10-batches-bin/data_batch_3.bin": content}
    with pytest.raises(dp.DaliPipesError, match=message):
        run(packed(tmp_path / "c.tar.gz", files), tmp_path / "out")


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def test_nothing_is_extracted_and_links_and_other_names_are_passed_over(tmp_path):
    evil = [
        link("cifar-10-batches-bin/data_batch_1.bin", "/etc/passwd"),
        link("cifar-10-batches-bin/data_batch_2.bin", "data_batch_3.bin", tarfile.LNKTYPE),
        (tarfile.TarInfo("../../escaped"), b"x"),
        (tarfile.TarInfo("/escaped"), b"x"),
        (tarfile.TarInfo("cifar-10-batches-bin/../../escaped"), b"x"),
    ]
    (tmp_path / "deep/er").mkdir(parents=True)
    archive = packed(
        tmp_path / "deep/er/c.tar.gz",
        {},
        [*evil, *((tarfile.TarInfo(n), c) for n, c in cifar10().items())],
    )
    run(archive, tmp_path / "deep/er/out")
    assert len(list((tmp_path / "deep/er/out").rglob("*.png"))) == 72
    assert not list(tmp_path.rglob("*escaped*")) and {
        file.name for file in (tmp_path / "deep/er").iterdir()
    } == {"c.tar.gz", "out"}
    with pytest.raises(dp.DaliPipesError, match=r"holds no cifar-10-batches-bin/data_batch_1.bin"):
        files = {name: content for name, content in cifar10().items() if "batch_1" not in name}
        read_archive(packed(tmp_path / "linked.tar.gz", files, evil), "cifar10")


def test_an_archive_that_grows_beyond_measure_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(LAYOUTS, "cifar10", replace(LAYOUTS["cifar10"], records=10))
    huge = tarfile.TarInfo("cifar-10-batches-bin/zeros"), bytes(4 * 2**20)
    with pytest.raises(dp.DaliPipesError, match="holds far more than it should"):
        read_archive(packed(tmp_path / "c.tar.gz", {}, [huge]), "cifar10")


def test_no_such_archive(tmp_path):
    with pytest.raises(dp.DaliPipesError, match=r"none.tar.gz: no such file"):
        prepare(
            PrepareConfig(
                source="cifar10", archive=str(tmp_path / "none.tar.gz"), out=str(tmp_path / "out")
            )
        )
