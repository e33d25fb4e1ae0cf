"""Programs on arrays: OpenCV and albumentations."""

import math
import random
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import pandas as pd
import torch
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torchvision import transforms as T

from programs.corpus import MEAN, STD, TO_TENSOR, Rows, evaluating, masks, program, table, training

RGB = cv2.COLOR_BGR2RGB


class Wheat(Rows):
    """Boxes move with the pictures by albumentations."""

    def __getitem__(self, index):
        path, label = self.rows[index]
        image = cv2.imread(path, cv2.IMREAD_COLOR)
        image = cv2.cvtColor(image, RGB).astype(np.float32)
        image /= 255.0
        boxes = np.array([[5, 5, 60, 50], [30, 20, 80, 70]][: 1 + label % 2], dtype=np.float32)
        target = {
            "labels": torch.ones((len(boxes),), dtype=torch.int64),
            "image_id": torch.tensor([index]),
        }
        sample = self.transform(image=image, bboxes=boxes, labels=target["labels"].numpy())
        target["boxes"] = torch.as_tensor(np.array(sample["bboxes"]), dtype=torch.float32).reshape(
            -1, 4
        )
        return sample["image"], target, Path(path).name


@program("train")
def boxes_by_albumentations():
    steps = [A.HorizontalFlip(p=0.5), A.RandomSizedBBoxSafeCrop(56, 56, p=1), ToTensorV2(p=1.0)]
    boxes = A.BboxParams(format="pascal_voc", label_fields=["labels"], min_visibility=0.1)
    dataset = Wheat(table(), A.Compose(steps, bbox_params=boxes, seed=3))
    return training(dataset, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))


class Keypoints(Rows):
    """Points become Gaussians on a map."""

    size = 48
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size)), axis=-1)

    def __getitem__(self, index):
        image = cv2.cvtColor(cv2.imread(self.rows[index][0]), RGB)
        out = self.transform(image=image, keypoints=[(20, 20), (50, 40)])
        distances = [((self.grid - np.array(point)) ** 2).sum(-1) for point in out["keypoints"]]
        maps = np.exp(-np.stack(distances) / 18.0).astype(np.float32)
        return out["image"], torch.from_numpy(maps)


@program("train")
def points_as_maps():
    steps = [A.Resize(60, 60), A.Rotate(limit=15, p=0.7), A.CenterCrop(48, 48), A.HorizontalFlip()]
    steps += [A.HueSaturationValue(p=0.5), A.Normalize(), ToTensorV2()]
    points = A.KeypointParams(format="xy", remove_invisible=False)
    return training(Keypoints(table(), A.Compose(steps, keypoint_params=points, seed=3)))


class Cells(Rows):
    """A mask of floats with a channel, and weights at its borders."""

    def __getitem__(self, idx):
        image, mask = cv2.imread(self.rows[idx][0]), cv2.imread(self.rows[idx][1], 0)
        mask = (mask > 0).astype("float32")
        border = cv2.dilate(mask, np.ones((3, 3))) - cv2.erode(mask, np.ones((3, 3)))
        sample = self.transform(image=image, masks=[mask, border])
        return sample["image"], torch.stack([torch.as_tensor(each) for each in sample["masks"]])


@program("train")
def masks_and_borders():
    steps = [A.RandomResizedCrop((48, 48)), A.VerticalFlip(), A.RandomRotate90()]
    steps += [A.ElasticTransform(p=0.3)]
    steps += [A.RandomBrightnessContrast(), A.Normalize(MEAN, STD), ToTensorV2()]
    pairs = [(path, masks()[path]) for path, _ in table()]
    return training(Cells(pairs, A.Compose(steps, seed=3)))


class Cassava(Rows):
    """Test-time augmentation: several views of one array."""

    def __getitem__(self, idx):
        image = cv2.imread(self.rows.path.values[idx])[..., ::-1]
        views = [each(image=image)["image"] for each in self.transform]
        return torch.stack(views), self.rows.label.values[idx]


@program("eval")
def views_by_albumentations():
    end = [A.Normalize(MEAN, STD), ToTensorV2()]
    flips = [[], [A.HorizontalFlip(p=1.0)], [A.VerticalFlip(p=1.0)], [A.Transpose(p=1.0)]]
    transforms = [A.Compose([A.Resize(48, 48), *flip, *end], seed=3) for flip in flips]
    return evaluating(Cassava(pd.DataFrame(table(), columns=["path", "label"]), transforms))


class Plants(Rows):
    """OpenCV and NumPy alone, as before there were libraries for it."""

    size, train = 48, True

    def __getitem__(self, index):
        path, label = self.rows[index]
        img = cv2.imread(path)
        img = cv2.resize(img, (self.size + 8, self.size + 8), interpolation=cv2.INTER_AREA)
        if self.train:
            x, y = np.random.randint(0, 8), np.random.randint(0, 8)
            img = img[y : y + self.size, x : x + self.size]
            if np.random.rand() > 0.5:
                img = cv2.flip(img, 1)
            if np.random.rand() > 0.5:
                turn = cv2.getRotationMatrix2D((24, 24), np.random.uniform(-20, 20), 1.0)
                img = cv2.warpAffine(
                    img, turn, (self.size, self.size), borderMode=cv2.BORDER_REFLECT
                )
            if np.random.rand() > 0.7:
                hsv = cv2.cvtColor(img, cv2.COLOR_BGR2HSV).astype(np.float32)
                hsv[..., 2] = np.clip(hsv[..., 2] * np.random.uniform(0.7, 1.3), 0, 255)
                img = cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR)
        img = img[:, :, ::-1].astype(np.float32) / 255.0
        img = (img - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        return torch.from_numpy(img.transpose(2, 0, 1).copy()), torch.tensor(label)


@program("train", quick=True)
def opencv_alone():
    return training(Plants(table()))


def letterbox(img, new_shape=64, color=(114, 114, 114)):
    shape = img.shape[:2]
    r = min(new_shape / shape[0], new_shape / shape[1])
    new_unpad = round(shape[1] * r), round(shape[0] * r)
    dw, dh = (new_shape - new_unpad[0]) / 2, (new_shape - new_unpad[1]) / 2
    if shape[::-1] != new_unpad:
        img = cv2.resize(img, new_unpad, interpolation=cv2.INTER_LINEAR)
    top, bottom, left, right = round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)
    img = cv2.copyMakeBorder(img, top, bottom, left, right, cv2.BORDER_CONSTANT, value=color)
    return img, r, (dw, dh)


def augment_hsv(im, hgain=0.1, sgain=0.5, vgain=0.4):
    r = np.random.uniform(-1, 1, 3) * [hgain, sgain, vgain] + 1
    hue, sat, val = cv2.split(cv2.cvtColor(im, cv2.COLOR_BGR2HSV))
    x = np.arange(0, 256, dtype=r.dtype)
    lut_hue = ((x * r[0]) % 180).astype(im.dtype)
    lut_sat, lut_val = (np.clip(x * gain, 0, 255).astype(im.dtype) for gain in r[1:])
    im_hsv = cv2.merge((cv2.LUT(hue, lut_hue), cv2.LUT(sat, lut_sat), cv2.LUT(val, lut_val)))
    cv2.cvtColor(im_hsv, cv2.COLOR_HSV2BGR, dst=im)


class Yolo(Rows):
    """A mosaic of four pictures, or one in a letter box; in place where it can be."""

    img_size, mosaic = 64, 0.5

    def load_image(self, i):
        im = cv2.imread(self.rows[i][0])
        h0, w0 = im.shape[:2]
        r = self.img_size / max(h0, w0)
        if r != 1:
            im = cv2.resize(
                im, (math.ceil(w0 * r), math.ceil(h0 * r)), interpolation=cv2.INTER_LINEAR
            )
        return im

    def load_mosaic(self, index):
        s = self.img_size
        yc, xc = (int(random.uniform(s // 2, 2 * s - s // 2)) for _ in range(2))
        indices = [index, *random.choices(range(len(self)), k=3)]
        img4 = np.full((s * 2, s * 2, 3), 114, dtype=np.uint8)
        for i, at in enumerate(indices):
            img = self.load_image(at)
            h, w = img.shape[:2]
            x1a, y1a = (max(xc - w, 0), xc)[i % 2], (max(yc - h, 0), yc)[i // 2]
            x2a, y2a = (xc, min(xc + w, s * 2))[i % 2], (yc, min(yc + h, s * 2))[i // 2]
            x1b, y1b = (w - (x2a - x1a), 0)[i % 2], (h - (y2a - y1a), 0)[i // 2]
            img4[y1a:y2a, x1a:x2a] = img[y1b : y1b + y2a - y1a, x1b : x1b + x2a - x1a]
        return img4[s // 2 : s // 2 + s, s // 2 : s // 2 + s]

    def __getitem__(self, index):
        if random.random() < self.mosaic:
            img = np.ascontiguousarray(self.load_mosaic(index))
        else:
            img, *_ = letterbox(self.load_image(index), self.img_size)
        augment_hsv(img)
        if random.random() < 0.5:
            img = np.fliplr(img)
        img = img.transpose((2, 0, 1))[::-1]
        img = np.ascontiguousarray(img)
        return torch.from_numpy(img), torch.zeros((1, 6)), self.rows[index][0], img.shape

    @staticmethod
    def collate_fn(batch):
        im, label, path, shapes = zip(*batch, strict=True)
        for i, lb in enumerate(label):
            lb[:, 0] = i
        return torch.stack(im, 0), torch.cat(label, 0), path, shapes


@program("train")
def mosaics():
    return training(Yolo(table()), collate_fn=Yolo.collate_fn)


class Pose(Rows):
    """One affine matrix for the picture, and its points beside it."""

    size, transform = (48, 64), T.Compose(TO_TENSOR)

    def __getitem__(self, idx):
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        data_numpy = cv2.cvtColor(cv2.imread(self.rows[idx][0], flags), RGB)
        joints = np.array([[20.0, 20.0], [60.0, 30.0], [40.0, 70.0]])
        if random.random() <= 0.5:
            data_numpy = data_numpy[:, ::-1, :]
            joints[:, 0] = data_numpy.shape[1] - joints[:, 0] - 1
        scale, angle = (
            np.clip(np.random.randn() * 0.2 + 1, 0.7, 1.3),
            np.clip(np.random.randn() * 20, -40, 40),
        )
        trans = cv2.getRotationMatrix2D(
            (data_numpy.shape[1] / 2, data_numpy.shape[0] / 2), angle, scale * 0.6
        )
        image = cv2.warpAffine(data_numpy, trans, self.size, flags=cv2.INTER_LINEAR)
        joints = (trans @ np.c_[joints, np.ones(3)].T).T
        return self.transform(image), joints.astype(np.float32), {"scale": scale, "rotation": angle}


@program("train")
def poses():
    return training(Pose(table()))


class Faces(Rows):
    """ArcFace's: bytes are decoded, flipped by NumPy, and scaled by a number."""

    def __getitem__(self, index):
        data, label = self.rows[index]
        sample = cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), RGB)
        sample = cv2.resize(sample, (48, 48))
        if np.random.random() < 0.5:
            sample = np.fliplr(sample)
        sample = np.transpose(sample.astype(np.float32), (2, 0, 1))
        sample -= 127.5
        sample *= 0.0078125
        return torch.from_numpy(sample.copy()).float(), np.int32(label)


@program("train", quick=True)
def faces_from_bytes():
    records = [(np.fromfile(path, np.uint8), label) for path, label in table()]
    return training(Faces(records), drop_last=True)


class Both(Rows):
    """Pillow opens, albumentations crops, torchvision makes a tensor of it."""

    crop = A.Compose([A.SmallestMaxSize(56), A.RandomCrop(48, 48), A.ColorJitter(p=0.5)], seed=3)
    finish = T.Compose(TO_TENSOR)

    def __getitem__(self, index):
        path, label = self.rows[index]
        image = np.array(Image.open(path).convert("RGB"))
        image = Image.fromarray(self.crop(image=image)["image"])
        return self.finish(image), label


@program("train")
def pillow_and_albumentations():
    return training(Both(table()))
