"""Programs that from_torch has converted wrongly, or whose files and caches it has changed: each is
refused, or gives what it gave, and all of the user's things stay as they were.
"""

# ruff: noqa: E731  programs have lambdas, too

import io
import itertools
import os
import random
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageCms, ImageOps
from torch.utils.data import (
    DataLoader,
    Dataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import dali_pipes as dp
from dali_pipes.adapters.from_torch import trace, tracer
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.transforms.reading import NotConvertibleError

EVAL = v1.Compose([v1.Resize(24), v1.CenterCrop(16), v1.ToTensor()])
OTHER = v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.ToTensor()])
NORMALIZE = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CROP = v1.RandomResizedCrop(16)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder, noise = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(6):
        (folder / f"{number % 2}").mkdir(exist_ok=True)
        coarse = Image.fromarray(noise.integers(20, 235, (6, 7, 3), np.uint8))
        size = 60 - 3 * number, 40 + 4 * number
        path = folder / f"{number % 2}" / f"{number}.jpg"
        coarse.resize(size, Image.Resampling.BICUBIC).save(path, quality=95)
    return folder


@pytest.fixture
def files(root):
    return sorted(map(str, root.rglob("*.jpg")))


def rgb(path):
    with Image.open(path) as image:
        return image.convert("RGB")


class Own(Dataset):
    def __init__(self, files, sample, load=rgb):
        self.files, self.sample, self.load = files, sample, load

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.sample(self.load(self.files[index]), index)


def plain(picture, index):
    return EVAL(picture), index % 2


def assert_refused(dataset, message, **options):
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(DataLoader(dataset, 3, **options))


def assert_same_values(dataset):
    """Code that is run as it is gives what it gave."""
    old = DataLoader(dataset, 3)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as new:
        for (theirs, _), (ours, _) in zip(old, new, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# Code that writes into what it got, past PyTorch's count of changes


def by_numpy(tensor):
    tensor.numpy()[0] = 0


def by_data(tensor):
    tensor.data.copy_(tensor.flip(2))


def by_other_tensor(tensor):
    torch.from_numpy(tensor.detach().numpy())[0].zero_()


def by_view(tensor):
    tensor.numpy().flat[:64] = 0


def by_turning(tensor):
    tensor.data = tensor.data.transpose(1, 2)


WRITES = [by_numpy, by_data, by_other_tensor, by_view, by_turning]


@pytest.mark.few(4)
@pytest.mark.parametrize("which", [None, 4])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("where", ["what a step returned", "what an opener returned"])
def test_a_tensor_that_is_written_into(where, write, which, files):
    """Also of one sample alone, which the trace does not see."""
    tensors = v1.Compose([v1.Resize(24), v1.CenterCrop(16), v1.ConvertImageDtype(torch.float32)])

    def sample(picture, index):
        picture = v1.functional.pil_to_tensor(picture) if loads is rgb else picture
        first = tensors(picture) if loads is rgb else picture
        if which in (None, index):
            write(first)
        return (first if loads is rgb else tensors(first)), index % 2

    loads = rgb if where.startswith("what a step") else torchvision.io.read_image
    assert_refused(Own(files * 20, sample, loads), "what|made in another way")


# Code for one sample, which neither the trace nor the largest and smallest files show

ONE = 46  # of 120


@pytest.mark.few
@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ([*EVAL.transforms, NORMALIZE], lambda x: x.clamp(-1, 1)),
        ([*EVAL.transforms, NORMALIZE], lambda x: x.relu_()),
        ([*EVAL.transforms[:2], v1.PILToTensor()], lambda x: x.clamp(max=200)),
    ],
    ids=["clamp", "relu", "bytes"],
)
def test_one_sample_whose_dark_or_bright_values_are_changed(steps, change, files):
    def sample(picture, index):
        made = v1.Compose(steps)(picture)
        return (change(made) if index == ONE else made), index % 2

    assert_refused(Own(files * 20, sample), f"sample {ONE} is made in another way")


class Divided:
    def __init__(self):
        self.option = Option()

    def __call__(self, picture):
        return picture.point(lambda value: value // self.option.by)


class Option:
    by = 2


def solarized():
    step = v1.RandomSolarize(100.0, p=1.0)
    return v1.RandomApply([step], 1.0), lambda number: setattr(step, "threshold", 50.0 * number)


def of_tensors():
    mean = torch.tensor([0.5, 0.5, 0.5])
    return v1.Normalize(mean, torch.ones(3)), lambda number: mean.fill_(number / 4)


def in_an_object():
    step = Divided()
    return step, lambda number: setattr(step.option, "by", number)


def in_a_closure():
    by = [2]
    return (lambda x: x.point(lambda value: value // by[0])), lambda number: by.__setitem__(
        0, number
    )


@pytest.mark.few
@pytest.mark.parametrize("make", [solarized, of_tensors, in_an_object, in_a_closure])
def test_one_sample_for_which_a_part_of_a_step_is_changed(make, files):
    step, put = make()
    where = 3 if make is of_tensors else 2
    steps = v1.Compose([*EVAL.transforms[:where], step, *EVAL.transforms[where:]])

    def sample(picture, index):
        put(3 if index == ONE else 2)
        return steps(picture), index % 2

    assert_refused(Own(files * 20, sample), f"sample {ONE} is made in another way")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Files whose sizes differ; the one of 53 pixels is none of the trace, and no extreme."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "0").mkdir()
    for number in range(30):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 40 + number, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "0" / f"{number:02}.png", compress_level=0)
    return folder


def mirrored_if_rare(picture):
    return ImageOps.mirror(picture) if picture.width == 53 else picture


def with_a_corner(picture):
    picture.paste((0, 0, 0), (30, 30, 40, 40))
    return picture


@pytest.mark.slow
def test_pictures_of_a_size_or_of_a_label_that_is_rare(many):
    files = sorted(map(str, many.rglob("*.png")))
    for_label = lambda x, at: (EVAL(with_a_corner(x) if at == 13 else x), int(at == 13))
    for data in (
        ImageFolder(many, lambda x: EVAL(mirrored_if_rare(x))),
        Own(files, lambda x, at: (EVAL(mirrored_if_rare(x)), at)),
        Own(files, for_label),
        Own(files, for_label, lambda path: Image.fromarray(cv2.imread(path)[..., ::-1])),
    ):
        assert_refused(data, "not the decoded file")


# Code that counts its calls, or draws, or asks where it runs


class AfterCalls:
    def __init__(self, is_other):
        self.is_other, self.calls = is_other, 0

    def __call__(self, picture):
        self.calls += 1
        return EVAL(ImageOps.mirror(picture) if self.is_other(self.calls) else picture)


def by_iterator():
    calls = itertools.count(1)
    return lambda x: EVAL(x if next(calls) % 150 else ImageOps.mirror(x))


def by_own_numbers(picture, numbers=random.Random(0)):  # noqa: B008
    return EVAL(ImageOps.mirror(picture) if numbers.random() < 0.001 else picture)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AfterCalls(lambda calls: calls > 5000), "how often it was called"),
        (lambda: AfterCalls(lambda calls: calls % 200 == 0), "how often it was called"),
        (by_iterator, "how often it was called"),
        (lambda: by_own_numbers, "random numbers .of a generator of its own"),
    ],
    ids=["later", "every 200th", "an iterator", "a generator of its own"],
)
def test_a_folder_whose_transform_has_a_state(make, message, root):
    assert_refused(ImageFolder(root, make()), message)


def seeded(picture, index):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(index)
        return v1.ToTensor()(CROP(picture)), index


def of_worker(picture, index):
    info = get_worker_info()
    return EVAL(picture), info.id if info else 0


def mirrored_in_worker(picture, index):
    return EVAL(ImageOps.mirror(picture) if get_worker_info() else picture), index


@pytest.mark.slow
def test_code_that_seeds_itself_and_code_that_asks_for_its_worker(files):
    assert_refused(Own(files, seeded), "its code seeds the random numbers")
    for sample in (of_worker, mirrored_in_worker):
        assert Conversion.of(DataLoader(Own(files, sample), 3)).transform.size == 16
        assert_refused(Own(files, sample), "on the worker|not the decoded file", num_workers=2)


def another_crop(number):
    dataset = get_worker_info().dataset
    dataset.sample = lambda picture, index: (OTHER(picture), index % 2)


OPTIONS = {"size": 24}


def by_method(number):
    get_worker_info().dataset.use(number)


def by_option(number):
    OPTIONS["size"] = 20


def by_variable(number):
    global CALLS
    CALLS = 20


def by_other_function(number):
    by_option(number)


class Sharded:
    shard = 0

    def set_shard(self, number):
        self.shard = number


SHARDED = Sharded()


def by_called_method(number):
    SHARDED.set_shard(number)


def by_update(number):
    OPTIONS.update(size=number)


def seeded_worker(number):
    os.environ["OMP_NUM_THREADS"] = "1"
    random.seed(torch.initial_seed() + number)


@pytest.mark.parametrize(
    "change",
    [
        *(another_crop, by_method, by_option, by_variable, by_other_function, by_called_method),
        by_update,
    ],
)
def test_workers_that_change_the_data_set(change, files):
    message = rf"^worker_init_fn={change.__name__} .*py:\d+\) .*may change the data set"
    assert_refused(Own(files, plain), message, num_workers=2, worker_init_fn=change)


def test_workers_that_are_only_seeded(files):
    options = {"num_workers": 2, "worker_init_fn": seeded_worker}
    assert Conversion.of(DataLoader(Own(files, plain), 3, **options)).transform.size == 16


class Together(Own):
    change = staticmethod(lambda samples: samples)

    def __getitems__(self, indices):
        return self.change([self[index] for index in indices])


@pytest.mark.slow
def test_samples_that_are_made_together(files):
    assert Conversion.of(DataLoader(Together(files, plain), 3)).transform.size == 16
    for change in (
        lambda samples: [(x, len(samples)) for x, _ in samples],
        lambda samples: samples[::-1],
        lambda samples: [(x, y) for (x, _), (_, y) in zip(samples, samples[::-1], strict=True)],
    ):
        together = Together(files, lambda x, at: (EVAL(x), at))
        together.change = change
        assert_refused(together, "__getitems__ makes something else")


@pytest.mark.parametrize(
    "change",
    [
        lambda samples: sorted(samples, key=lambda sample: sample[1]),
        lambda samples: samples[::-1] if len(samples) > 16 else samples,
    ],
    ids=["sorted", "large batches"],
)
def test_batches_that_differ_from_those_of_the_first_samples(change, files):
    together = Together(files * 20, lambda x, at: (EVAL(x), at // 60))
    together.change = change
    with pytest.raises(NotConvertibleError, match="__getitems__ makes something else"):
        Conversion.of(DataLoader(together, 20))


class Note:
    def __init__(self, label):
        self.label = label

    def __eq__(self, other):
        return self.label == other.label

    __hash__ = None


@pytest.mark.slow
def test_objects_that_a_collate_function_changes(files):
    """They are new in each epoch, as those of the data set are."""

    def collate(samples):
        for _, note, numbers in samples:
            note.label += 10
            numbers.add(100)
        labels = [(note.label, len(numbers)) for _, note, numbers in samples]
        return torch.stack([x for x, _, _ in samples]), torch.tensor(labels)

    old = DataLoader(Own(files, lambda x, at: (EVAL(x), Note(at), {at})), 3, collate_fn=collate)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as new:
        for _ in range(2):
            for (_, theirs), (_, ours) in zip(old, new, strict=True):
                assert torch.equal(ours, theirs)


# What is in a file beside its pixels


def saved(folder, image, name="9.png", **options):
    image.save(folder / name, **options)
    return str(folder / name)


def noise(channels=3):
    return np.random.default_rng(1).integers(0, 256, (40, 50, channels), np.uint8)


def tag(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def on_white(path):
    image = Image.open(path)
    if image.mode == "RGBA" or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def to_srgb(path):
    image = Image.open(path).convert("RGB")
    if profile := image.info.get("icc_profile"):
        old = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.profileToProfile(image, old, ImageCms.createProfile("sRGB"))
    return image


def turned_by_hand(path):
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270}
    image = Image.open(path)
    orientation = image.getexif().get(0x0112)
    return (image.transpose(turns[orientation]) if orientation in turns else image).convert("RGB")


def with_opencv(path, flags=cv2.IMREAD_COLOR):
    return Image.fromarray(cv2.cvtColor(cv2.imread(path, flags), cv2.COLOR_BGR2RGB))


@pytest.mark.slow
def test_files_with_transparent_pixels_or_a_colour_profile(files, tmp_path):
    """Programs that treat such files in their own way are carried over if there is none."""
    few = Image.fromarray(noise()).convert("P")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for load, path, what in (
        (on_white, saved(tmp_path, Image.fromarray(noise(4), "RGBA"), "a.png"), "mode RGBA"),
        (on_white, saved(tmp_path, few, "p.png", transparency=3), "a transparent colour"),
        (
            to_srgb,
            saved(tmp_path, Image.fromarray(noise()), "i.png", icc_profile=profile),
            "a colour profile",
        ),
    ):
        assert Conversion.of(DataLoader(Own(files, plain, load), 3)).transform.size == 16
        assert_refused(Own([*files * 3, path, files[0]], plain, load), what)
        assert Conversion.of(DataLoader(Own([*files, path], plain), 3)).transform.size == 16


@pytest.mark.slow
def test_exif_tags_of_which_only_some_are_applied(files, tmp_path):
    pixels = Image.fromarray(noise().repeat(2, 0).repeat(2, 1))
    turned, mirrored = (
        saved(tmp_path, pixels, f"{each}.jpg", exif=tag(each), quality=95) for each in (6, 2)
    )
    conversion = Conversion.of(DataLoader(Own([*files, turned], plain, turned_by_hand), 3))
    assert conversion.transform.exif == "apply"
    some = [*files * 3, mirrored, files[0]]
    assert_refused(Own(some, plain, turned_by_hand), "turns some pictures upright")

    # OpenCV turns them, if it is not told otherwise
    as_stored = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    load = lambda path: with_opencv(path, cv2.IMREAD_COLOR if "4" in path[-5:] else as_stored)
    assert Conversion.of(DataLoader(Own(files, plain, with_opencv), 3)).transform.size == 16
    assert_refused(Own(files, plain, load), "opened in another way than others")
    assert_refused(Own(sorted(files * 9), plain, load), "opened in another way than others")


@pytest.mark.parametrize(
    "value",
    [
        lambda image: image.getexif().get(0x0112, 1),
        lambda image: int(image.convert("RGB").getbbox() is None),
        lambda image: int(EVAL(image.convert("RGB")).std() < 0.02),
        lambda image: int(EVAL(image.convert("RGB")).mean() > 0.9),
    ],
    ids=["EXIF", "blank", "flat", "bright"],
)
def test_labels_of_what_few_pictures_have(value, files):
    class Labelled(Own):
        def __getitem__(self, index):
            with Image.open(self.files[index]) as image:
                return EVAL(image.convert("RGB")), value(image)

    assert_refused(Labelled(files, None), "depends on|is another one for")


@pytest.mark.slow
def test_a_mode_as_a_value(files, tmp_path):
    class Labelled(Own):
        def __getitem__(self, index):
            with Image.open(self.files[index]) as image:
                return EVAL(image.convert("RGB")), image.mode

    gray = saved(tmp_path, Image.fromarray(noise()[..., 0]))
    assert Conversion.of(DataLoader(Labelled(files, None), 3)).transform.size == 16
    assert_refused(Labelled([*files, *[gray] * 3, files[0]], None), "mode L|depends on")


class WithoutBlank(Own):
    def __getitem__(self, index):
        picture = self.load(self.files[index])
        if picture.getbbox() is None:
            return self[(index + 1) % len(self)]
        return self.sample(picture, index)


def test_blank_pictures_that_are_left_out(files):
    assert_refused(WithoutBlank(files, plain), "opens depends on pixels")


# Pixels that code changes where noise shows nothing


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clamp(0, 1),
        torch.relu,
        lambda x: torch.where(x > 2.2, 0 * x, x),
        lambda x: (x - x.mean()) / x.std(),
    ],
    ids=["clamp", "relu", "bright", "standardized"],
)
def test_code_after_normalize(change, root):
    steps = [*EVAL.transforms, NORMALIZE, v1.Lambda(change)]
    assert_same_values(ImageFolder(root, v1.Compose(steps)))
    outside = Own(sorted(map(str, root.rglob("*.jpg"))), lambda x, at: change(NORMALIZE(EVAL(x))))
    assert_refused(outside, "changes it after that|something else|depends on")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100, 200, 250])
def test_code_for_bright_bytes(limit, root):
    steps = v1.Compose([*EVAL.transforms[:2], v1.PILToTensor()])
    clamped = v1.Compose([*steps.transforms, v1.Lambda(lambda x: x.clamp(max=limit))])
    assert_same_values(ImageFolder(root, clamped))
    outside = Own(sorted(map(str, root.rglob("*.jpg"))), lambda x, at: steps(x).clamp(max=limit))
    assert_refused(outside, "changes it after that|something else|depends on")


@pytest.mark.slow
def test_contrast_between_two_steps(root):
    crop, to_tensor = v1.Compose(EVAL.transforms[:2]), v1.ToTensor()
    steps = v1.Compose([crop, v1.Lambda(ImageOps.autocontrast), to_tensor])
    assert_same_values(ImageFolder(root, steps))
    files = sorted(map(str, root.rglob("*.jpg")))
    outside = Own(files, lambda x, at: to_tensor(ImageOps.autocontrast(crop(x))))
    assert_refused(outside, "is not the decoded file")


# Two pictures out of one draw


@pytest.mark.slow
def test_two_pictures_of_one_crop(files):
    colour, gray = v1.ColorJitter(0.4), v1.RandomGrayscale(0.2)

    def shared(picture, index):
        crop = CROP(picture)
        return v1.ToTensor()(colour(crop)), v1.ToTensor()(gray(crop)), index

    def twice(picture, index):
        made = v1.ToTensor()(CROP(picture))
        return made, made.clone(), index

    for sample in (shared, twice):
        assert_refused(Own(files, sample), "come out of one call of RandomResizedCrop")
    apart = Own(files, lambda x, at: (v1.ToTensor()(CROP(x)), v1.ToTensor()(CROP(x)), at))
    assert len(Conversion.of(DataLoader(apart, 3)).views) == 2


# Libraries that the program has changed


@pytest.mark.slow
def test_an_opener_and_methods_that_were_replaced(root, files, monkeypatch):
    real, forward = Image.open, v1.CenterCrop.forward
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", lambda *args: ImageOps.mirror(real(*args).convert("RGB")))
        assert_refused(Own(files, plain, lambda path: Image.open(path)), r"^PIL.Image.open")
    with monkeypatch.context() as patch:
        patch.setattr(v1.CenterCrop, "forward", lambda step, x: ImageOps.mirror(forward(step, x)))
        assert_refused(Own(files, plain), "code of its own|not the decoded file")
    with monkeypatch.context() as patch:
        patch.setattr(v1.ColorJitter, "get_params", lambda *_: (torch.arange(4), 0.1, 1, 1, 0))
        steps = v1.Compose([*EVAL.transforms[:2], v1.ColorJitter(0.4), v1.ToTensor()])
        assert_same_values(ImageFolder(root, steps))


@pytest.mark.slow
def test_a_step_with_hooks_or_with_methods_of_its_own(root):
    def folder(step):
        return ImageFolder(root, v1.Compose([*EVAL.transforms[:2], step, v1.ToTensor()]))

    jitter = v2.ColorJitter(0.4)
    jitter.make_params = lambda flat: {}
    assert_refused(folder(jitter), "a make_params of its own|fails")
    jitter = v1.ColorJitter((1.4, 1.4))
    jitter.register_forward_hook(lambda step, given, made: ImageOps.mirror(made))
    assert_same_values(folder(v1.RandomApply([jitter], 1.0)))


class Counting:
    """Another image in every 20th call: whoever tries it a few times sees nothing of that."""

    def __init__(self):
        self.calls = 0

    def __call__(self, picture):
        self.calls += 1
        return picture if self.calls % 20 else ImageOps.mirror(picture)


def by_own_generator():
    numbers = np.random.default_rng(0)
    return lambda picture: ImageOps.mirror(picture) if numbers.random() < 0.01 else picture


def by_calls():
    calls = itertools.count(1)
    return lambda picture: picture if next(calls) % 50 else ImageOps.mirror(picture)


@pytest.mark.few
@pytest.mark.parametrize("make", [Counting, by_own_generator, by_calls])
def test_a_step_of_a_compose_that_no_plan_can_repeat(make, root):
    step = make()
    steps = v1.Compose([*EVAL.transforms[:2], step, v1.ToTensor()])
    assert_refused(ImageFolder(root, steps), "cannot be carried over|how often|generator")
    assert not isinstance(step, Counting) or step.calls == 0


@pytest.mark.slow
def test_a_class_that_is_applied_at_random_and_methods_of_every_module(root, monkeypatch):
    """MoCo's own blur; and a program that gives all of PyTorch's modules another method."""

    class GaussianBlur:
        def __call__(self, picture):
            return picture

    monkeypatch.setattr(torch.nn.Module, "cuda", lambda module: module)
    steps = [*EVAL.transforms[:2], v1.RandomApply([GaussianBlur()]), v1.ToTensor()]
    assert_same_values(ImageFolder(root, v1.Compose(steps)))
    steps = [CROP, v1.RandomHorizontalFlip(), v1.ToTensor()]
    assert Conversion.of(DataLoader(ImageFolder(root, v1.Compose(steps)), 3)).transform.flip == 0.5


def test_a_loader_whose_batches_are_changed(files):
    class Mirrored(DataLoader):
        def _get_iterator(self):
            iterator = super()._get_iterator()
            return ((x.flip(-1), y) for x, y in iterator)

    message = r"Mirrored \(test_from_torch_faults.py:\d+\) .*its own _get_iterator.*\(1 line\)"
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(Mirrored(Own(files, plain), 3))


# A transform that fails for small made-up pictures, which would then show nothing


LARGE_CROP = v1.Compose([v1.RandomCrop(280), v1.ToTensor()])


def brightened(picture, index):
    if np.asarray(picture).mean() < 10:
        picture = picture.point(lambda value: min(255, 2 * value))
    return LARGE_CROP(picture), index


@pytest.mark.slow
def test_a_crop_of_what_made_up_pictures_do_not_have(tmp_path, monkeypatch):
    # one of each kind that shows a fault
    kinds = [each for each in trace.MADE_UP if each.name in ("noise", "a dark picture")]
    monkeypatch.setattr(trace, "MADE_UP", kinds)
    monkeypatch.setattr(tracer, "OTHER_MODES", tracer.OTHER_MODES[-1:])
    sizes = {"1.jpg": (300, 320), "2.jpg": (400, 290)}
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for number, (name, size) in enumerate(sizes.items()):
        coarse = np.random.default_rng(number).integers(60, 200, (5, 6, 3), np.uint8)
        image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        image.save(tmp_path / name, icc_profile=profile, exif=tag(6) if number else b"")
    files = sorted(map(str, tmp_path.glob("*.jpg")))

    def load(path):
        return Image.fromarray(cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))

    conversion = Conversion.of(DataLoader(Own(files, lambda x, i: (LARGE_CROP(x), i), load), 1))
    assert conversion.transform.size == 280
    # OpenCV turns pictures by their tag
    assert conversion.transform.exif == "apply"
    # the name of what the program does otherwise than with ToPILImage
    assert conversion.steps[0].text == "the picture as a PIL image"
    assert_refused(Own(files, brightened, load), "decoded file, but other values|depends on pixels")


# Changes after the conversion


class Sized(Own):
    size = 24

    def __getitem__(self, index):
        steps = v1.Compose([v1.Resize(self.size), v1.CenterCrop(16), v1.ToTensor()])
        return steps(self.load(self.files[index])), index


def steps():
    return v1.Compose([v1.Resize(24), v1.CenterCrop(16), v1.ToTensor()])


LATER = {
    "dataset.transform": lambda data, _: setattr(data, "transform", OTHER),
    "dataset.transform.transforms": lambda data, _: data.transform.transforms.insert(
        2, v1.RandomVerticalFlip(1)
    ),
    r"dataset.transform.transforms\[0\].size": lambda data, _: setattr(
        data.transform.transforms[0], "size", 20
    ),
    "dataset.samples": lambda data, _: data.samples.reverse(),
    "sampler.weights": lambda _, sampler: sampler.weights.fill_(2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", LATER)
def test_a_change_after_the_conversion_is_seen(place, root):
    data = ImageFolder(root, steps())
    old = DataLoader(data, 3, sampler=WeightedRandomSampler([1.0] * 6, 6))
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu", check=False) as loader:
        assert len(list(loader)) == 2
        LATER[place](data, old.sampler)
        with pytest.raises(dp.ConfigError, match=f"^{place}.* has changed since"):
            iter(loader)


@pytest.mark.slow
def test_what_may_change_after_the_conversion(files):
    """Code that counts, and the old loader that goes on, change nothing."""
    data = Own(files, AfterCallsOfSamples())
    old = DataLoader(data, 3)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu", check=False) as loader:
        for _ in range(2):
            assert len(list(old)) == len(list(loader)) == 2
        with pytest.raises(AttributeError, match="has only set_epoch"):
            loader.sampler.weights = torch.ones(6)

    data = Sized(files, None)
    with dp.from_torch(DataLoader(data, 3), dp.TorchConfig(num_workers=0), device="cpu") as loader:
        data.size = 20
        with pytest.raises(dp.ConfigError, match=r"dataset.size has changed"):
            iter(loader)


class AfterCallsOfSamples:
    calls = 0

    def __call__(self, picture, index):
        self.calls += 1
        return EVAL(picture), index


# Files, caches and generators of the user's


class OfClass(Own):
    kept = {}  # noqa: RUF012
    calls = 0

    def __getitem__(self, index):
        type(self).calls += 1
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


def kept_in_default(picture, index, kept={}):  # noqa: B006
    return kept.setdefault(index, plain(picture, index))


def in_closure():
    kept, last = {}, None

    def sample(picture, index):
        nonlocal last
        last = kept.setdefault(index, plain(picture, index))
        return last

    return sample, kept


class Inner(Own):
    def __init__(self, files, sample):
        super().__init__(files, sample)
        self.inner = Own(files, sample)
        self.kept, self.array = {"a": {}}, np.zeros((6, 3, 16, 16), np.float32)
        self.tensor, self.numbers = torch.zeros(6, 3, 16, 16), np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __getitem__(self, index):
        x, y = self.inner[index]
        self.array[index], self.tensor[index] = x.numpy(), x
        self.kept["a"].setdefault(index, x)
        return self.kept["a"][index], y + self.numbers.random()


CALLS = 0


def counted(picture, index):
    global CALLS
    CALLS += 1
    return plain(picture, index)


@pytest.mark.slow
def test_caches_of_all_kinds_hold_no_noise(files):
    sample, kept = in_closure()
    inner, state = Inner(files, plain), np.random.default_rng(0).bit_generator.state
    for dataset in (
        OfClass(files, plain),
        Own(files, kept_in_default),
        Own(files, sample),
        Own(files, counted),
        inner,
    ):
        try:
            Conversion.of(DataLoader(dataset, 3))
        except NotConvertibleError:
            assert dataset.sample is not counted

    assert OfClass.kept == kept == kept_in_default.__defaults__[0] == {}
    assert OfClass.calls == CALLS == 0 and sample.__closure__[-1].cell_contents is None
    assert inner.kept == {"a": {}} and not inner.array.any() and not inner.tensor.any()
    assert inner.numbers.bit_generator.state == state


@pytest.mark.parametrize("write", ["numpy", "torch", "torch, wrapped", "OpenCV", "text"])
def test_no_file_is_written(write, files, tmp_path, monkeypatch):
    original, calls = torch.save, []

    def save(*args, **options):
        calls.append(args)
        return original(*args, **options)

    if write == "torch, wrapped":
        monkeypatch.setattr(torch, "save", save)

    writers = {
        "numpy": lambda x: np.save(tmp_path / "x.npy", x.numpy()),
        "torch": lambda x: torch.save(x, tmp_path / "x.pt"),
        "torch, wrapped": lambda x: torch.save(x, tmp_path / "x.pt"),
        "OpenCV": lambda x: cv2.imwrite(str(tmp_path / "x.png"), np.zeros((4, 4, 3), np.uint8)),
        "text": lambda x: (tmp_path / "x.txt").open("a"),
    }

    def sample(picture, index):
        made = EVAL(picture)
        writers[write](made)
        return made, index

    assert_refused(Own(files, sample), "it changes files: it .*x.")
    assert not list(tmp_path.iterdir()) and not calls
    assert torch.save is (save if write == "torch, wrapped" else original)


class Cleaning(Own):
    """Removes the files that a transform cannot take."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            Path(self.files[index]).unlink()
            raise


def test_no_file_is_removed(files):
    crop = v1.Compose([v1.RandomCrop(16), v1.ToTensor()])
    assert_refused(Cleaning(files, lambda x, at: (crop(x), at)), "it calls os.remove for .*jpg")
    assert all(Path(path).exists() for path in files)


@pytest.mark.slow
def test_batches_are_equal_where_nothing_is_wrong(files):
    """The old loader's, although its function counts, and has a state."""
    old = DataLoader(Own(files, AfterCallsOfSamples()), 3)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as loader:
        for theirs, ours in zip(old, loader, strict=True):
            for (_, one), (_, other) in zip(leaves(theirs), leaves(ours), strict=True):
                assert torch.allclose(one, other, atol=2e-6)
