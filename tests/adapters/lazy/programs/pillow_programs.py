"""Programs on pictures of Pillow and on torchvision's tensors."""

import json
import math
import random
from collections import defaultdict
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    Dataset,
    Sampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torchvision import datasets
from torchvision import transforms as T
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from programs.corpus import (
    MEAN,
    STD,
    TO_TENSOR,
    Rows,
    colour,
    depths,
    evaluating,
    program,
    root,
    scratch,
    table,
    training,
)
from programs.pictures import CLASSES

# Arrays of pictures


class CenterCropped(Rows):
    """Guided diffusion's: halved as long as it is too large, resized, then cropped by NumPy."""

    size = 40

    def __getitem__(self, idx):
        path, label = self.rows[idx]
        with open(path, "rb") as f:
            pil_image = Image.open(f)
            pil_image.load()
        pil_image = pil_image.convert("RGB")
        while min(*pil_image.size) >= 2 * self.size:
            pil_image = pil_image.resize(tuple(x // 2 for x in pil_image.size), resample=Image.BOX)
        scale = self.size / min(*pil_image.size)
        new = tuple(round(x * scale) for x in pil_image.size)
        arr = np.array(pil_image.resize(new, resample=Image.BICUBIC))
        crop_y, crop_x = (arr.shape[0] - self.size) // 2, (arr.shape[1] - self.size) // 2
        arr = arr[crop_y : crop_y + self.size, crop_x : crop_x + self.size]
        if random.random() < 0.5:
            arr = arr[:, ::-1]
        arr = arr.astype(np.float32) / 127.5 - 1
        return np.transpose(arr, [2, 0, 1]), {"y": np.array(label, dtype=np.int64)}


@program("train")
def diffusion():
    return training(CenterCropped(table()))


class Radiographs(Rows):
    """Gray PNGs, some of 16 bits, whose contrast is stretched by percentiles."""

    def __getitem__(self, idx):
        image = np.array(Image.open(self.rows[idx])).astype(np.float32)
        low, high = np.percentile(image, (1, 99))
        image = np.clip((image - low) / (high - low), 0, 1)
        picture = Image.fromarray((image * 255).astype(np.uint8), mode="L")
        return self.transform(picture), self.rows[idx]


@program("eval")
def radiographs():
    steps = [T.Resize((48, 48)), T.Grayscale(num_output_channels=3), *TO_TENSOR]
    return evaluating(Radiographs([*depths().values()][:12], T.Compose(steps)))


class GrayLesions(Dataset):
    def __init__(self, rows, train=True):
        self.rows = rows
        steps = [T.RandomRotation(10), T.RandomAffine(0, translate=(0.1, 0.1))] if train else []
        steps += [T.RandomAutocontrast(), T.RandomEqualize(0.3)]
        self.transform = T.Compose([T.Resize((56, 56)), *steps, T.CenterCrop(48), T.ToTensor()])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        path, label = self.rows[i]
        img = self.transform(Image.open(path).convert("L"))
        return T.Normalize([0.5], [0.25])(img), torch.nn.functional.one_hot(torch.tensor(label), 4)


@program("train")
def gray_lesions():
    weights = torch.tensor([1.0 + label for _, label in table()])
    sampler = WeightedRandomSampler(weights, num_samples=20, replacement=True)
    return training(GrayLesions(table()), shuffle=False, sampler=sampler)


class DepthOfRooms(Rows):
    """RGB and a depth of 16 bits, moved together."""

    jitter = T.ColorJitter(0.2, 0.2, 0.2)

    def __getitem__(self, idx):
        image, depth = (Image.open(path) for path in self.rows[idx])
        angle = (random.random() - 0.5) * 5
        image, depth = image.rotate(angle, Image.BILINEAR), depth.rotate(angle, Image.NEAREST)
        image = np.asarray(self.jitter(image), dtype=np.float32) / 255.0
        depth = np.asarray(depth, dtype=np.float32)[..., None] / 1000.0
        y, x = random.randint(0, image.shape[0] - 64), random.randint(0, image.shape[1] - 64)
        image, depth = image[y : y + 64, x : x + 64, :], depth[y : y + 64, x : x + 64, :]
        if random.random() > 0.5:
            image, depth = (image[:, ::-1, :]).copy(), (depth[:, ::-1, :]).copy()
        image = T.functional.normalize(torch.from_numpy(image.transpose((2, 0, 1))), MEAN, STD)
        return {
            "image": image,
            "depth": torch.from_numpy(depth.transpose((2, 0, 1))),
            "has": depth.any(),
        }


@program("train")
def depth_of_rooms():
    return training(DepthOfRooms([(path, depths()[path]) for path, _ in colour()]))


# Tensors


class FlipAndNoise(nn.Module):
    """As Kornia's: a module on tensors, with random numbers of its own."""

    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))

    def forward(self, x):
        if torch.rand(1) < self.p:
            x = torch.flip(x, [-1])
        if torch.rand(1) < self.p:
            x = x * torch.empty(1).uniform_(0.8, 1.2)
        return (x - self.mean).clamp(-1, 1)


class Decoded(Rows):
    def __getitem__(self, idx):
        path, label = self.rows[idx]
        return self.transform(decode_image(read_file(path), mode=ImageReadMode.RGB)), label


@program("train")
def decoded_tensors():
    steps = [v2.RandomResizedCrop((40, 40), antialias=True), v2.RandomVerticalFlip()]
    steps += [v2.ColorJitter(0.3, 0.3), v2.ToDtype(torch.float32, scale=True)]
    return training(Decoded(table(), nn.Sequential(v2.Compose(steps), FlipAndNoise())))


@program("train", quick=True)
def policies_on_tensors():
    steps = [v2.RandAugment(num_ops=1), v2.Resize((48, 48)), v2.AutoAugment()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    module = nn.Sequential(v2.RandomErasing(p=0.5))
    return training(Decoded(table(), v2.Compose([*steps, module])))


# Tables, labels, samplers


class Planet(Dataset):
    def __init__(self, csv_path, img_dir, transform):
        self.df, self.img_dir, self.transform = pd.read_csv(csv_path), img_dir, transform
        self.labels = np.stack(
            [np.isin(np.arange(5), [int(tag) for tag in tags.split()]) for tags in self.df.tags]
        )

    def __len__(self):
        return len(self.df.index)

    def __getitem__(self, index):
        img = Image.open(self.img_dir / self.df.iloc[index].image_name)
        img = img.convert("RGB")
        if self.transform is not None:
            img = self.transform(img)
        return img, torch.from_numpy(self.labels[index].astype("float32"))


def _tags(folder):
    rows = [
        {"image_name": Path(path).relative_to(root()), "tags": f"{label} 4"}
        for path, label in table()
    ]
    pd.DataFrame(rows).to_csv(folder / "tags.csv", index=False)


@program("train", quick=True)
def tags_in_a_table():
    steps = [T.RandomResizedCrop(48, scale=(0.6, 1)), T.RandomHorizontalFlip()]
    steps += [T.RandomVerticalFlip(), T.ColorJitter(0.2), T.RandAugment(), *TO_TENSOR]
    dataset = Planet(scratch("tags", _tags) / "tags.csv", root(), T.Compose(steps))
    return training(random_split(dataset, [18, 6])[0], pin_memory=True)


class OwnErasing:
    """Of re-identification, with math and random."""

    def __init__(self, probability=0.5, sl=0.02, sh=0.4, r1=0.3):
        self.probability, self.sl, self.sh, self.r1 = probability, sl, sh, r1

    def __call__(self, img):
        if random.uniform(0, 1) >= self.probability:
            return img
        for _ in range(100):
            area = img.size()[1] * img.size()[2]
            target_area = random.uniform(self.sl, self.sh) * area
            aspect_ratio = random.uniform(self.r1, 1 / self.r1)
            h = round(math.sqrt(target_area * aspect_ratio))
            w = round(math.sqrt(target_area / aspect_ratio))
            if w < img.size()[2] and h < img.size()[1]:
                x1, y1 = random.randint(0, img.size()[1] - h), random.randint(0, img.size()[2] - w)
                for at, value in enumerate(MEAN):
                    img[at, x1 : x1 + h, y1 : y1 + w] = value
                return img
        return img


class IdentitySampler(Sampler):
    """Some pictures of each of some persons in a batch."""

    def __init__(self, table, per_batch=2, per_person=2):
        self.per_batch, self.per_person, self.index = per_batch, per_person, defaultdict(list)
        for at, (_, person) in enumerate(table):
            self.index[person].append(at)

    def __len__(self):
        return len(self.index) * self.per_person

    def __iter__(self):
        for person in np.random.permutation(list(self.index)):
            yield from np.random.choice(self.index[person], self.per_person, replace=False).tolist()


class Persons(Rows):
    def __getitem__(self, index):
        img_path, pid = self.rows[index]
        with Image.open(img_path) as img:
            img = img.convert("RGB")
        return self.transform(img), pid, index % 6, img_path.split("/")[-1]


@program("train")
def persons_by_identity():
    steps = [T.Resize([64, 32]), T.RandomHorizontalFlip(p=0.5), T.Pad(5), T.RandomCrop([64, 32])]
    dataset = Persons(table(), T.Compose([*steps, *TO_TENSOR, OwnErasing()]))
    return training(dataset, shuffle=False, sampler=IdentitySampler(table()))


class Mixer:
    """CutMix by NumPy, in the collate function."""

    def __init__(self, alpha=1.0):
        self.alpha = alpha

    def __call__(self, batch):
        data, targets = default_collate(batch)
        order = torch.randperm(data.size(0))
        lam = np.random.beta(self.alpha, self.alpha)
        h, w = data.shape[2:]
        cx, cy, half = np.random.uniform(0, w), np.random.uniform(0, h), np.sqrt(1 - lam) / 2
        x0, x1 = (int(np.clip(cx + sign * w * half, 0, w)) for sign in (-1, 1))
        y0, y1 = (int(np.clip(cy + sign * h * half, 0, h)) for sign in (-1, 1))
        data[:, :, y0:y1, x0:x1] = data[order][:, :, y0:y1, x0:x1]
        return data, (targets, targets[order], lam)


@program("train", quick=True)
def mixed_by_the_collate_function():
    steps = T.Compose(
        [T.RandomCrop(48, padding=4, pad_if_needed=True), T.RandomHorizontalFlip(), *TO_TENSOR]
    )
    return training(datasets.ImageFolder(root(), steps), collate_fn=Mixer())


class TextLines(Rows):
    """Gray lines of text, which are made tensors of the widest ratio when they are collated."""

    def __getitem__(self, index):
        path, label = self.rows[index]
        return Image.open(path).convert("L"), CLASSES[label]


class ResizeNormalize:
    def __init__(self, size):
        self.size, self.toTensor = size, T.ToTensor()

    def __call__(self, img):
        img = self.toTensor(img.resize(self.size, Image.BILINEAR))
        img.sub_(0.5).div_(0.5)
        return img


def align(batch):
    images, labels = zip(*batch, strict=True)
    ratio = max(w / float(h) for w, h in (image.size for image in images))
    transform = ResizeNormalize((max(32, int(np.floor(ratio * 32))), 32))
    return torch.cat([transform(image).unsqueeze(0) for image in images], 0), labels


@program("train")
def lines_of_text():
    return training(TextLines(table()), collate_fn=align)


class Captions(Rows):
    """CLIP's: JSON, bicubic, and texts of tokens."""

    def __getitem__(self, idx):
        row = self.rows[idx]
        caption = random.choice(row["captions"])
        tokens = torch.tensor([ord(letter) for letter in caption.ljust(16)[:16]])
        return self.transform(Image.open(row["image"])), tokens, row["id"]


@program("train")
def captions_in_json():
    rows = [
        {"image": path, "id": at, "captions": [f"a {CLASSES[label]}", "a picture"]}
        for at, (path, label) in enumerate(table())
    ]
    crop = T.RandomResizedCrop(48, scale=(0.9, 1.0), interpolation=T.InterpolationMode.BICUBIC)
    steps = T.Compose([crop, lambda image: image.convert("RGB"), *TO_TENSOR])
    return training(Subset(Captions(json.loads(json.dumps(rows)), steps), range(3, 21)))


class InMemory(Rows):
    """All files are read at once, and kept as they are."""

    def __getitem__(self, index):
        data, label = self.rows[index]
        return self.transform(Image.open(BytesIO(data)).convert("RGB")), label


@program("train")
def files_in_memory():
    steps = [T.Resize(56, interpolation=T.InterpolationMode.BICUBIC), T.CenterCrop(48)]
    steps += [T.TrivialAugmentWide()]
    rows = [(Path(path).read_bytes(), label) for path, label in table()]
    return training(InMemory(rows, T.Compose([*steps, *TO_TENSOR])))
