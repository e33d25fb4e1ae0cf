"""Programs whose samples are several things: boxes, masks, views, pairs, triplets, clips."""

import random
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageFilter, ImageOps
from torchvision import datasets, tv_tensors
from torchvision import transforms as T
from torchvision.io import ImageReadMode, read_image
from torchvision.ops import masks_to_boxes
from torchvision.transforms import v2

from programs.corpus import (
    MEAN,
    STD,
    TO_TENSOR,
    Rows,
    colour,
    evaluating,
    masks,
    program,
    root,
    scratch,
    table,
    training,
)

# Detection and segmentation


def _voc(folder):
    base = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (base / name).mkdir(parents=True)
    for path, label in table():
        name, picture = Path(path).stem, Image.open(path).convert("RGB")
        picture.save(base / "JPEGImages" / f"{name}.jpg")
        top = ElementTree.Element("annotation")
        size = ElementTree.SubElement(top, "size")
        for tag, value in zip(("width", "height"), picture.size, strict=True):
            ElementTree.SubElement(size, tag).text = str(value)
        for at in range(1 + label % 2):
            thing = ElementTree.SubElement(top, "object")
            ElementTree.SubElement(thing, "name").text = ("aeroplane", "bicycle", "bird", "boat")[
                label
            ]
            box = ElementTree.SubElement(thing, "bndbox")
            for tag, value in zip(
                ("xmin", "ymin", "xmax", "ymax"), (9 + at, 9, 70, 60), strict=True
            ):
                ElementTree.SubElement(box, tag).text = str(value)
        (base / "Annotations" / f"{name}.xml").write_bytes(ElementTree.tostring(top))
    names = [Path(path).stem for path, _ in table()]
    (base / "ImageSets/Main/train.txt").write_text("\n".join(names))


@program("train")
def voc_detection():
    steps = [v2.ToImage(), v2.RandomPhotometricDistort(p=0.5)]
    steps += [v2.RandomZoomOut(fill={tv_tensors.Image: 123})]
    steps += [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes()]
    transforms = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()])
    dataset = datasets.VOCDetection(scratch("voc", _voc), "2012", "train", transforms=transforms)
    dataset = datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels"))
    return training(dataset, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))


class Pedestrians(Rows):
    """Boxes are found in masks of instances."""

    def __getitem__(self, idx):
        img, mask = (read_image(path) for path in self.rows[idx])
        obj_ids = torch.unique(mask)[1:]
        instances = (mask == obj_ids[:, None, None]).to(dtype=torch.uint8)
        boxes = masks_to_boxes(instances)
        img = tv_tensors.Image(img)
        target = {"masks": tv_tensors.Mask(instances), "image_id": idx}
        target["labels"] = torch.ones((len(obj_ids),), dtype=torch.int64)
        target["area"] = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0])
        target["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=img.shape[-2:])
        return self.transform(img, target)


@program("train", quick=True)
def pedestrian_instances():
    steps = [v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()]
    pairs = [(path, masks()[path]) for path, _ in colour()]
    return training(
        Pedestrians(pairs, v2.Compose(steps)), collate_fn=lambda b: tuple(zip(*b, strict=True))
    )


class BothRandomResize:
    """Of torchvision's references: for a picture and its target."""

    def __init__(self, min_size, max_size):
        self.min_size, self.max_size = min_size, max_size

    def __call__(self, image, target):
        size = random.randint(self.min_size, self.max_size)
        image = F.resize(image, size, antialias=True)
        return image, F.resize(target, size, interpolation=T.InterpolationMode.NEAREST)


class BothRandomFlip:
    def __call__(self, image, target):
        if random.random() < 0.5:
            image, target = F.hflip(image), F.hflip(target)
        return image, target


class BothRandomCrop:
    def __init__(self, size):
        self.size = size

    def pad(self, img, fill=0):
        if (least := min(img.size)) < self.size:
            ow, oh = img.size
            padh, padw = max(0, self.size - oh), max(0, self.size - ow)
            img = F.pad(img, (0, 0, padw, padh), fill=fill) if least else img
        return img

    def __call__(self, image, target):
        image, target = self.pad(image), self.pad(target, fill=255)
        crop = T.RandomCrop.get_params(image, (self.size, self.size))
        return F.crop(image, *crop), F.crop(target, *crop)


class BothToTensor:
    def __call__(self, image, target):
        target = torch.as_tensor(np.array(target), dtype=torch.int64)
        image = F.convert_image_dtype(F.pil_to_tensor(image), torch.float)
        return F.normalize(image, mean=MEAN, std=STD), target


class Segmentation(Rows):
    def __getitem__(self, index):
        img, target = (Image.open(path) for path in self.rows[index])
        img = img.convert("RGB")
        for each in self.transform:
            img, target = each(img, target)
        return img, target


def cat_list(images, fill_value=0):
    max_size = tuple(max(s) for s in zip(*[img.shape for img in images], strict=True))
    batched_imgs = images[0].new(len(images), *max_size).fill_(fill_value)
    for img, pad_img in zip(images, batched_imgs, strict=True):
        pad_img[..., : img.shape[-2], : img.shape[-1]].copy_(img)
    return batched_imgs


def segmentation_collate(batch):
    images, targets = zip(*batch, strict=True)
    return cat_list(images), cat_list(targets, fill_value=255)


@program("train", quick=True)
def segmentation_reference():
    steps = [BothRandomResize(50, 130), BothRandomFlip(), BothRandomCrop(64), BothToTensor()]
    pairs = [(path, masks()[path]) for path, _ in table()]
    return training(Segmentation(pairs, steps), collate_fn=segmentation_collate, drop_last=True)


@program("eval")
def segmentation_of_many_sizes():
    pairs = [(path, masks()[path]) for path, _ in table()]
    return evaluating(Segmentation(pairs, [BothToTensor()]), collate_fn=segmentation_collate)


# Views


class GaussianBlur:
    """Of SimCLR and MoCo, before torchvision had one."""

    def __init__(self, sigma=(0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x):
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        return x.filter(ImageFilter.GaussianBlur(radius=sigma))


class Solarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


class ContrastiveViews:
    def __init__(self, base_transform, n_views=2):
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, x):
        return [self.base_transform(x) for _ in range(self.n_views)]


@program("train", quick=True)
def contrastive_views():
    jitter = T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    steps = [T.RandomResizedCrop(size=48), T.RandomHorizontalFlip(), jitter]
    steps += [T.RandomGrayscale(p=0.2)]
    steps += [T.RandomApply([GaussianBlur()], p=0.5), Solarization(0.2), T.ToTensor()]
    return training(
        datasets.ImageFolder(root(), ContrastiveViews(T.Compose(steps))), drop_last=True
    )


@program("eval", quick=True)
def five_and_ten_crops():
    stack = T.Lambda(lambda crops: torch.stack([T.PILToTensor()(crop) for crop in crops]))
    normalize = T.Lambda(lambda crops: torch.stack([T.Compose(TO_TENSOR)(crop) for crop in crops]))
    five = T.Compose([T.Resize(56), T.FiveCrop(48), stack])
    ten = T.Compose([T.Resize(56), T.TenCrop(48), normalize])
    both = T.Lambda(lambda img: (five(img), ten(img)))
    return evaluating(datasets.ImageFolder(root(), transform=both))


# Several pictures


class TripletFaces(Rows):
    def __getitem__(self, index):
        anchor, labels = self.rows.iloc[index], self.rows.label
        same = np.flatnonzero(labels == anchor.label)
        positive = np.random.choice(same[same != index])
        other = np.random.choice(list(set(labels) - {anchor.label}))
        negative = np.random.choice(np.flatnonzero(labels == other))
        chosen = {"anc_img": index, "pos_img": positive, "neg_img": negative}
        sample = {
            key: self.transform(Image.open(self.rows.path[at]).convert("RGB"))
            for key, at in chosen.items()
        }
        return sample | {"pos_class": anchor.label, "neg_class": other}


@program("train")
def triplets_of_faces():
    steps = [T.Resize((56, 56)), T.RandomCrop(48), T.RandomHorizontalFlip(), *TO_TENSOR]
    rows = pd.DataFrame(table(), columns=["path", "label"])
    return training(TripletFaces(rows, T.Compose(steps)))


class GroupScaleCrop:
    """Of TSN: one crop and one flip for all frames."""

    def __init__(self, size):
        self.size = size

    def __call__(self, group):
        scale, (w, h) = random.choice([1, 0.875, 0.75]), group[0].size
        side = int(min(w, h) * scale)
        x, y = random.randint(0, w - side), random.randint(0, h - side)
        cropped = [img.crop((x, y, x + side, y + side)) for img in group]
        cropped = [img.resize((self.size, self.size), Image.BILINEAR) for img in cropped]
        if random.random() < 0.5:
            cropped = [img.transpose(Image.FLIP_LEFT_RIGHT) for img in cropped]
        return cropped


class StackFrames:
    def __call__(self, group):
        pic = np.concatenate([np.array(img)[:, :, ::-1] for img in group], axis=2)
        return torch.from_numpy(pic).permute(2, 0, 1).contiguous().float().div(255)


class Videos(Rows):
    transform = T.Compose([GroupScaleCrop(48), StackFrames()])
    segments = 3

    def __len__(self):
        return len(self.rows) // 6

    def __getitem__(self, index):
        ticks = np.linspace(0, 6, self.segments + 1).astype(int)
        chosen = [6 * index + random.randrange(a, b) for a, b in pairwise(ticks)]
        images = [Image.open(self.rows[at]).convert("RGB").resize((100, 90)) for at in chosen]
        return self.transform(images), index


@program("train")
def frames_of_videos():
    return training(Videos([path for path, _ in table()]), batch_size=2)


class Clips(Videos):
    """As a tensor of (C, T, H, W), with one crop for all frames by v2."""

    steps = v2.Compose([v2.RandomResizedCrop(40, antialias=True), v2.RandomHorizontalFlip()])

    def __getitem__(self, index):
        frames = [F.resize(read_image(path, ImageReadMode.RGB), [60, 60]) for path in self.rows[:4]]
        clip = self.steps(tv_tensors.Video(torch.stack(frames)))
        return clip.float().div(255).permute(1, 0, 2, 3), index


@program("train")
def clips_as_tensors():
    return training(Clips([path for path, _ in table()]), batch_size=2)


class Aligned(Rows):
    """pix2pix: A and B are halves of one file, and get the same random numbers."""

    load_size, crop_size = 56, 48

    def get_transform(self, params):
        position, size = params["crop_pos"], [self.load_size] * 2
        steps = [T.Resize(size, Image.BICUBIC), T.Lambda(lambda img: self.crop(img, position))]
        if params["flip"]:
            steps.append(T.Lambda(lambda img: img.transpose(Image.FLIP_LEFT_RIGHT)))
        return T.Compose([*steps, T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)])

    def crop(self, img, position):
        x1, y1 = position
        tw = th = self.crop_size
        return img.crop((x1, y1, x1 + tw, y1 + th))

    def __getitem__(self, index):
        AB_path = self.rows[index]
        AB = Image.open(AB_path).convert("RGB")
        w, h = AB.size
        A, B = AB.crop((0, 0, w // 2, h)), AB.crop((w // 2, 0, w, h))
        gap = self.load_size - self.crop_size
        x, y = random.randint(0, np.maximum(0, gap)), random.randint(0, np.maximum(0, gap))
        transform = self.get_transform({"crop_pos": (x, y), "flip": random.random() > 0.5})
        return {"A": transform(A), "B": transform(B), "A_paths": AB_path, "B_paths": AB_path}


@program("train")
def halves_of_one_picture():
    return training(Aligned([path for path, _ in table()]))


class Upscaling(Rows):
    """A patch and the same one four times smaller, by Pillow and NumPy."""

    patch, scale = 48, 4

    def __getitem__(self, idx):
        hr = Image.open(self.rows[idx]).convert("RGB")
        w, h = (side - side % self.scale for side in hr.size)
        hr = hr.crop((0, 0, w, h))
        lr = hr.resize((w // self.scale, h // self.scale), Image.BICUBIC)
        hr, lr = np.asarray(hr), np.asarray(lr)
        size = self.patch // self.scale
        ix, iy = random.randrange(lr.shape[1] - size + 1), random.randrange(lr.shape[0] - size + 1)
        lr = lr[iy : iy + size, ix : ix + size]
        tx, ty = ix * self.scale, iy * self.scale
        hr = hr[ty : ty + self.patch, tx : tx + self.patch]
        hflip, vflip, rot90 = (random.random() < 0.5 for _ in range(3))
        return tuple(self.tensor(self.augment(img, hflip, vflip, rot90)) for img in (lr, hr))

    def augment(self, img, hflip, vflip, rot90):
        img = img[:, ::-1, :] if hflip else img
        img = img[::-1, :, :] if vflip else img
        return img.transpose(1, 0, 2) if rot90 else img

    def tensor(self, img):
        return torch.from_numpy(np.ascontiguousarray(img.transpose((2, 0, 1)))).float() / 255.0


@program("train", quick=True)
def patches_for_upscaling():
    return training(Upscaling([path for path, _ in table()]))
