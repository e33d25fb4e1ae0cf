"""Programs whose pictures are in archives, data bases and data sets of other libraries."""

import io
import pickle
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision import datasets
from torchvision import transforms as T

from programs.corpus import (
    MEAN,
    STD,
    TO_TENSOR,
    Rows,
    colour,
    evaluating,
    program,
    root,
    scratch,
    table,
    training,
)
from programs.pictures import FILES

CROP = T.Compose([T.RandomResizedCrop(48), T.RandomHorizontalFlip(), *TO_TENSOR])


# Archives


class Zipped(Rows):
    """Opened in each worker, and read without unpacking."""

    zip = None

    def __getitem__(self, index):
        if self.zip is None:
            self.zip = zipfile.ZipFile(scratch("zip", _zip) / "train.zip")
        name, label = self.rows[index]
        with self.zip.open(name) as file:
            img = Image.open(file).convert("RGB") if index % 2 else None
        img = img or Image.open(io.BytesIO(self.zip.read(name))).convert("RGB")
        return self.transform(img), label


def _zip(folder):
    with zipfile.ZipFile(folder / "train.zip", "w") as archive:
        for path, label in table():
            archive.write(path, f"{label}/{Path(path).name}")


@program("train", quick=True)
def zipped_files():
    names = [(f"{label}/{Path(path).name}", label) for path, label in table()]
    scratch("zip", _zip)
    return training(Zipped(names, CROP))


def _tars(folder):
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for at, (path, label) in list(enumerate(colour()))[shard::2]:
                data = {"jpg": Path(path).read_bytes(), "cls": str(label).encode()}
                for ending, content in data.items():
                    member = tarfile.TarInfo(f"{at:05d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


@program("train", "webdataset")
def web_dataset():
    import webdataset as wds

    folder = scratch("tars", _tars)
    shards = [str(folder / f"{shard}.tar") for shard in range(2)]
    options = {"shardshuffle": False, "nodesplitter": wds.split_by_node, "empty_check": False}
    dataset = wds.WebDataset(shards, **options).decode("pil").to_tuple("jpg", "cls")
    return DataLoader(dataset.map_tuple(CROP, lambda label: label).batched(4), batch_size=None)


@program("eval", "webdataset")
def web_dataset_in_dictionaries():
    import webdataset as wds

    resize = T.Compose([T.Resize((48, 48)), *TO_TENSOR])
    shards = [str(scratch("tars", _tars) / f"{shard}.tar") for shard in range(2)]
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False).decode("pilrgb")
    return DataLoader(dataset.rename(image="jpg", label="cls").map_dict(image=resize), batch_size=4)


class Lmdb(Rows):
    """Pickled records, opened where they are first read."""

    env = None

    def __getitem__(self, index):
        import lmdb

        if self.env is None:
            options = {"readonly": True, "lock": False, "readahead": False, "meminit": False}
            self.env = lmdb.open(str(scratch("lmdb", _lmdb)), **options)
        with self.env.begin(write=False) as txn:
            imgbuf, target = pickle.loads(txn.get(f"{index}".encode("ascii")))
        buf = io.BytesIO()
        buf.write(imgbuf)
        buf.seek(0)
        return self.transform(Image.open(buf).convert("RGB")), target


def _lmdb(folder):
    import lmdb

    with lmdb.open(str(folder), map_size=2**24) as env, env.begin(write=True) as transaction:
        for at, (path, label) in enumerate(table()):
            transaction.put(str(at).encode(), pickle.dumps((Path(path).read_bytes(), label)))


@program("train", "lmdb")
def records_in_lmdb():
    scratch("lmdb", _lmdb)
    return training(Lmdb(FILES, CROP))


# Streams


class Shards(IterableDataset):
    """Lists of files for each worker, and a buffer that shuffles."""

    def __init__(self, shards, transform, buffer=6):
        self.shards, self.transform, self.buffer = shards, transform, buffer

    def lines(self):
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        for shard in self.shards[number::count]:
            yield from shard.read_text().splitlines()

    def shuffled(self, lines):
        kept = []
        for line in lines:
            kept.append(line)
            if len(kept) >= self.buffer:
                yield kept.pop(random.randrange(len(kept)))
        random.shuffle(kept)
        yield from kept

    def __iter__(self):
        for line in self.shuffled(self.lines()):
            path, label = line.split("\t")
            with open(path, "rb") as file:
                yield self.transform(Image.open(file).convert("RGB")), int(label)


def _lists(folder):
    for shard in range(3):
        rows = [f"{path}\t{label}" for path, label in table()[shard::3]]
        (folder / f"{shard}.txt").write_text("\n".join(rows))


@program("train", quick=True)
def lists_in_shards():
    shards = sorted(scratch("lists", _lists).glob("*.txt"))
    return DataLoader(Shards(shards, CROP), batch_size=4)


# Hugging Face


def _arrow():
    import datasets as hf

    columns = {"image": [path for path, _ in table()], "label": [label for _, label in table()]}
    return hf.Dataset.from_dict(columns).cast_column("image", hf.Image())


@program("train", "datasets")
def hugging_face_and_torchvision():
    def preprocess_train(example_batch):
        images = example_batch["image"]
        example_batch["pixel_values"] = [CROP(image.convert("RGB")) for image in images]
        return example_batch

    def collate_fn(examples):
        pixel_values = torch.stack([example["pixel_values"] for example in examples])
        return {
            "pixel_values": pixel_values,
            "labels": torch.tensor([each["label"] for each in examples]),
        }

    return training(_arrow().with_transform(preprocess_train), collate_fn=collate_fn)


@program("train", "datasets", "albumentations")
def hugging_face_and_albumentations():
    import albumentations as A

    aug = A.Compose(
        [A.Resize(48, 48), A.HorizontalFlip(p=0.5), A.RandomBrightnessContrast()], seed=3
    )

    def transforms(examples):
        arrays = [np.array(image.convert("RGB")) for image in examples["image"]]
        values = [aug(image=each)["image"].transpose(2, 0, 1) for each in arrays]
        return {"pixel_values": values, "label": examples["label"]}

    dataset = _arrow()
    dataset.set_transform(transforms)
    return training(dataset)


@program("eval", "datasets")
def hugging_face_as_tensors():
    import datasets as hf

    resized = [Image.open(path).convert("RGB").resize((40, 30)) for path, _ in table()[:10]]
    columns = {"image": resized, "label": list(range(10))}
    features = hf.Features(image=hf.Image(), label=hf.Value("int64"))
    return evaluating(hf.Dataset.from_dict(columns, features=features).with_format("torch"))


@program("train", "datasets")
def hugging_face_stream():
    def crop(example):
        return {"image": CROP(example["image"].convert("RGB")), "label": example["label"]}

    stream = _arrow().to_iterable_dataset(num_shards=2).map(crop)
    return DataLoader(stream.with_format("torch"), batch_size=4)


# timm


def _timm_loader(**options):
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(root()), is_training=True)
    given = {"input_size": (3, 48, 48), "batch_size": 4, "is_training": True, "num_workers": 0}
    given |= {"persistent_workers": False, "pin_memory": False, "device": torch.device("cpu")}
    return create_loader(dataset, **given | {"mean": MEAN, "std": STD} | options)


@program("train", "timm")
def timm_with_a_policy_and_erasing():
    policy = {"auto_augment": "rand-m6-n2-mstd0.5", "re_prob": 0.3, "re_mode": "const"}
    return _timm_loader(use_prefetcher=False, interpolation="bicubic", **policy)


@program("train", "timm", wraps=True)
def timm_prefetcher():
    """Which normalizes and erases on the device."""
    return _timm_loader(use_prefetcher=True, re_prob=0.3, color_jitter=0.3, hflip=0.5)


@program("train", "timm", wraps=True)
def timm_mixup_in_the_collate_function():
    from timm.data import FastCollateMixup

    mixup = FastCollateMixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=4)
    return _timm_loader(use_prefetcher=True, collate_fn=mixup)


@program("eval", "timm")
def timm_evaluation():
    from timm.data import create_transform

    transform = create_transform(48, interpolation="bicubic", crop_pct=0.9, mean=MEAN, std=STD)
    return evaluating(datasets.ImageFolder(str(root()), transform), num_workers=0)


# A folder, as most programs have it


@program("train", quick=True)
def folder_and_jitter():
    steps = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    transform = T.Compose([*steps, *TO_TENSOR, T.RandomErasing(0.5)])
    return training(datasets.ImageFolder(root(), transform))


@program("eval", quick=True)
def folder_with_paths():
    class WithPaths(datasets.ImageFolder):
        def __getitem__(self, index):
            return (*super().__getitem__(index), self.imgs[index][0].split("/")[-1])

    transform = T.Compose([T.Resize(56), T.CenterCrop(48), *TO_TENSOR])
    return evaluating(WithPaths(root(), transform))
