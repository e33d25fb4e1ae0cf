"""from_torch runs data sets of the user's own: what comes out is what came out of the old loader,
or a refusal names what stands in the way.
"""

# ruff: noqa: B008, E731  programs have lambdas, and transforms as defaults, too

import dataclasses
import functools
import io
import random
import tempfile
from collections import namedtuple
from pathlib import Path

import composes
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    default_collate,
)
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader
from torchvision.io import ImageReadMode, decode_image, read_file, read_image, write_file
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.transforms.reading import NotConvertibleError

EVAL = composes.torchvision_eval(40, 32)
STEPS = [v1.Resize(40), v1.CenterCrop(32)]
TRAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def files(image_folder):
    paths = sorted(str(path) for path in Path(image_folder).rglob("*.*"))
    return [path for path in paths if mode_of(path) == "RGB"][:12]


def mode_of(path):
    with Image.open(path) as image:
        return image.mode


class Own(Dataset):
    """A data set of paths; `sample` says what it returns of the picture and the index."""

    def __init__(self, files, sample, opener=pil_loader):
        self.files, self.sample, self.opener = files, sample, opener

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.sample(self.opener(self.files[index]), index)


def convert(loader, **options):
    return dp.from_torch(loader, dp.TorchConfig(num_workers=0), **CPU, **options)


def assert_same_batches(loader, **options):
    """Ours are equal to those of the old loader, which afterwards yields what it did before."""
    before = [leaves(batch) for batch in loader]
    with convert(loader, **options) as converted:
        ours = [leaves(batch) for batch in converted]
    for batches in (ours, [leaves(batch) for batch in loader]):
        assert len(batches) == len(before)
        for theirs, batch in zip(before, batches, strict=True):
            assert [path for path, _ in theirs] == [path for path, _ in batch]
            for (path, one), (_, other) in zip(theirs, batch, strict=True):
                assert_equal(path, one, other)


def assert_equal(path, one, other):
    assert type(one) is type(other), path
    if not isinstance(one, torch.Tensor):
        assert one == other, path
        return
    assert one.dtype == other.dtype and one.shape == other.shape, path
    assert (one.double() - other.double()).abs().max() <= 2e-6 * max(1, one.abs().max()), path


class Preset:
    """An object around a Compose, as torchvision's references have it."""

    def __init__(self, *steps):
        self.transforms = v1.Compose(steps)

    def __call__(self, picture):
        return self.transforms(picture)


Pair = namedtuple("Pair", "image label")
TABLE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def read_bytes(path):
    return Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")


def read_open_file(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def to_rgb(picture):
    return picture.convert("RGB")


def convert_if_needed(path):
    image = Image.open(path)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


# what the survey saw most often: opener, structure of a sample, label, place of the transform
IDIOMS = {
    "an image and a class number": lambda: (pil_loader, lambda x, at: (EVAL(x), TABLE[at])),
    "a list": lambda: (pil_loader, lambda x, at: [EVAL(x), TABLE[at]]),
    "an image alone": lambda: (pil_loader, lambda x, at: EVAL(x)),
    "a dictionary": lambda: (
        pil_loader,
        lambda x, at: {"image": EVAL(x), "label": TABLE[at], "name": f"image {at}"},
    ),
    "index, camera and path": lambda: (
        pil_loader,
        lambda x, at: (EVAL(x), TABLE[at], at % 3, f"{at}.jpg"),
    ),
    "nested": lambda: (
        pil_loader,
        lambda x, at: ((EVAL(x), torch.tensor([0.5 * at, 1.0])), {"y": TABLE[at]}),
    ),
    "a named tuple": lambda: (pil_loader, lambda x, at: Pair(EVAL(x), TABLE[at])),
    "labels of NumPy": lambda: (pil_loader, lambda x, at: (EVAL(x), np.int32(TABLE[at]))),
    "a float": lambda: (pil_loader, lambda x, at: (EVAL(x), TABLE[at] / 4)),
    "one-hot": lambda: (
        pil_loader,
        lambda x, at: (EVAL(x), torch.nn.functional.one_hot(torch.tensor(TABLE[at]), 10)),
    ),
    "several findings": lambda: (
        pil_loader,
        lambda x, at: (EVAL(x), np.array([at % 2, at % 3], np.float32)),
    ),
    "a preset object": lambda: (
        pil_loader,
        lambda x, at, preset=Preset(*STEPS, v1.ToTensor()): (preset(x), TABLE[at]),
    ),
    "a transform made in each call": lambda: (
        pil_loader,
        lambda x, at: (v1.ToTensor()(v1.Resize((32, 32))(x)), TABLE[at]),
    ),
    "a list of transforms": lambda: (
        pil_loader,
        lambda x, at: (functools.reduce(lambda y, step: step(y), [*STEPS, v1.ToTensor()], x), at),
    ),
    "a lambda": lambda: (
        pil_loader,
        lambda x, at, t=v1.Compose([v1.Lambda(to_rgb), *STEPS, v1.ToTensor()]): (
            t(x),
            at,
        ),
    ),
    "bytes": lambda: (read_bytes, lambda x, at: (EVAL(x), TABLE[at])),
    "an open file": lambda: (read_open_file, lambda x, at: (EVAL(x), TABLE[at])),
    "converted if needed": lambda: (convert_if_needed, lambda x, at: (EVAL(x), TABLE[at])),
    "not converted": lambda: (Image.open, lambda x, at: (EVAL(x), TABLE[at])),
    "an array, and back": lambda: (
        lambda path: Image.fromarray(np.array(pil_loader(path))),
        lambda x, at: (EVAL(x), TABLE[at]),
    ),
    "read_image": lambda: (
        lambda path: read_image(path, ImageReadMode.RGB),
        lambda x, at, t=v1.Compose([v1.CenterCrop(32), v1.ConvertImageDtype(torch.float)]): (
            t(x),
            at,
        ),
    ),
    "decode_image": lambda: (
        lambda path: decode_image(torch.frombuffer(Path(path).read_bytes(), dtype=torch.uint8)),
        lambda x, at, t=v2.Compose([v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]): (
            t(x),
            at,
        ),
    ),
    "expand": lambda: (pil_loader, lambda x, at: (EVAL(x).expand(3, -1, -1), TABLE[at])),
    "from -1 to 1 by its own code": lambda: (
        pil_loader,
        lambda x, at, t=v1.Compose([*STEPS, v1.PILToTensor()]): (t(x).float() / 127.5 - 1, at),
    ),
    "an array of its own, normalized": lambda: (
        pil_loader,
        lambda x, at, t=v1.Compose(STEPS): (
            torch.from_numpy((np.array(t(x)) / 255.0 - 0.45) / 0.225).permute(2, 0, 1),
            at,
        ),
    ),
    "channels last": lambda: (
        pil_loader,
        lambda x, at, t=v1.Compose(STEPS): (np.array(t(x)), at),
    ),
    "half precision": lambda: (pil_loader, lambda x, at: (EVAL(x).double(), at)),
}


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("name", IDIOMS)
def test_what_comes_out_is_what_came_out(name, files):
    opener, sample = IDIOMS[name]()
    assert_same_batches(DataLoader(Own(files, sample, opener), 5))


class TwoCrops:
    def __call__(self, picture):
        return [TRAIN(picture), TRAIN(picture)]


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: int


def stacked(samples):
    return {
        "x": torch.stack([each.image for each in samples]),
        "y": torch.tensor([each.label for each in samples]),
    }


@pytest.mark.slow
def test_views(files):
    """Several crops of one file, in a list and stacked."""
    crops = TwoCrops()
    for sample in (
        lambda x, at: (crops(x), at),
        lambda x, at: {"views": torch.stack(crops(x)), "at": at},
    ):
        old = DataLoader(Own(files, sample), 4, shuffle=True, drop_last=True)
        with convert(old) as loader:
            assert type(Conversion.of(old).transform) is dp.ViewsTransform
            for theirs, ours in zip(old, loader, strict=True):
                assert [(path, each.shape) for path, each in leaves(theirs)] == [
                    (path, each.shape) for path, each in leaves(ours)
                ]
            views = ours[0] if isinstance(ours, list) else ours["views"].unbind(1)
            assert not torch.equal(*views)


@pytest.mark.slow
def test_a_collate_function_is_called_as_it_is(files):
    sample = lambda x, at: Sample(EVAL(x), TABLE[at])
    assert_same_batches(DataLoader(Own(files, sample), 5, collate_fn=stacked))
    backwards = lambda batch: default_collate(batch[::-1])
    assert_same_batches(
        DataLoader(Own(files, lambda x, at: (EVAL(x), at)), 5, collate_fn=backwards)
    )


def with_order(batch):
    return default_collate(batch), torch.randperm(9)


@pytest.mark.slow
def test_a_collate_function_that_draws(files):
    """Its numbers belong to the epoch and the batch, so that a resumed loader draws them too."""
    old = DataLoader(Own(files, lambda x, at: (EVAL(x), at)), 4, collate_fn=with_order)
    state = torch.get_rng_state()
    with convert(old) as loader:
        first = [order.tolist() for _, order in loader]
        second = [order.tolist() for _, order in loader]
        assert len({tuple(each) for each in first + second}) == 6
    with convert(old) as loader:
        iterator = iter(loader)
        next(iterator)
        saved = loader.state_dict()
    with convert(old) as loader:
        loader.load_state_dict(saved)
        assert [order.tolist() for _, order in loader] == first[1:]
    assert torch.equal(torch.get_rng_state(), state)


class Around(Dataset):
    """A data set around another one, past its __getitem__."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner.files)

    def __getitem__(self, index):
        return {"x": EVAL(pil_loader(self.inner.files[index])), "n": self.inner.files[index]}


@pytest.mark.slow
def test_wrappers(files):
    own = Own(files, lambda x, at: (EVAL(x), TABLE[at]))
    assert_same_batches(DataLoader(Subset(own, [5, 2, 2, 9]), 3))
    assert_same_batches(DataLoader(ConcatDataset([own, Subset(own, [1])]), 5))
    assert_same_batches(DataLoader(Around(own), 5))


@pytest.mark.slow
def test_a_sampler_of_some_samples(files):
    own = Own(files, lambda x, at: (EVAL(x), at))
    old = DataLoader(own, 2, sampler=SubsetRandomSampler([7, 1, 4]))
    with convert(old) as loader:
        epochs = [torch.cat([labels for _, labels in loader]).tolist() for _ in range(6)]
    assert all(sorted(each) == [1, 4, 7] for each in epochs) and len(set(map(tuple, epochs))) > 1


# Defects: what must be refused, and by which words


def by_hand(picture, at):
    tensor = EVAL(picture)
    return (tensor.flip(-1) if random.random() < 0.5 else tensor), at


def rarely_by_hand(picture, at):
    tensor = EVAL(picture)
    return (tensor.flip(-1) if torch.rand(()) < 0.001 else tensor), at


class Cached(Own):
    """Keeps the pictures that it has loaded."""

    def __init__(self, files, sample):
        super().__init__(files, sample)
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = pil_loader(self.files[index])
        return self.sample(self.kept[index], index)


class Previous(Own):
    """Returns the picture before."""

    last = None

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        out, self.last = self.last or sample, sample
        return out


class Counting(Own):
    """Its labels change with the number of calls."""

    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return EVAL(pil_loader(self.files[index])), self.calls


class Chosen(Own):
    def __getitem__(self, index):
        return EVAL(pil_loader(random.choice(self.files))), index


class Unpacked(Own):
    """Each image is unpacked into one and the same file, by C++, which Python does not see."""

    folder = tempfile.TemporaryDirectory()

    def __getitem__(self, index):
        file = Path(self.folder.name, "unpacked.jpg")
        write_file(str(file), read_file(self.files[index]))
        return EVAL(pil_loader(file)), index


class Blended(Own):
    def __getitem__(self, index):
        other = pil_loader(self.files[index - 1]).resize((50, 50))
        return EVAL(Image.blend(pil_loader(self.files[index]).resize((50, 50)), other, 0.5)), index


def thumbnail(path):
    image = Image.open(path)
    image.thumbnail((400, 400))
    return image.convert("RGB")


def drafted(path):
    image = Image.open(path)
    image.draft("RGB", (100, 100))
    return image.convert("RGB")


def without_frame(path):
    """Crops away what is black around the picture."""
    image = pil_loader(path)
    return image.crop(image.getbbox() or (0, 0, *image.size))


def limited(path):
    image = pil_loader(path)
    return image if max(image.size) < 1000 else image.resize((500, 500))


def brightened(path):
    image = pil_loader(path)
    return image.point(lambda value: min(255, value + 60)) if np.mean(image) < 20 else image


def in_place(picture, at):
    tensor = EVAL(picture)
    tensor[:, :4] = 0
    return tensor, at


def every_seventh(picture, at):
    return EVAL(picture.rotate(90) if at % 7 == 6 else picture), at


def of_classes(picture, at, other=v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])):
    return (other if TABLE[at] == 9 else EVAL)(picture), TABLE[at]


DEFECTS = {
    "changes it after that; return what it returned": (Own, by_hand),
    r"code of its own draws random numbers \(of torch\)": (Own, rarely_by_hand),
    "keeps pictures": (Cached, lambda x, at: (EVAL(x), at)),
    "differs each time|loaded before": (Previous, lambda x, at: (EVAL(x), at)),
    r"sample\[1\]|another value": (Counting, None),
    "which files it opens|random numbers of random": (Chosen, None),
    "unpacked.jpg was written while samples were made": (Unpacked, None),
    "is not the decoded file, but .* made by code before it": (Blended, None),
    "what reaches Resize": (thumbnail, None),
    "what reaches Resize ": (drafted, None),
    "what reaches  ?Resize": (without_frame, None),
    "what reaches Resize .* is not": (limited, None),
    "what reaches (?=Resize)": (brightened, None),
    "code of its own changes it after that": (Own, in_place),
    "in every_seventh. is not the decoded file": (Own, every_seventh),
    "is made in another way|something else than to": (Own, of_classes),
    "depends on pixels": (Own, lambda x, at: (EVAL(x), int(np.mean(x)))),
    "sample.1. is another one for noise: it depends": (Own, lambda x, at: (EVAL(x), x.size[0])),
    "it ends in PIL images": (Own, lambda x, at, t=v1.Compose(STEPS): (t(x), at)),
    "no picture in its samples": (Own, lambda x, at: (torch.tensor(np.array(x).mean((0, 1))), at)),
    "blue, green and red": (
        lambda path: Image.fromarray(np.ascontiguousarray(np.array(pil_loader(path))[..., ::-1])),
        None,
    ),
    "no image": (Own, None),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("message", DEFECTS)
def test_a_defect_is_refused_by_name(message, files):
    kind, sample = DEFECTS[message]
    if not isinstance(kind, type):
        dataset = Own(files, lambda x, at: (EVAL(x), at), kind)
    elif message == "no image":
        pictures = [pil_loader(path) for path in files]
        dataset = Own(pictures, lambda x, at: (EVAL(x), at), lambda picture: picture)
    else:
        dataset = kind(files, sample)
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(DataLoader(dataset, 4))


KEPT = {}


@functools.lru_cache
def cached_file(path):
    return pil_loader(path)


def kept_file(path):
    if path not in KEPT:
        KEPT[path] = pil_loader(path)
    return KEPT[path]


@pytest.mark.slow
def test_caches_hold_no_picture_that_was_made_up(files):
    """Those of functions are emptied; of a dict of a module nothing is left."""
    own = Own(files, lambda x, at: (EVAL(x), at), cached_file)
    assert_same_batches(DataLoader(own, 5))

    KEPT[files[0]] = first = pil_loader(files[0])
    with pytest.raises(NotConvertibleError):
        Conversion.of(DataLoader(Own(files, lambda x, at: (EVAL(x), at), kept_file), 4))
    assert {files[0]: first} == KEPT
    cached = Cached(files, lambda x, at: (EVAL(x), at))
    with pytest.raises(NotConvertibleError):
        Conversion.of(DataLoader(cached, 4))
    assert cached.kept == {}


@pytest.mark.slow
def test_a_picture_is_turned_upright_if_the_data_set_does_so(tmp_path):
    noise = np.random.default_rng(0)
    paths = []
    for number, orientation in enumerate((1, 6, 3, 8)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = noise.integers(0, 255, (40, 60, 3), np.uint8).repeat(2, 0).repeat(2, 1)
        paths.append(str(tmp_path / f"{number}.jpg"))
        Image.fromarray(pixels).save(paths[-1], exif=exif.tobytes())

    upright = lambda path: ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    for opener, exif in ((upright, "apply"), (pil_loader, "ignore")):
        old = DataLoader(Own(paths, lambda x, at: (EVAL(x), at), opener), 4)
        assert Conversion.of(old).transform.exif == exif
        assert_same_batches(old)


class Robust(Own):
    """Tries the next image, whatever has failed."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except Exception:
            return self[(index + 1) % len(self)]


class Staged(Own):
    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.mark.slow
def test_code_that_tries_again_and_code_that_is_told_the_epoch(files):
    """A picture that is too small for a random crop is no reason to refuse."""
    crop = v1.Compose([v1.RandomCrop(16), v1.ToTensor()])
    own = lambda x, at: (crop(x), at)
    assert Conversion.of(DataLoader(Robust(files, own), 4)).transform.size == 16
    with pytest.raises(NotConvertibleError, match="it has a set_epoch"):
        Conversion.of(DataLoader(Staged(files, own), 4))


class Moving(Own):
    """Its code sets an attribute of a transform, another one for each sample."""

    crop = v1.CenterCrop(30)

    def __getitem__(self, index):
        self.crop.size = (30, 30) if index < 11 else (30, 24)
        return v1.ToTensor()(self.crop(pil_loader(self.files[index]))), index


def test_a_transform_that_is_set_for_each_sample(files):
    with pytest.raises(NotConvertibleError, match=r"something else|in another way"):
        Conversion.of(DataLoader(Moving(files, None), 4))


def only_tensors(samples):
    return {"x": torch.stack([each["tensor"] for each in samples])}


@pytest.mark.slow
def test_an_image_that_the_collate_function_leaves_out(files):
    sample = lambda x, at: {"image": x, "tensor": EVAL(x)}
    assert_same_batches(DataLoader(Own(files, sample), 4, collate_fn=only_tensors))
    with pytest.raises(NotConvertibleError, match="PIL images make no batch"):
        Conversion.of(
            DataLoader(Own(files, sample), 4, collate_fn=lambda batch: batch[0]["image"].size)
        )


@pytest.mark.slow
def test_patches_are_undone(files):
    before = Image.open.__code__, v1.Resize.forward, read_image.__code__
    for sample in (lambda x, at: (EVAL(x), at), by_hand):
        try:
            Conversion.of(DataLoader(Own(files, sample), 4))
        except NotConvertibleError:
            assert sample is by_hand
    assert (Image.open.__code__, v1.Resize.forward, read_image.__code__) == before


class InMemory(Dataset):
    """Opens nothing, and looks its labels up in a cache in each call."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)), label_of(index)


@functools.lru_cache
def label_of(index):
    return index % 2


class Large(Own):
    """Takes the next image if one is small, however small it is."""

    def __getitem__(self, index):
        while True:
            picture = pil_loader(self.files[index])
            if picture.width >= 16:
                return self.sample(picture, index)
            index = (index + 1) % len(self)


def of_an_array(picture, at):
    """A transform that gets no picture returns one."""
    return v1.ToTensor()(v1.ToPILImage()(np.full((2, 2, 3), at, np.uint8))), at


@pytest.mark.parametrize(
    ("kind", "sample", "message"),
    [
        (InMemory, None, "it opens no image"),
        (Large, lambda x, at: (EVAL(x), at), "opens more than 100 files"),
        (Own, of_an_array, "is not the decoded file|no picture in its samples"),
    ],
    ids=["nothing is opened", "endless", "no picture goes in"],
)
@pytest.mark.timeout(200)
def test_a_refusal_comes_whatever_the_code_does(kind, sample, message, files):
    dataset = InMemory() if kind is InMemory else kind(files, sample)
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(DataLoader(dataset, 4))


class Counting:
    """A transform of the user's own that notes its calls."""

    def __init__(self, transform):
        self.transform, self.calls = transform, 0

    def __call__(self, picture):
        self.calls += 1
        return self.transform(picture)


@pytest.mark.slow
def test_objects_that_are_called_stay_as_they_were(files):
    counting = Counting(EVAL)
    assert Conversion.of(DataLoader(Counted(files, counting), 4)).transform.size == 32
    assert counting.calls == 0


class Counted(Own):
    def __getitem__(self, index):
        return self.sample(pil_loader(self.files[index])), index


@pytest.mark.slow
def test_random_states_of_gpus_are_not_touched(files, monkeypatch):
    """torch.manual_seed seeds every GPU, and nobody would restore their states."""

    def noise(samples):
        images, labels = default_collate(samples)
        return images + torch.randn_like(images), labels

    def refuse(seed):
        raise AssertionError("all devices are seeded")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    old = DataLoader(Own(files, lambda x, at: (EVAL(x), at)), 4, collate_fn=noise)
    with convert(old) as loader:
        assert len(list(loader)) == 3


@pytest.mark.slow
def test_labels_that_a_transform_passes_on(files):
    """A dict goes through the transform; all samples that are looked at have one label."""
    seen = set(np.linspace(0, 23, 8).round().astype(int).tolist())
    labels = [0 if at in seen else at for at in range(24)]
    steps = v2.Compose(
        [v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    )
    sample = lambda picture, at: steps({"image": picture, "label": labels[at], "name": f"no. {at}"})
    with convert(DataLoader(Own(files * 2, sample), 5), check=False) as converted:
        batches = list(converted)
    assert [label for batch in batches for label in batch["label"].tolist()] == labels
    assert [name for batch in batches for name in batch["name"]] == [
        f"no. {at}" for at in range(24)
    ]
