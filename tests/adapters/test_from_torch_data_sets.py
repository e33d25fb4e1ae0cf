"""from_torch and the data sets of torchvision and timm, each in the layout that it reads: those
that open an image for an item are carried over, others are refused by what they are.
"""

import csv
import io
import json
import pickle
import tarfile
from functools import partial

import composes
import h5py
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features
from datasets import Dataset as HuggingFace
from datasets import Image as Image_
from PIL import Image
from scipy.io import savemat
from test_from_torch_programs import assert_equal, convert
from timm.data import ImageDataset
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as v1

from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.transforms.reading import NotConvertibleError

EVAL = composes.torchvision_eval(28, 24)
GRAY = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
COUNT = 5
NAMES = [f"{at:06d}" for at in range(COUNT)]


def picture(number):
    """An image of its own size and content."""
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (40 + number, 60 - number, 3), np.uint8))


def save(file, number):
    file.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(file)


def write(file, *lines):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def classes(root, *names, extension="jpg"):
    """A folder for each class; the last class has one image more."""
    for at in range(COUNT):
        save(root / names[at % len(names)] / f"{NAMES[at]}.{extension}", at)


def flowers(root):
    base = root / "flowers-102"
    for at in range(COUNT):
        save(base / "jpg" / f"image_{at + 1:05d}.jpg", at)
    savemat(base / "imagelabels.mat", {"labels": np.array([[3, 1, 2, 1, 3]])})
    savemat(base / "setid.mat", {"trnid": [1], "valid": [2], "tstid": np.arange(1, COUNT + 1)})
    return datasets.Flowers102(root, "test", transform=EVAL)


def food(root):
    kinds = {"apple_pie": ["apple_pie/1", "apple_pie/2"], "waffles": ["waffles/3"]}
    for at, name in enumerate(name for names in kinds.values() for name in names):
        save(root / "food-101" / "images" / f"{name}.jpg", at)
    write(root / "food-101" / "meta" / "train.json", json.dumps(kinds))
    return datasets.Food101(root, transform=EVAL)


def pets(root, target_types="category"):
    base = root / "oxford-iiit-pet"
    for at, name in enumerate(NAMES):
        save(base / "images" / f"Bengal_{name}.jpg", at)
    rows = [f"Bengal_{name} {1 + at % 2} {1 + at % 2} 1" for at, name in enumerate(NAMES)]
    write(base / "annotations" / "trainval.txt", *rows)
    return datasets.OxfordIIITPet(root, target_types=target_types, transform=EVAL)


def faces(root, target_type="attr"):
    base = root / "celeba"
    for at, name in enumerate(NAMES):
        save(base / "img_align_celeba" / f"{name}.jpg", at)
    tables = {
        "list_eval_partition": (None, lambda at: "0"),
        "identity_CelebA": (None, lambda at: str(100 + at)),
        "list_attr_celeba": ("Bald Smiling", lambda at: f"{(-1) ** at} 1"),
        "list_bbox_celeba": ("image_id x y w h", lambda at: f"{at} 2 30 40"),
        "list_landmarks_align_celeba": ("x y", lambda at: f"{at} {at + 1}"),
    }
    for name, (header, row) in tables.items():
        rows = [f"{file}.jpg {row(at)}" for at, file in enumerate(NAMES)]
        write(base / f"{name}.txt", *([COUNT, header] if header else []), *rows)
    return datasets.CelebA(root, target_type=target_type, transform=EVAL)


def traffic_signs(root, split="train"):
    base = root / "gtsrb"
    if split == "train":
        classes(base / "GTSRB" / "Training", "00000", "00001", extension="ppm")
    else:
        for at, name in enumerate(NAMES):
            save(base / "GTSRB" / "Final_Test" / "Images" / f"{name}.ppm", at)
        rows = [f"{name}.ppm;{at % 3}" for at, name in enumerate(NAMES)]
        write(base / "GT-final_test.csv", "Filename;ClassId", *rows)
    return datasets.GTSRB(root, split, transform=EVAL)


def textures(root):
    base = root / "dtd" / "dtd"
    classes(base / "images", "banded", "dotted")
    rows = [f"{'banded' if at % 2 == 0 else 'dotted'}/{name}.jpg" for at, name in enumerate(NAMES)]
    write(base / "labels" / "train1.txt", *rows)
    return datasets.DTD(root, transform=EVAL)


def aircraft(root, level="variant"):
    base = root / "fgvc-aircraft-2013b" / "data"
    for at, name in enumerate(NAMES):
        save(base / "images" / f"{name}.jpg", at)
    plural = {"variant": "variants", "family": "families"}[level]
    write(base / f"{plural}.txt", "707-320", "A300 B4")
    rows = [f"{name} {('A300 B4', '707-320')[at % 2]}" for at, name in enumerate(NAMES)]
    write(base / f"images_{level}_trainval.txt", *rows)
    return datasets.FGVCAircraft(root, annotation_level=level, transform=EVAL)


def cars(root):
    base = root / "stanford_cars"
    rows = np.zeros(COUNT, [("class", np.uint8), ("fname", object)])
    for at, name in enumerate(NAMES):
        save(base / "cars_train" / f"{name}.jpg", at)
        rows[at] = (1 + at % 2, f"{name}.jpg")
    (base / "devkit").mkdir()
    savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    names = np.array(["Acura", "BMW"], object)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})
    return datasets.StanfordCars(root, transform=EVAL)


def places(root):
    write(root / "categories_places365.txt", "/a/airfield 0", "/b/barn 1")
    for at, name in enumerate(NAMES):
        save(root / "val_256" / f"{name}.jpg", at)
    rows = [f"{name}.jpg {at % 2}" for at, name in enumerate(NAMES)]
    write(root / "places365_val.txt", *rows)
    return datasets.Places365(root, "val", small=True, transform=EVAL)


def scenes(root):
    base = root / "SUN397"
    write(base / "ClassName.txt", "/a/abbey", "/b/bar/indoor")
    for at, name in enumerate(NAMES):
        save(base / ("a/abbey", "b/bar/indoor")[at % 2] / f"sun_{name}.jpg", at)
    return datasets.SUN397(root, transform=EVAL)


def species(root, target_type="full"):
    names = "Animalia_Arthropoda_Insecta_Diptera_Sepsidae_Sepsis_fulgens"
    kinds = (f"00000_{names}", f"00001_{names.replace('Animalia', 'Plantae')}")
    classes(root / "2021_valid", *kinds)
    return datasets.INaturalist(root, "2021_valid", target_type, transform=EVAL)


def species_of_2018(root):
    classes(root / "2018", "Amphibians/0", "Birds/1")
    return datasets.INaturalist(root, "2018", "super", transform=EVAL)


def caltech_101(root, target_type="category"):
    base = root / "caltech101"
    (base / "101_ObjectCategories" / "BACKGROUND_Google").mkdir(parents=True)
    for at in range(COUNT):
        save(base / "101_ObjectCategories" / "accordion" / f"image_{at + 1:04d}.jpg", at)
        outline = base / "Annotations" / "accordion" / f"annotation_{at + 1:04d}.mat"
        outline.parent.mkdir(parents=True, exist_ok=True)
        savemat(outline, {"obj_contour": np.arange(10.0).reshape(2, 5) + at})
    return datasets.Caltech101(root, target_type, transform=EVAL)


def caltech_256(root):
    base = root / "caltech256" / "256_ObjectCategories"
    for at in range(COUNT):
        number, name = 1 + at % 2, ("001.ak47", "002.american-flag")[at % 2]
        save(base / name / f"{number:03d}_{1 + at // 2:04d}.jpg", at)
    return datasets.Caltech256(root, transform=EVAL)


def satellite(root):
    classes(root / "eurosat" / "2750", "AnnualCrop", "Forest")
    return datasets.EuroSAT(root, transform=EVAL)


def countries(root):
    classes(root / "country211" / "valid", "AD", "AE")
    return datasets.Country211(root, "valid", transform=EVAL)


def sentiments(root):
    classes(root / "rendered-sst2" / "train", "negative", "positive", extension="png")
    return datasets.RenderedSST2(root, transform=EVAL)


def imagenette(root):
    classes(root / "imagenette2-160" / "val", "n01440764", "n02102040", extension="JPEG")
    return datasets.Imagenette(root, "val", "160px", transform=EVAL)


def imagenet(root):
    classes(root / "val", "n01440764", "n02102040", extension="JPEG")
    names = {"n01440764": ("tench", "Tinca tinca"), "n02102040": ("English springer",)}
    torch.save((names, []), root / "meta.bin")
    return datasets.ImageNet(root, "val", transform=EVAL)


def people(root, view="people"):
    base = root / "lfw-py"
    for at in range(COUNT):
        name = ("Ana_Ivanovic", "Bo_Li")[at % 2]
        save(base / "lfw_funneled" / name / f"{name}_{1 + at // 2:04d}.jpg", at)
    write(base / "lfw-names.txt", "Ana_Ivanovic\t3", "Bo_Li\t2")
    write(base / "peopleDevTest.txt", 2, "Ana_Ivanovic\t3", "Bo_Li\t2")
    write(base / "pairsDevTest.txt", 1, "Ana_Ivanovic\t1\t2", "Ana_Ivanovic\t1\tBo_Li\t2")
    kind = datasets.LFWPeople if view == "people" else datasets.LFWPairs
    return kind(root, "test", transform=EVAL)


def photos(root):
    base = root / "dataset"
    for at, name in enumerate(NAMES):
        save(base / f"{name}.jpg", at)
    urls = [f"http://static.flickr.com/1/{name}.jpg" for name in NAMES]
    write(base / "SBU_captioned_photo_dataset_urls.txt", *urls)
    write(base / "SBU_captioned_photo_dataset_captions.txt", *(f"photo {name}" for name in NAMES))
    return datasets.SBU(root, transform=EVAL, download=False)


def captions_8k(root):
    cells = []
    for at, name in enumerate(NAMES):
        save(root / f"{name}_abc.jpg", at)
        link = f"<a href='x'>http://www.flickr.com/photos/someone/{name}/</a>"
        cells.append(f"<td>{link}<ul><li>one {at} </li><li>two {at} </li></ul></td>")
    write(root / "captions.html", f"<table><tr>{''.join(cells)}</tr></table>")
    return datasets.Flickr8k(root, str(root / "captions.html"), transform=EVAL)


def captions_30k(root):
    for at, name in enumerate(NAMES):
        save(root / f"{name}.jpg", at)
    rows = [f"{name}.jpg#{number}\ta photo, {number}" for name in NAMES for number in range(2)]
    write(root / "captions.token", *rows)
    return datasets.Flickr30k(root, str(root / "captions.token"), transform=EVAL)


def objects_counted(root):
    base = root / "clevr" / "CLEVR_v1.0"
    scenes = []
    for at, name in enumerate(NAMES):
        save(base / "images" / "val" / f"{name}.png", at)
        scenes.append({"image_filename": f"{name}.png", "objects": [{}] * (at + 3)})
    write(base / "scenes" / "CLEVR_val_scenes.json", json.dumps({"scenes": scenes}))
    return datasets.CLEVRClassification(root, "val", transform=EVAL)


def streets(root):
    base = root / "Kitti" / "raw" / "training"
    for at, name in enumerate(NAMES):
        save(base / "image_2" / f"{name}.png", at)
        write(base / "label_2" / f"{name}.txt", f"Car 0.5 {at % 3} -1.5 " + "1.5 " * 11)
    return datasets.Kitti(root, transform=EVAL)


def timm_tar(root):
    """A tar of images in class folders: timm's ReaderImageInTar."""
    with tarfile.open(root / "images.tar", "w") as tar:
        for at, name in enumerate(NAMES):
            encoded = io.BytesIO()
            picture(at).save(encoded, "JPEG")
            member = tarfile.TarInfo(f"images/{('cat', 'dog')[at % 2]}/{name}.jpg")
            member.size = encoded.tell()
            encoded.seek(0)
            tar.addfile(member, encoded)
    return ImageDataset(str(root / "images.tar"), reader="image_tar", transform=EVAL)


def timm_hugging_face(root):
    """Hugging Face's data set of a Parquet file: timm's ReaderHfds."""
    kinds = {"image": Image_(), "label": ClassLabel(names=["cat", "dog"])}
    columns = {"image": [picture(at) for at in range(COUNT)], "label": [0, 1, 0, 0, 1]}
    (root / "data").mkdir()
    table = HuggingFace.from_dict(columns, features=Features(kinds))
    table.to_parquet(root / "data" / "train-00000-of-00001.parquet")
    return ImageDataset(str(root / "cache"), f"hfds/{root / 'data'}", transform=EVAL)


def characters(root):
    base = root / "omniglot-py" / "images_background" / "Latin"
    for at, name in enumerate(NAMES):
        file = base / f"character{1 + at % 2:02d}" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(at).convert("1").save(file)
    return datasets.Omniglot(root, transform=GRAY)


CONVERTED = {
    "Flowers102": flowers,
    "Food101": food,
    "OxfordIIITPet": pets,
    "OxfordIIITPet of two targets": partial(pets, target_types=["category", "binary-category"]),
    "CelebA": faces,
    "CelebA of four targets": partial(faces, target_type=["attr", "identity", "bbox", "landmarks"]),
    "GTSRB": traffic_signs,
    "GTSRB for testing": partial(traffic_signs, split="test"),
    "DTD": textures,
    "FGVCAircraft": aircraft,
    "FGVCAircraft by family": partial(aircraft, level="family"),
    "StanfordCars": cars,
    "Places365": places,
    "SUN397": scenes,
    "INaturalist": species,
    "INaturalist of two targets": partial(species, target_type=["kingdom", "full"]),
    "INaturalist of 2018": species_of_2018,
    "Caltech101": caltech_101,
    "Caltech101 with outlines": partial(caltech_101, target_type=["category", "annotation"]),
    "Caltech256": caltech_256,
    "EuroSAT": satellite,
    "Country211": countries,
    "RenderedSST2": sentiments,
    "Imagenette": imagenette,
    "ImageNet": imagenet,
    "LFWPeople": people,
    "SBU": photos,
    "Flickr8k": captions_8k,
    "Flickr30k": captions_30k,
    "CLEVRClassification": objects_counted,
    "Kitti": streets,
    "Omniglot": characters,
    "timm's ImageDataset of a tar": timm_tar,
    "timm's ImageDataset of Hugging Face": timm_hugging_face,
}


# some leave files open, of which Python warns
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def quickly(few_made_up, monkeypatch):
    """With few of the made-up pictures, and without the downloads' archives and their checksums."""
    for name in dir(datasets):
        module = getattr(datasets, name)
        if hasattr(module, "check_integrity"):
            monkeypatch.setattr(module, "check_integrity", lambda *_, **__: True)


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERTED)
def test_a_data_set_that_opens_an_image_for_an_item(name, tmp_path):
    old = DataLoader(CONVERTED[name](tmp_path), batch_size=3)
    with convert(old, check=False) as loader:
        for ours, theirs in zip(loader, old, strict=True):
            for (place, one), (other_place, other) in zip(
                leaves(theirs), leaves(ours), strict=True
            ):
                assert place == other_place
                assert_equal(place, one, other)


# Refused


def cifar(root):
    base = root / "cifar-10-batches-py"
    base.mkdir()
    rows = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    for name, _ in (*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list):
        (base / name).write_bytes(pickle.dumps(rows))
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane", "bird"]}))
    return datasets.CIFAR10(root, transform=EVAL)


def house_numbers(root):
    savemat(
        root / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": [[1, 2, 3, 4]]}
    )
    return datasets.SVHN(root, transform=EVAL)


def tissue(root):
    (root / "pcam").mkdir()
    for name, key, value in (
        ("x", "x", np.zeros((4, 96, 96, 3), np.uint8)),
        ("y", "y", np.zeros((4, 1, 1, 1), np.uint8)),
    ):
        with h5py.File(root / f"pcam/camelyonpatch_level_2_split_test_{name}.h5", "w") as file:
            file[key] = value
    return datasets.PCAM(root, "test", transform=EVAL)


def expressions(root):
    (root / "fer2013").mkdir()
    with (root / "fer2013" / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["emotion", "pixels"])
        rows.writerows([at, " ".join(["7"] * 48 * 48)] for at in range(4))
    return datasets.FER2013(root, transform=GRAY)


REFUSED = {
    "CIFAR10 .* it opens no image.*store the images as files": cifar,
    "SVHN .* it opens no image: its pixels are in memory": house_numbers,
    "PCAM .* it opens no image": tissue,
    "FER2013 .* it opens no image": expressions,
    "LFWPairs .* pictures of 2 files": partial(people, view="pairs"),
}


@pytest.mark.few
@pytest.mark.parametrize("message", REFUSED)
def test_a_data_set_that_is_refused(message, tmp_path):
    with pytest.raises(NotConvertibleError, match=f"the data set {message}"):
        convert(DataLoader(REFUSED[message](tmp_path), batch_size=2), check=False)
