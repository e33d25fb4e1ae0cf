"""Files: temporary, overwritten, renamed, linked, broken; streams, positions and archives."""

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import ContainerIO, Image, ImageFile
from torchvision.io import read_file, read_image

from programs import pictures
from programs.pictures import aged, fresh
from programs.traps import (
    SIZE,
    array,
    dataset_trap,
    loader_trap,
    pairs,
    small,
    tensor,
    trap,
)


def copy_of(path, name=None):
    """A copy that was not written just now."""
    file = name or fresh(Path(path).suffix)
    shutil.copy(path, file)
    aged(file)
    return file


def broken(path, share=0.6):
    data = Path(path).read_bytes()
    file = fresh(Path(path).suffix)
    file.write_bytes(data[: int(len(data) * share)])
    return str(aged(file))


def resized(picture):
    return F.to_tensor(picture.convert("RGB").resize((SIZE, SIZE)))


# Files that do not stay


@trap
def one_temporary_name_for_all_samples(path, other):
    file = str(pictures.FOLDER / f"one-{os.getpid()}.png")
    small(path).save(file)
    p = Image.open(file).convert("RGB")
    return F.to_tensor(p), torch.from_numpy(cv2.imread(file)), read_image(file)


@trap(collate_fn=list)
def old_file_is_removed_after_it_was_read(path, other):
    file = copy_of(path)
    p, a, x = small(file), cv2.imread(str(file)), read_image(str(file))
    file.unlink()
    return F.to_tensor(p), cv2.resize(a, (SIZE, SIZE)), F.resize(x, [SIZE, SIZE])


@trap(collate_fn=list)
def old_file_is_overwritten(path, other):
    file = copy_of(path)
    p, a, x = small(file), cv2.imread(str(file)), read_image(str(file))
    shutil.copy(other, file)
    return F.to_tensor(p), cv2.resize(a, (SIZE, SIZE)), F.resize(x, [SIZE, SIZE])


@trap
def old_file_is_overwritten_and_its_time_set_back(path, other):
    file = copy_of(path)
    found = file.stat()
    p = small(file)
    out = io.BytesIO()
    small(other).save(out, "JPEG")  # a whole picture of as many bytes
    file.write_bytes(out.getvalue() + bytes(max(0, found.st_size - len(out.getvalue()))))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    return F.to_tensor(p)


@trap
def file_is_replaced_between_two_readings(path, other):
    file = copy_of(path)
    p = Image.open(file)
    new = copy_of(other)
    new.replace(file)
    q = Image.open(file)
    return resized(p), resized(q)


@trap
def file_is_cut_after_it_was_opened(path, other):
    file = copy_of(path)
    p = Image.open(file)
    os.truncate(file, file.stat().st_size // 2)
    try:
        return resized(p), 0
    except OSError:
        return torch.zeros(3, SIZE, SIZE), 1


@trap
def link_is_turned_to_another_file(path, other):
    link = fresh(Path(path).suffix)
    link.symlink_to(path)
    p = small(link)
    link.unlink()
    link.symlink_to(other)
    return F.to_tensor(p)


@trap
def relative_path_and_another_working_folder(path, other):
    with contextlib.chdir(Path(path).parent):
        p, a = small(Path(path).name), cv2.imread(Path(path).name)
    return F.to_tensor(p), cv2.resize(a, (SIZE, SIZE))


@trap(workers=1)
def path_that_means_another_file_in_each_process(path, other):
    with open(path, "rb") as file:
        name = f"/proc/self/fd/{file.fileno()}"
        return F.to_tensor(small(name)), cv2.resize(cv2.imread(name), (SIZE, SIZE))


@trap
def file_is_removed_by_who_opened_it(path, other):
    return F.to_tensor(Extracted(path).picture.convert("RGB").resize((SIZE, SIZE)))


class Extracted:
    def __init__(self, path):
        self.file = copy_of(path)
        self.picture = Image.open(self.file)
        self.picture.load()

    def __del__(self):
        self.file.unlink()


def _collate_and_remove(samples):
    for _, file in samples:
        file.unlink(missing_ok=True)
    return torch.stack([x for x, _ in samples])


@dataset_trap(epochs=2, batch_size=3, collate_fn=_collate_and_remove)
def files_are_removed_by_the_collate_function(self, at):
    file = copy_of(self.files[at])
    return F.to_tensor(small(file)), file


# Streams, and where they are


@trap
def buffer_is_written_over(path, other):
    buffer, array_of_bytes = io.BytesIO(Path(path).read_bytes()), np.fromfile(path, np.uint8)
    x = read_file(path)
    p, a, y = small(buffer), cv2.imdecode(array_of_bytes, 1), torch.ops.image.decode_image(x, 3)
    buffer.seek(0)
    buffer.write(bytes(1000))
    array_of_bytes[:] = 0
    x.zero_()
    return F.to_tensor(p), cv2.resize(a, (SIZE, SIZE)), F.resize(y, [SIZE, SIZE])


@trap
def positions_in_a_file_and_a_buffer_after_their_pictures(path, other):
    buffer = io.BytesIO(Path(path).read_bytes())
    p = Image.open(buffer)
    p.load()
    found = resized(p), buffer.tell(), buffer.read(9).hex(), p.fp is None
    with open(path, "rb") as file:
        p = Image.open(file)
        before = file.tell()
        q = p.convert("RGB").resize((SIZE, SIZE))
        return *found, F.to_tensor(q), before, file.tell(), len(file.read())


@trap
def several_pictures_in_one_file(path, other):
    data = [Path(each).read_bytes() for each in (path, other)]
    file = fresh()
    file.write_bytes(b"".join(data))
    aged(file)
    with open(file, "rb") as opened:
        first = Image.open(io.BytesIO(opened.read(len(data[0])))).convert("RGB")
        second = Image.open(ContainerIO.ContainerIO(opened, len(data[0]), len(data[1])))
        second = second.convert("RGB")
    return resized(first), resized(second)


@trap
def file_is_closed_before_its_pixels_are_read(path, other):
    with open(path, "rb") as file:
        p = Image.open(file)
    try:
        return resized(p), 0
    except ValueError:
        return torch.zeros(3, SIZE, SIZE), 1


@trap
def picture_is_read_after_its_block(path, other):
    with Image.open(path) as p:
        p.load()
    with Image.open(other) as q:
        size = q.size
    try:
        return resized(p), size, resized(q)
    except (ValueError, AssertionError):
        return resized(p), size, resized(p)


@trap
def picture_is_closed(path, other):
    p, q = Image.open(path), small(other)
    p.close(), q.close()
    try:
        return F.to_tensor(q), 0
    except (ValueError, AttributeError) as error:
        return torch.zeros(3, SIZE, SIZE), type(error).__name__


@trap
def streams_that_cannot_be_sought(path, other):
    return resized(Image.open(Unseekable(path)).convert("RGB"))


class Unseekable(io.RawIOBase):
    def __init__(self, path):
        self.file = Path(path).open("rb")  # noqa: SIM115

    def read(self, size=-1):
        return self.file.read(size)

    def readable(self):
        return True

    def seek(self, *_):
        raise io.UnsupportedOperation


@trap
def members_of_archives(path, other):
    zipped, tarred, name = fresh(".zip"), fresh(".tar"), "a/picture"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, name)
    with tarfile.open(tarred, "w") as archive:
        archive.add(other, name)
    with zipfile.ZipFile(aged(zipped)) as archive, archive.open(name) as member:
        p = Image.open(member).convert("RGB")
    with tarfile.open(aged(tarred)) as archive:
        q = Image.open(archive.extractfile(name))
        q.load()
    with gzip.open(fresh(".gz"), "w+b") as packed:
        packed.write(Path(path).read_bytes())
    with gzip.open(packed.name) as file:
        r = Image.open(file).convert("RGB")
    return resized(p), resized(q), resized(r)


@trap
def picture_that_is_fed_in_parts(path, other):
    parser, data = ImageFile.Parser(), Path(path).read_bytes()
    for at in range(0, len(data), 500):
        parser.feed(data[at : at + 500])
    return resized(parser.close())


# Files that cannot be decoded


@trap
def broken_file_caught_late(path, other):
    q = None
    try:
        p = Image.open(broken(path))
        q = p.convert("RGB")
        return np.array(q.resize((SIZE, SIZE))), "whole", False
    except Exception as error:
        return np.zeros((SIZE, SIZE, 3), np.uint8), type(error).__name__, q is None


@trap
def broken_file_that_load_finds(path, other):
    p = Image.open(broken(path))
    try:
        p.load()
    except OSError:
        p = Image.open(other)
    return resized(p)


@trap
def broken_file_and_the_next_one(path, other):
    """The rare branch: another sample is returned without a word."""
    with contextlib.suppress(Exception):
        return F.to_tensor(small(broken(path, 0.7))), array(path)
    return F.to_tensor(small(other)), array(other)


def _load_truncated(worker):
    ImageFile.LOAD_TRUNCATED_IMAGES = True


@trap(workers=1, worker_init_fn=_load_truncated)
def broken_file_and_truncated_images_are_loaded_by_workers(path, other):
    return F.to_tensor(small(broken(path)))


@loader_trap
def limit_of_pixels_that_workers_lift():
    def lift(worker):
        Image.MAX_IMAGE_PIXELS = None

    Image.MAX_IMAGE_PIXELS = 3000  # small pictures are over it too, and twice as many raise
    return pairs(lambda path, other: tensor(path), batch_size=3, num_workers=1, worker_init_fn=lift)


def _flipped(path):
    """A PNG whose pixels have a wrong checksum."""
    file = fresh(".png")
    with Image.open(path) as picture:
        picture.convert("RGB").save(file)
    data = bytearray(file.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 255
    file.write_bytes(data)
    return str(aged(file))


@trap
def broken_inside_and_only_measured(path, other):
    try:
        size = Image.open(_flipped(path)).convert("RGB").size
    except (OSError, SyntaxError):
        size = 0, 0
    try:
        shape = read_image(_flipped(path)).shape
    except RuntimeError:
        shape = ()
    return F.to_tensor(small(other)), size, shape, cv2.imread(_flipped(path)) is None


@trap(collate_fn=list)
def broken_files_of_cv2_and_torchvision(path, other):
    a, b = cv2.imread(broken(path)), cv2.imread(broken(path, 0.0001))
    try:
        x = read_image(broken(path))
    except RuntimeError:
        x = torch.zeros(3, 1, 1)
    found = a is None or cv2.resize(a, (9, 9)), b is None, cv2.imread(path + ".lost") is None
    return *found, x.shape


@trap
def verified_and_opened_again(path, other):
    p = Image.open(path)
    p.verify()
    with contextlib.suppress(Exception):
        p.load()
        return F.to_tensor(small(other))
    return F.to_tensor(small(path))


@trap
def names_that_are_no_text(path, other):
    file = copy_of(path, Path(os.fsdecode(os.fsencode(fresh()) + b" \xff\n.png")))
    p, q = small(os.fsencode(file)), small(file)
    return F.to_tensor(p), F.to_tensor(q)
