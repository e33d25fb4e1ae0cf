"""What a data set shares with its steps and its rows: a step that is told something for each sample
is seen, and what was written into them is undone.
"""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from test_from_torch_programs import Own
from torch.utils.data import DataLoader
from torchvision import transforms as v1

import dali_pipes as dp
from dali_pipes.adapters.from_torch import trace
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.reading import NotConvertibleError
from dali_pipes.adapters.from_torch.recording.reach import copy_data

CROP = v1.RandomResizedCrop(16)
COUNT = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for at in range(COUNT):
        pixels = np.repeat(np.repeat(rng.integers(0, 256, (9, 8, 3), np.uint8), 8, 0), 8, 1)
        Image.fromarray(pixels[: 60 + at]).save(root / f"{at:02d}.png")
    return sorted(map(str, root.iterdir()))


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """With few of the made-up pictures: what is refused here shows without them."""
    monkeypatch.setattr(trace, "MADE_UP", trace.MADE_UP[:1])
    monkeypatch.setattr(trace, "OTHER_MODES", trace.OTHER_MODES[:1])


def brighter(image, label):
    return ImageEnhance.Brightness(image).enhance(0.5 + label % 3)


class Tint:
    label = 0

    def __call__(self, image):
        return brighter(image, self.label)


class Told(Own):
    """The step in the Compose is an attribute too, and is told the label."""

    def __init__(self, files):
        self.tint = Tint()
        super().__init__(files, v1.Compose([CROP, self.tint, v1.ToTensor()]))

    def __getitem__(self, index):
        self.tint.label = index
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


NOW = {"label": 0}
LABEL = 0


class ToldByDict(Own):
    def __getitem__(self, index):
        NOW["label"] = index
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


class ToldByGlobal(Own):
    def __getitem__(self, index):
        global LABEL
        LABEL = index
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


class Method(Own):
    """The step is a method, which reads an attribute; others change."""

    def __init__(self, files, reads):
        self.label, self.strength, self.kept = 1, 1, {}
        self.tint = self.by_label if reads == "label" else self.by_strength
        super().__init__(files, v1.Compose([CROP, v1.Lambda(self.tint), v1.ToTensor()]))

    def by_label(self, image):
        return brighter(image, self.label)

    def by_strength(self, image):
        return brighter(image, self.strength)

    def __getitem__(self, index):
        self.label = self.kept[index] = index
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


def with_step(step):
    return v1.Compose([CROP, step, v1.ToTensor()])


TOLD = {
    "as an object": (Told, "made by code before it|made in another way|something else"),
    "in a dict": (
        lambda files: ToldByDict(files, with_step(lambda x: brighter(x, NOW["label"]))),
        "it reads label, which the data set changes from sample to sample",
    ),
    "in a global": (
        lambda files: ToldByGlobal(files, with_step(lambda x: brighter(x, LABEL))),
        "it reads LABEL, which the data set changes",
    ),
    "by its method": (lambda files: Method(files, "label"), "it reads label, which the data set"),
}


@pytest.mark.parametrize("how", TOLD)
def test_a_step_that_is_told_the_label(how, files):
    make, message = TOLD[how]
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(DataLoader(make(files), 4))
    assert NOW == {"label": 0} and LABEL == 0


def test_a_method_that_reads_only_options(files):
    conversion = Conversion.of(DataLoader(Method(files, "strength"), 4))
    assert conversion.transform.augmenter.functions
    assert conversion.dataset.kept == {} and conversion.dataset.label == 1


def test_a_copy_shares_what_its_steps_hold(files):
    data = Told(files)
    copied = copy_data(data)
    assert copied is not data and copied.tint is data.tint is copied.sample.transforms[1]
    plain = Own(files, with_step(Tint()))
    assert copy_data(plain).files is not plain.files


# Two pictures with the same random numbers


def from_one_state(picture, index):
    state = torch.get_rng_state()
    first = ONE(picture)
    torch.set_rng_state(state)
    return first, ONE(picture)


def in_a_fork(picture, index):
    with torch.random.fork_rng():
        first = ONE(picture)
    return first, ONE(picture)


ONE = v1.Compose([CROP, v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.mark.parametrize("sample", [from_one_state, in_a_fork])
def test_two_pictures_with_the_same_random_numbers(sample, files):
    with pytest.raises(NotConvertibleError, match="sets a random state again"):
        Conversion.of(DataLoader(Own(files, sample), 4))


def test_a_picture_that_a_sample_has_twice(files):
    """As an autoencoder has it; a batch has two tensors, into which a loop may write."""
    old = DataLoader(Own(files, lambda x, at: {"x": (x := ONE(x)), "target": [x, at]}), 4)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as loader:
        batch = next(iter(loader))
    assert torch.equal(batch["x"], batch["target"][0])
    assert batch["x"].data_ptr() != batch["target"][0].data_ptr()
    with pytest.raises(NotConvertibleError, match="two pictures of a sample come out of one call"):
        Conversion.of(DataLoader(Own(files, lambda x, at: ((x := ONE(x)), x * 2 - 1)), 4))


def one_of_two(picture, index):
    one, other = ONE(picture), ONE(picture)
    return one, other, one if index % 2 else other, index


def beside_a_tensor(picture, index):
    one = ONE(picture)
    return one, one if index % 3 else torch.full((3, 16, 16), 2.0), index


def beside_a_text(picture, index):
    one = ONE(picture)
    return (one, one, index) if index % 4 else (one, "none", index)


@pytest.mark.parametrize("sample", [one_of_two, beside_a_tensor, beside_a_text])
def test_a_picture_that_samples_have_twice_in_other_places(sample, files):
    old = DataLoader(Own(files, sample), 4)
    with dp.from_torch(old, dp.TorchConfig(num_workers=0), device="cpu") as loader:
        batches = list(loader)
    assert len(batches) == COUNT // 4
    for batch in batches:
        *pictures, last, indices = batch
        for at, index in enumerate(indices.tolist()):
            if sample is one_of_two:
                expected = pictures[0 if index % 2 else 1][at]
            elif sample is beside_a_tensor:
                expected = pictures[0][at] if index % 3 else torch.full((3, 16, 16), 2.0)
            else:
                expected = pictures[0][at] if index % 4 else "none"
            if isinstance(expected, str):
                assert last[at] == expected
            else:
                assert torch.equal(last[at], expected)


# Pictures that are kept in the rows of a long table, or in a tensor


class Row:
    def __init__(self, path):
        self.path, self.picture = path, None


TENSOR, IS_KEPT = torch.zeros(COUNT * 10, 3, 16, 16), torch.zeros(COUNT * 10, dtype=torch.bool)


def in_a_list(files):
    rows = [[path, None] for path in files]

    def sample(index):
        if rows[index][1] is None:
            rows[index][1] = Image.open(rows[index][0]).convert("RGB")
        return ONE(rows[index][1]), index

    return sample, lambda: all(row[1] is None for row in rows)


def in_a_dict(files):
    rows = {index: {"path": path} for index, path in enumerate(files)}

    def sample(index):
        row = rows[index]
        if "picture" not in row:
            row["picture"] = Image.open(row["path"]).convert("RGB")
        return ONE(row["picture"]), index

    return sample, lambda: all(len(row) == 1 for row in rows.values())


def in_an_object(files):
    rows = [Row(path) for path in files]

    def sample(index):
        if rows[index].picture is None:
            rows[index].picture = Image.open(rows[index].path).convert("RGB")
        return ONE(rows[index].picture), index

    return sample, lambda: all(row.picture is None for row in rows)


def in_a_tensor(files):
    def sample(index):
        if not IS_KEPT[index]:
            image = Image.open(files[index]).convert("RGB")
            TENSOR[index], IS_KEPT[index] = ONE(image), True
        return TENSOR[index], index

    return sample, lambda: not (TENSOR.any() or IS_KEPT.any())


class Kept(Own):
    def __getitem__(self, index):
        return self.sample(index)


@pytest.mark.parametrize("make", [in_a_list, in_a_dict, in_an_object, in_a_tensor])
def test_rows_that_keep_pictures_are_empty_afterwards(make, files):
    long = files * 10
    sample, is_empty = make(long)
    with pytest.raises(NotConvertibleError, match=r"keeps pictures|opens no image|differs each"):
        Conversion.of(DataLoader(Kept(long, sample), 4))
    assert is_empty()
