"""from_torch reads pictures out of the files in which programs keep many of them, byte for byte, or
says that their bytes lie in no file.
"""

# ruff: noqa: SIM115  programs leave files open, and read pickles of their own

import io
import os
import pickle
import random
import tarfile
import zipfile

import composes
import cv2
import h5py
import lmdb
import numpy as np
import pytest
import torch
from PIL import Image
from test_from_torch_programs import assert_same_batches, convert
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image

import dali_pipes as dp
from dali_pipes.adapters.from_torch.recording.containers import Containers, hold_the_same
from dali_pipes.adapters.transforms.reading import NotConvertibleError

EVAL = composes.torchvision_eval(40, 32)
COUNT = 12


@pytest.fixture(scope="module")
def pictures():
    """The bytes of some pictures of different sizes."""
    rng, made = np.random.default_rng(0), []
    for at in range(COUNT):
        image = Image.fromarray(rng.integers(0, 256, (48 + at, 70 - at, 3), np.uint8))
        encoded = io.BytesIO()
        image.save(encoded, "PNG" if at == 5 else "JPEG", quality=90 - at)
        made.append(encoded.getvalue())
    return made


class Stored(Dataset):
    """A data set whose `read` returns the bytes of a picture."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return EVAL(Image.open(io.BytesIO(self.read(index))).convert("RGB")), index % 5


class InLmdb(Stored):
    """The label comes before the bytes; the file is opened for the first sample."""

    def __init__(self, folder, pictures):
        self.folder, self.env = str(folder / "images.lmdb"), None
        with lmdb.open(self.folder, map_size=2**26) as env, env.begin(write=True) as transaction:
            for at, data in enumerate(pictures):
                transaction.put(f"{at:04d}".encode(), f"{at}|".encode() + data)

    def read(self, index):
        if self.env is None:
            self.env = lmdb.open(self.folder, readonly=True, lock=False, readahead=False)
        with self.env.begin(write=False) as transaction:
            return transaction.get(f"{index:04d}".encode()).split(b"|", 1)[1]


class ClosingAtItsEnd(InLmdb):
    """As many programs have it; the copy that is run must not close what theirs goes on using."""

    def __init__(self, folder, pictures):
        super().__init__(folder, pictures)
        self.read(0)

    def __del__(self):
        self.env.close()


class InTar(Stored):
    def __init__(self, folder, pictures):
        self.file, self.tar = folder / "images.tar", None
        with tarfile.open(self.file, "w") as tar:
            for at, data in enumerate(pictures):
                member = tarfile.TarInfo(f"{at}.jpg")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))

    def read(self, index):
        self.tar = self.tar or tarfile.open(self.file)
        return self.tar.extractfile(f"{index}.jpg").read()


class InZip(Stored):
    compression = zipfile.ZIP_STORED

    def __init__(self, folder, pictures):
        with zipfile.ZipFile(folder / "images.zip", "w", self.compression) as made:
            for at, data in enumerate(pictures):
                made.writestr(f"{at}.jpg", data)
        self.zip = zipfile.ZipFile(folder / "images.zip")

    def __getitem__(self, index):
        with self.zip.open(f"{index}.jpg") as file:
            return EVAL(Image.open(file).convert("RGB")), index % 5


class InCompressedZip(InZip):
    compression = zipfile.ZIP_DEFLATED


class InHdf5(Stored):
    """Arrays of bytes, each as long as it is."""

    def __init__(self, folder, pictures):
        with h5py.File(folder / "images.h5", "w") as file:
            kind = h5py.vlen_dtype(np.uint8)
            made = file.create_dataset("images", (len(pictures),), dtype=kind)
            for at, data in enumerate(pictures):
                made[at] = np.frombuffer(data, np.uint8)
        self.images = h5py.File(folder / "images.h5")["images"]

    def read(self, index):
        return self.images[index].tobytes()


class InOneFile(Stored):
    """All pictures one after the other, with OpenCV, in an order of its own."""

    def __init__(self, folder, pictures):
        ends = np.cumsum([len(data) for data in pictures]).tolist()
        self.ranges = list(zip([0, *ends], ends, strict=False))
        random.Random(2).shuffle(self.ranges)
        (folder / "images.bin").write_bytes(b"".join(pictures))
        self.bytes = np.memmap(folder / "images.bin", np.uint8, "r")

    def __getitem__(self, index):
        start, end = self.ranges[index]
        image = cv2.cvtColor(cv2.imdecode(self.bytes[start:end], 1), cv2.COLOR_BGR2RGB)
        return EVAL(Image.fromarray(image)), index % 5


class InOneFileBySeeking(InOneFile):
    """With torchvision's decoder, and a file that is opened for each sample."""

    def __init__(self, folder, pictures):
        super().__init__(folder, pictures)
        self.file, self.bytes = folder / "images.bin", None

    def __getitem__(self, index):
        start, end = self.ranges[index]
        with open(self.file, "rb") as file:
            file.seek(start)
            data = torch.frombuffer(bytearray(file.read(end - start)), dtype=torch.uint8)
        tensor = decode_image(data, ImageReadMode.RGB)
        return EVAL(Image.fromarray(tensor.permute(1, 2, 0).numpy())), index % 5


class InFilesOfArrays(Stored):
    """A NumPy archive for each sample, without compression."""

    def __init__(self, folder, pictures):
        self.folder = folder
        for at, data in enumerate(pictures):
            np.savez(folder / f"{at}.npz", name=f"image {at}", jpeg=np.frombuffer(data, np.uint8))

    def read(self, index):
        return np.load(self.folder / f"{index}.npz")["jpeg"].tobytes()


class InPickle(Stored):
    """A pickle that is read for each sample."""

    def __init__(self, folder, pictures):
        self.file = folder / "images.pkl"
        self.file.write_bytes(pickle.dumps(pictures))

    def read(self, index):
        return pickle.loads(self.file.read_bytes())[index]


class InMemory(InPickle):
    def __init__(self, folder, pictures):
        super().__init__(folder, pictures)
        self.pictures = pickle.loads(self.file.read_bytes())

    def read(self, index):
        return self.pictures[index]


# Python warns of files that are closed with the objects that hold them
@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "store",
    [
        InLmdb,
        ClosingAtItsEnd,
        InTar,
        InZip,
        InHdf5,
        InOneFile,
        InOneFileBySeeking,
        InFilesOfArrays,
        InPickle,
    ],
)
def test_pictures_are_read_where_they_lie(store, pictures, tmp_path):
    dataset = store(tmp_path, pictures)
    old = DataLoader(dataset, batch_size=5)
    with convert(old) as loader:
        for ours, theirs in zip(loader, old, strict=True):
            assert torch.equal(ours[1], theirs[1]) and (ours[0] - theirs[0]).abs().max() <= 1e-6
        manifest = loader.loader.plan.manifest
    if ranges := getattr(dataset, "ranges", None):
        pictures = [b"".join(pictures)[start:end] for start, end in ranges]
    assert [manifest.read(at).tobytes() for at in range(COUNT)] == pictures


@pytest.mark.parametrize("store", [InCompressedZip, InMemory])
def test_bytes_that_lie_in_no_file_are_refused(store, pictures, tmp_path):
    with pytest.raises(NotConvertibleError, match=r"lies in no file that is open") as error:
        convert(DataLoader(store(tmp_path, pictures), batch_size=5))
    assert store.__name__ in str(error.value)
    assert "write each image to a file of its own" in str(error.value)


@pytest.mark.slow
def test_pictures_of_hugging_face_are_read_out_of_its_arrow_files(pictures, tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [{"bytes": data, "path": None} for data in pictures]}
    columns["label"] = [at % 5 for at in range(COUNT)]
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "images")

    table = datasets.load_from_disk(tmp_path / "images").select(range(COUNT - 1, 1, -1))
    table.set_transform(
        lambda rows: {
            "pixels": [EVAL(image.convert("RGB")) for image in rows["image"]],
            "label": rows["label"],
        }
    )
    assert_same_batches(DataLoader(table, batch_size=4))


@pytest.mark.slow
def test_a_file_that_changes_after_the_conversion(pictures, tmp_path):
    dataset = InOneFileBySeeking(tmp_path, pictures)
    with convert(DataLoader(dataset, batch_size=COUNT), check=False) as loader:
        times = os.stat(dataset.file).st_mtime_ns + 10**9
        os.utime(dataset.file, ns=(times, times))
        with pytest.raises(dp.BadSampleError, match="has changed since it was scanned"):
            next(iter(loader))


@pytest.mark.slow
def test_the_scan_is_kept_for_the_files_as_they_are(pictures, tmp_path):
    dataset = InOneFileBySeeking(tmp_path, pictures)
    cache = tmp_path / "cache"
    cache.mkdir()
    for kept in (1, 1):
        with convert(DataLoader(dataset, batch_size=4), cache_dir=cache):
            assert len(list(cache.glob("*.arrow"))) == kept

    os.utime(dataset.file, ns=(10**18, 10**18))
    with convert(DataLoader(dataset, batch_size=4), cache_dir=cache) as loader:
        assert len(list(cache.glob("*.arrow"))) == 2
        next(iter(loader))


# Where the bytes are found


def store(folder, parts):
    """A file of these parts, and where each begins."""
    file = folder / "store.bin"
    file.write_bytes(b"".join(parts))
    return str(file), np.cumsum([0, *map(len, parts)])[:-1].tolist()


def jpeg(rng, size=2000):
    """What begins as a JPEG does; all of one seed begin alike."""
    return b"\xff\xd8\xff\xe0" + bytes(600) + rng.bytes(size)


def test_each_picture_is_found_in_any_order(tmp_path):
    rng = np.random.default_rng(0)
    made = [jpeg(rng, size) for size in rng.integers(1, 50_000, 200).tolist()]
    parts = [part for each in made for part in (rng.bytes(int(rng.integers(0, 200_000))), each)]
    file, starts = store(tmp_path, parts)
    containers = Containers()
    for order in (range(200), range(199, -1, -1), rng.permutation(200).tolist()):
        for at in order:
            place = containers.find(made[at], [file])
            assert (place.file, place.offset, place.length) == (
                file,
                starts[2 * at + 1],
                len(made[at]),
            )
    containers.close()


@pytest.mark.parametrize("change", [b"", b"\0", b"longer"])
def test_what_differs_in_its_last_byte_is_not_found(change, tmp_path):
    whole = jpeg(np.random.default_rng(0))
    file, _ = store(tmp_path, [whole])
    containers = Containers()
    assert containers.find(whole, [file]).offset == 0
    assert containers.find(whole[:-1], [file]).length == len(whole) - 1
    other = whole + change if len(change) > 1 else whole[:-1] + bytes([whole[-1] ^ 1])
    assert containers.find(other, [file]) is None


def test_a_picture_that_a_file_holds_twice(tmp_path):
    rng = np.random.default_rng(0)
    twice, other = jpeg(rng), jpeg(rng)
    file, starts = store(tmp_path, [twice, bytes(200_000), other, bytes(70_000), twice])
    containers = Containers()
    first = containers.find(twice, [file])
    containers.find(other, [file])
    again = containers.find(twice, [file])
    assert {first.offset, again.offset} <= {starts[0], starts[-1]}
    assert hold_the_same([first], [again])
    assert not hold_the_same([first], [containers.find(other, [file])])
    assert not hold_the_same([first], [])


@pytest.mark.parametrize("data", [b"", b"P", b"BM", b"\xff\xd8\xff"])
def test_few_bytes_are_no_picture(data, tmp_path):
    file, _ = store(tmp_path, [bytes(100), data])
    assert Containers().find(data + b"1", [file]) is None


def test_files_that_are_open_or_mapped_are_looked_into(tmp_path):
    picture = jpeg(np.random.default_rng(0))
    file, _ = store(tmp_path, [bytes(500), picture])
    assert Containers().find(picture, []) is None
    with open(file, "rb"):
        assert Containers().find(picture, []).offset == 500
    mapped = np.memmap(file, np.uint8, "r")
    assert Containers().find(picture, []).offset == 500
    del mapped
    assert Containers().find(picture, []) is None
