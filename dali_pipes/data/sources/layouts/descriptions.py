"""What data sets of other programs are, and what to do with each: (what, advice)."""

import os

from dali_pipes.errors import ManifestError, Spelling

AS_FILES = (
    "write each image as JPEG or PNG into a folder for its class, or pack them into .tar shards"
)
ARCHIVE = ("a compressed archive", "unpack it and give the folder")
TAR = ("is compressed, so its images cannot be read one by one", "unpack it to a .tar or to files")
ARRAYS = ("an array or a pickled object, not encoded images", AS_FILES)
VIDEO = ("a video", "write its frames as images (ffmpeg) into a folder for each class")
COCO_FORM = "convert it to one COCO JSON file (docs/inputs.md) and give that file"
YOLO = ("YOLO's layout, images/ with labels/ of text files", f"{COCO_FORM} with images=")
VOC = ("Pascal VOC's layout, with an XML file for each image", COCO_FORM)
LMDB = ("an LMDB database", AS_FILES)
MDS = ("Mosaic's MDS format of the streaming package", AS_FILES)
LITDATA = ("litData's format of chunks", AS_FILES)
CIFAR = (
    "CIFAR as its authors packed it",
    "write its images as files by torchvision's CIFAR10 (docs/prepare.md has the loop)",
)
MNIST = ("MNIST's idx format, raw pixels of all images in one file", AS_FILES)
HUGGING_FACE = (
    "a data set that save_to_disk of Hugging Face's datasets wrote",
    "make a manifest of it, which copies no image, and give that file: in Python "
    'dp.Manifest.from_hf(datasets.load_from_disk("…")).save("train.arrow"), of a DatasetDict of '
    'one split, load_from_disk("…")["train"]',
)
ONE_IMAGE = (
    "one image",
    "give a folder with a subfolder for each class, or a table with path,label",
)


def refuse(place: str | os.PathLike[str], what: str, *do: str | Spelling) -> None:
    verb = "" if what.startswith("is ") else "is "
    raise ManifestError(f"{os.fspath(place)}: {verb}{what}; ", *do)
