"""from_torch with two pictures of a sample that one call of torchvision's v2 moves together."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from later import later
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import dali_pipes as dp

v2 = later("torchvision.transforms.v2")
tv_tensors = later("torchvision.tv_tensors")
io = later("torchvision.io")

COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures, and the negative of each, whose sum with it is white."""
    place, rng = tmp_path_factory.mktemp("negatives"), np.random.default_rng(0)
    for number in range(COUNT):
        height, width = rng.integers(50, 90, 2).tolist()
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(place / f"{number}.png")
        Image.fromarray(255 - np.asarray(picture)).save(place / f"{number}_negative.png")
        picture.resize((width // 2, height)).save(place / f"{number}_narrow.png")
        picture.convert("L").save(place / f"{number}_gray.png")
        values = np.asarray(picture)[..., 0].astype(np.uint16) * 257
        Image.fromarray(values).save(place / f"{number}_depth.png")
    return place


def opened(file):
    with Image.open(file) as image:
        return image.convert("RGB")


def opened_as_it_is(file):
    with Image.open(file) as image:
        image.load()
        return image


def as_image(file):
    return tv_tensors.Image(np.asarray(opened(file)).transpose(2, 0, 1).copy())


def as_plain(file):
    return torch.from_numpy(np.asarray(opened(file)).transpose(2, 0, 1).copy())


class Pairs(Dataset):
    def __init__(self, folder, make, kind="negative", opener=opened):
        self.files = [str(folder / f"{number}.png") for number in range(COUNT)]
        self.make, self.kind, self.opener = make, kind, opener

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        file = self.files[index]
        other = file.replace(".png", f"_{self.kind}.png")
        return self.make(self.opener(file), self.opener(other))


def floats():
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


def crops():
    return [v2.RandomResizedCrop(24, (0.3, 1)), v2.RandomHorizontalFlip(), *floats()]


def converted(data_set, **options):
    return dp.from_torch(
        DataLoader(data_set, batch_size=4, **({"shuffle": True} | options)),
        config=dp.TorchConfig(num_workers=0),
        device="cpu",
    )


@pytest.mark.slow
@pytest.mark.parametrize("opener", [opened, as_image], ids=["PIL", "tv_tensors"])
def test_a_pair_has_one_crop_and_one_flip(folder, opener):
    seen = 0
    with converted(Pairs(folder, v2.Compose(crops()), opener=opener)) as loader:
        for one, other in loader:
            assert one.shape == other.shape == (4, 3, 24, 24) and other.dtype == torch.float32
            # bytes of both are rounded by themselves
            assert (one + other - 1).abs().max() <= 1.01 / 255
            seen += len(one)
    assert seen == COUNT


@pytest.mark.slow
def test_an_evaluation_has_the_old_values(folder):
    normalize = v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    steps = [v2.Resize(40), v2.CenterCrop(32), *floats(), normalize]
    data_set = Pairs(folder, v2.Compose(steps))
    with converted(data_set, shuffle=False) as loader:
        for ours, theirs in zip(loader, DataLoader(data_set, batch_size=4), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one.dtype == other.dtype and (one - other).abs().max() <= 1.01 / 255 / 0.2


@pytest.mark.slow
def test_a_second_picture_that_is_replaced_is_a_bad_sample(folder, tmp_path):
    for file in folder.glob("*"):
        shutil.copy(file, tmp_path)
    with converted(Pairs(tmp_path, v2.Compose(crops()))) as loader:
        (tmp_path / "3_negative.png").write_bytes(b"")
        Image.new("RGB", (9, 9)).save(tmp_path / "5_negative.png")
        with pytest.raises(dp.BadSampleError) as error:
            list(loader)
    assert "second picture" in str(error.value) and "_negative.png: " in str(error.value)


@pytest.mark.slow
def test_samples_keep_their_structure_and_order(folder):
    together = v2.Compose(crops()[:2])
    end = v2.Compose(floats())

    def make(first, second):
        first, second = together(first, second)
        return {"clean": end(second), "noisy": end(first)}

    with converted(Pairs(folder, make)) as loader:
        batch = next(iter(loader))
        names = list(batch)
    assert names == ["clean", "noisy"]
    assert (batch["clean"] + batch["noisy"] - 1).abs().max() <= 1.01 / 255


@pytest.mark.slow
def test_colors_of_the_first_picture_alone_are_its_own(folder):
    together, end = v2.Compose(crops()[:2]), v2.Compose(floats())
    jitter = v2.ColorJitter(brightness=0.8)

    def make(first, second):
        first, second = together(first, second)
        return end(jitter(first)), end(second)

    factors = []
    with converted(Pairs(folder, make)) as loader:
        for image, negative in (pair for batch in loader for pair in zip(*batch, strict=True)):
            plain = 1 - negative
            # where white does not cut it off, the image is a multiple of its plain picture
            shown = (plain > 0.3) & (image < 0.98)
            ratio = image[shown] / plain[shown]
            assert ratio.std() < 0.05
            factors.append(ratio.mean().item())
    assert np.ptp(factors) > 0.2


def apart(first, second):
    transform = v2.Compose(crops())
    return transform(first), transform(second)


def jitter_second(first, second):
    first, second = v2.Compose(crops()[:2])(first, second)
    return v2.Compose(floats())(first), v2.Compose([v2.ColorJitter(0.3), *floats()])(second)


def flip_first(first, second):
    first, second = v2.Compose(crops()[:2])(first, second)
    flip = v2.RandomHorizontalFlip(0.7)
    return v2.Compose(floats())(flip(first)), v2.Compose(floats())(second)


def turn_first(first, second):
    first, second = v2.Compose(crops()[:2])(first, second)
    first = v2.RandomRotation(30)(first)
    return v2.Compose(floats())(first), v2.Compose(floats())(second)


def augment_first(first, second):
    first, second = v2.Compose(crops()[:2])(first, second)
    first = v2.TrivialAugmentWide()(first)
    return v2.Compose(floats())(first), v2.Compose(floats())(second)


def smaller_second(first, second):
    first, second = v2.Compose(crops()[:2])(first, second)
    return v2.Compose(floats())(first), v2.Compose([v2.Resize((12, 12)), *floats()])(second)


def inverted(first, second):
    return v2.Compose(crops())(first, Image.eval(second, lambda value: value // 2))


def jitter_both(first, second):
    return v2.Compose([v2.ColorJitter(0.3), *crops()])(first, second)


def noise_first(first, second):
    first, second = v2.Compose(crops())(first, second)
    return v2.GaussianNoise()(first), second


def three(first, second):
    first, second = v2.Compose(crops())(first, second)
    return first, second, v2.Compose(floats())(Image.new("RGB", (24, 24)))


def normalize_plain(first, second):
    """Of two plain tensors torchvision normalizes the first one only."""
    first, second = v2.Compose(crops()[:2])(first, second)
    plain = v2.Compose([*floats(), v2.ToPureTensor()])
    return v2.Normalize((0.5,) * 3, (0.5,) * 3)(plain(first), plain(second))


REFUSED = {
    "apart": ({"make": apart}, "pictures of 2 files.* one call of .*v2"),
    "colors of both": ({"make": jitter_both}, "ColorJitter .*is called with 2 pictures at once"),
    "colors of the second": ({"make": jitter_second}, "ColorJitter changes the second picture"),
    "a flip of the first": ({"make": flip_first}, "RandomHorizontalFlip may move the first"),
    "a rotation of the first": ({"make": turn_first}, "RandomRotation may move the first picture"),
    "TrivialAugment": ({"make": augment_first}, "TrivialAugmentWide may move the first picture"),
    "a resize of the second": (
        {"make": smaller_second},
        "Resize .*(changes the second picture|comes after a resize)",
    ),
    "own code before": ({"make": inverted}, "something else that is no whole file"),
    "plain tensors": (
        {"make": lambda *both: v2.Compose(crops())(*both), "opener": as_plain},
        "of plain tensors torchvision changes the first one only; give it each as tv_tensors.Image",
    ),
    "plain tensors at the end": ({"make": normalize_plain}, "changes the first one only"),
    "noise": ({"make": noise_first}, "GaussianNoise"),
    "other sizes": (
        {
            "make": lambda *both: v2.Compose([v2.Resize((24, 24)), *floats()])(*both),
            "kind": "narrow",
        },
        "its first picture .*make them equal|times as large",
    ),
    "gray": (
        {
            "make": lambda *both: v2.Compose(crops())(*both),
            "kind": "gray",
            "opener": opened_as_it_is,
        },
        "which blends class numbers",
    ),
    "depth": (
        {
            "make": lambda one, other: v2.Compose(crops())(
                tv_tensors.Image(np.asarray(one).transpose(2, 0, 1).copy()),
                tv_tensors.Mask(np.asarray(other).astype(np.float32)[None] / 1000),
            ),
            "kind": "depth",
            "opener": opened_as_it_is,
        },
        "with depth maps of 16 bits keep your DataLoader",
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_such_pair_is_refused_with_what_would_do(folder, case):
    options, why = REFUSED[case]
    with pytest.raises(dp.NotConvertibleError, match=why):
        converted(Pairs(folder, **options))


@pytest.mark.slow
def test_transforms_that_a_program_imports_in_its_first_sample_are_seen(folder):
    """In a process that has not imported them before."""
    program = f"""
import dali_pipes as dp
from torch.utils.data import DataLoader, Dataset

class Lazy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        from PIL import Image
        from torchvision.transforms import v2

        with Image.open(f"{folder}/{{index}}.png") as image:
            return v2.Compose([v2.Resize((24, 24)), v2.PILToTensor()])(image.convert("RGB"))

new = dp.from_torch(DataLoader(Lazy(), 4), dp.TorchConfig(num_workers=0), device="cpu")
print([tuple(batch.shape) for batch in new])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[(4, 3, 24, 24), (4, 3, 24, 24)]\n", done.stderr[-1500:]


def test_plain_tensors_of_one_file_are_refused_too(folder):
    """torchvision normalizes the first one only."""
    crop = v2.Compose([*crops(), v2.ToPureTensor()])
    normalize = v2.Normalize((0.5,) * 3, (0.5,) * 3)

    class Views(Pairs):
        def __getitem__(self, index):
            image = opened(self.files[index])
            return normalize(crop(image), crop(image))

    with pytest.raises(dp.NotConvertibleError, match="torchvision changes the first one only"):
        converted(Views(folder, None))


def test_two_crops_of_one_file_by_one_call_are_refused_still(folder):
    """They are views of one image, and would be drawn apart."""

    class Twice(Pairs):
        def __getitem__(self, index):
            image = opened(self.files[index])
            return self.make(image, image)

    with pytest.raises(dp.NotConvertibleError, match="come out of one call of RandomResizedCrop"):
        converted(Twice(folder, v2.Compose(crops())))
