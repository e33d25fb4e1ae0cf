"""What a data set shares with its steps and its rows: a step that is told something for each sample
is seen, and what was written into them is undone.
"""

import argparse
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from test_from_torch_programs import Own
from torch.utils.data import DataLoader
from torchvision import transforms as v1

import dali_pipes as dp
from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.recorder import Recorder
from dali_pipes.adapters.from_torch.recording import kept as kept_module
from dali_pipes.adapters.from_torch.recording import light_copy
from dali_pipes.adapters.from_torch.recording import reach as reach_module
from dali_pipes.adapters.from_torch.recording.kept import find_generators, globals_kept
from dali_pipes.adapters.from_torch.recording.reach import copy_data, find_read, reach
from dali_pipes.adapters.from_torch.structure import first_difference
from dali_pipes.adapters.transforms.reading import NotConvertibleError

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
def quickly(few_made_up):
    """With few of the made-up pictures: what is refused here shows without them."""


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


class Rarely(Own):
    """Sets the same for all samples but one, at which `from_torch` doesn't look."""

    def __init__(self, files, how, sample):
        super().__init__(files, sample)
        self.how, self.tint = how, RARE_TINT

    def __getitem__(self, index):
        global IS_OTHER
        is_other = index > 10**6
        if self.how == "key":
            RARE["is_other"] = is_other
        elif self.how == "update":
            RARE.update(is_other=is_other)
        elif self.how == "global":
            IS_OTHER = is_other
        elif self.how == "attribute":
            self.tint.is_other = is_other
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


class RareTint:
    is_other = False

    def __call__(self, image):
        return brighter(image, int(self.is_other))


RARE, IS_OTHER, RARE_TINT = {"is_other": False}, False, RareTint()
READ = {
    "key": lambda image: brighter(image, int(RARE["is_other"])),
    "update": lambda image: brighter(image, int(RARE["is_other"])),
    "global": lambda image: brighter(image, int(IS_OTHER)),
    "attribute": RARE_TINT.__call__,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("how", READ)
def test_a_step_that_is_told_a_rare_label(how, files):
    with pytest.raises(NotConvertibleError, match=r"it reads .*, which the data set changes"):
        Conversion.of(DataLoader(Rarely(files, how, with_step(READ[how])), 4))


def tell(tint, is_other):
    tint.is_other = is_other


class Teller:
    def __call__(self, is_other):
        RARE_TINT.is_other = is_other


class RarelyByOtherNames(Own):
    """Stores what the step reads by a name of its own for it, by `store`."""

    store = None

    def __init__(self, files, sample):
        super().__init__(files, sample)
        self.tint, self.tints, self.teller = RARE_TINT, [RARE_TINT], Teller()

    @property
    def note(self):
        return None

    @note.setter
    def note(self, is_other):
        tell(RARE_TINT, is_other)

    def __getitem__(self, index):
        type(self).store(self, index > 10**6)
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


def by_local(self, is_other):
    tint = RARE_TINT
    tint.is_other = is_other


def by_local_of_attribute(self, is_other):
    me = self
    tint, _ = me.tint, 1
    tint.is_other = is_other


def by_walrus(self, is_other):
    (_tint := RARE_TINT).is_other = is_other


def by_one_of_two(self, is_other):
    tint = RARE_TINT if is_other else self.tint
    tint.is_other = is_other


def by_loop(self, is_other):
    for tint in self.tints:
        tint.is_other = is_other


def by_item(self, is_other):
    self.tints[0].is_other = is_other


def by_default(self, is_other, tint=RARE_TINT):
    tint.is_other = is_other


def by_dict(self, is_other):
    vars(RARE_TINT)["is_other"] = is_other


def by_update(self, is_other):
    RARE_TINT.__dict__.update(is_other=is_other)


def by_getattr(self, is_other):
    getattr(self, "tint").is_other = is_other  # noqa: B009


def by_closure():
    kept = RARE_TINT

    def store(self, is_other):
        tint = kept
        tint.is_other = is_other

    return store


OTHER_NAMES = {
    **{each.__name__: each for each in (by_local, by_local_of_attribute, by_walrus, by_one_of_two)},
    **{each.__name__: each for each in (by_loop, by_item, by_default, by_dict, by_update)},
    **{each.__name__: each for each in (by_getattr,)},
    "by_closure": by_closure(),
    "by_argument": lambda self, is_other: tell(self.tint, is_other),
    "by_property": lambda self, is_other: setattr(self, "note", is_other),
    "by_call": lambda self, is_other: self.teller(is_other),
}


def by_globals(self, is_other):
    globals()["IS_OTHER"] = is_other


def by_update_of_globals(self, is_other):
    globals().update(IS_OTHER=is_other)


def by_module(self, is_other):
    sys.modules[__name__].IS_OTHER = is_other


def by_setattr(self, is_other):
    setattr(sys.modules[__name__], "IS_OTHER", is_other)  # noqa: B010


GLOBAL = {each.__name__: each for each in (by_globals, by_update_of_globals, by_module, by_setattr)}


@pytest.mark.few(2)
@pytest.mark.parametrize("how", OTHER_NAMES | GLOBAL)
def test_a_step_that_is_told_a_rare_label_by_another_name(how, files, monkeypatch):
    monkeypatch.setattr(RarelyByOtherNames, "store", (OTHER_NAMES | GLOBAL)[how])
    step = READ["global" if how in GLOBAL else "attribute"]
    with pytest.raises(NotConvertibleError, match=r"it reads .*, which the data set changes"):
        Conversion.of(DataLoader(RarelyByOtherNames(files, with_step(step)), 4))


def by_own_objects(self, is_other):
    tint = RareTint()
    tint.is_other = is_other
    kept = dict(RARE)
    kept["is_other"] = is_other
    tell(RareTint(), is_other)


@pytest.mark.slow
def test_what_is_stored_in_new_objects_is_not_told(files, monkeypatch):
    monkeypatch.setattr(RarelyByOtherNames, "store", by_own_objects)
    for how in ("attribute", "key"):
        loader = DataLoader(RarelyByOtherNames(files, with_step(READ[how])), 4)
        assert Conversion.of(loader).transform.augmenter.functions


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


@pytest.mark.few(2)
@pytest.mark.parametrize("how", TOLD)
def test_a_step_that_is_told_the_label(how, files):
    make, message = TOLD[how]
    with pytest.raises(NotConvertibleError, match=message):
        Conversion.of(DataLoader(make(files), 4))
    assert NOW == {"label": 0} and LABEL == 0


@pytest.mark.slow
def test_a_method_that_reads_only_options(files):
    conversion = Conversion.of(DataLoader(Method(files, "strength"), 4))
    assert conversion.transform.augmenter.functions
    assert conversion.dataset.kept == {} and conversion.dataset.label == 1


class Tabled(Own):
    """Its step reads a table."""

    def __init__(self, files):
        super().__init__(files, with_step(self.tint))
        self.table = [1, 2]

    def tint(self, image):
        return brighter(image, self.table[0])

    def __getitem__(self, index):
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


class Lazily(Tabled):
    """The first sample makes it."""

    def __init__(self, files):
        super().__init__(files)
        self.table = None

    def __getitem__(self, index):
        if self.table is None:
            self.table = [1, 2]
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_table_that_the_first_sample_makes_is_to_be_made_before(files):
    """No sample is made any more where its step runs."""
    with pytest.raises(NotConvertibleError, match="it reads table, which the data set") as error:
        Conversion.of(DataLoader(Lazily(files), 4))
    assert error.value.instead.startswith("set it in __init__ alone if it is the same for all")
    assert Conversion.of(DataLoader(Tabled(files), 4)).transform.augmenter.functions


def copy_of(data):
    with globals_kept(data) as kept:
        return copy_data(data, kept)[0]


def test_a_copy_shares_what_its_steps_hold(files):
    data = Told(files)
    copied = copy_of(data)
    assert copied is not data and copied.tint is data.tint is copied.sample.transforms[1]
    plain = Own(files, with_step(Tint()))
    assert copy_of(plain).files is not plain.files


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


@pytest.mark.slow
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


@pytest.mark.few(1)
@pytest.mark.slow
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


# Unusual objects, and many of them


class Link:
    next = None


def linked(count):
    first = last = Link()
    for _ in range(count):
        last.next = last = Link()
    return first


class Boxes(Told):
    """The step comes after an attribute with many numbers."""

    def __init__(self, files):
        self.boxes = [[[float(at)] * 5 for at in range(52)] for _ in range(64)]
        self.chain = linked(2000)
        super().__init__(files)


def test_a_step_after_many_numbers_and_a_long_chain_is_shared(files):
    data = Boxes(files)
    copied = copy_of(data)
    assert copied is not data and copied.tint is data.tint


def test_more_than_is_looked_into_counts_as_shared(files, monkeypatch):
    monkeypatch.setattr(reach_module, "_MOST", 8)
    data = Told(files)
    assert copy_of(data).tint is data.tint
    name = find_read([lambda image: [NOW, LABEL, TENSOR, CROP, Row, Tint, brighter]], {(1, "a")})
    assert name == "more than 8 objects, perhaps a"


class Unhelpful:
    @property
    def __class__(self):
        raise RuntimeError("ask somebody else")


PROXY, UNHELPFUL = weakref.proxy(Link()), Unhelpful()


class WithProxies(Own):
    def __init__(self, files, sample):
        self.proxy, self.unhelpful = PROXY, UNHELPFUL
        super().__init__(files, sample)


@pytest.mark.slow
def test_proxies_that_fail_whatever_they_are_asked(files):
    def step(image):
        return (PROXY, UNHELPFUL) and image

    data = WithProxies(files, lambda x, at: (with_step(v1.Lambda(step))(x), at))
    assert copy_of(data).proxy is PROXY
    Conversion.of(DataLoader(data, 4))
    # the owner of a proxy is what a step reads
    owner = Tint()
    reached = reach([weakref.proxy(owner)])
    assert id(owner) in reached.objects


# What nobody gives back is not shared


class Thumbs(Own):
    def __init__(self, files):
        self.thumbs = np.zeros((COUNT, 16, 16, 3), np.uint8)
        self.resize = v1.Resize((16, 16))
        super().__init__(files, v1.Compose([CROP, v1.Lambda(self.same), v1.ToTensor()]))

    def same(self, image):
        return image

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        self.thumbs[index] = np.asarray(self.resize(image))
        return self.sample(image), index


class PlainThumbs(Thumbs):
    def __init__(self, files):
        super().__init__(files)
        self.sample = with_step(v1.Grayscale(3))


@pytest.mark.few
@pytest.mark.parametrize("kind", [Thumbs, PlainThumbs])
@pytest.mark.parametrize("is_large", [False, True])
def test_an_array_of_the_data_set_stays_as_it_is(kind, is_large, files, monkeypatch):
    if is_large:
        for module in (light_copy, kept_module):
            monkeypatch.setattr(module, "LARGEST_ARRAY", 1000)
    data = kind(files)
    thumbs = data.thumbs
    with suppress(NotConvertibleError):
        Conversion.of(DataLoader(data, 4))
    assert data.thumbs is thumbs and thumbs.flags.writeable and not thumbs.any()


def test_arrays_beyond_the_total_are_not_shared(files, monkeypatch):
    monkeypatch.setattr(kept_module, "_TOTAL", 1000)
    data = Thumbs(files)
    with globals_kept(data) as kept:
        copied, shares_objects = copy_data(data, kept)
        assert copied is data and shares_objects
        data.thumbs[0] = 1
    assert not data.thumbs.any()


# Told by the code of a base class, in a namespace, in slots


TINT = Tint()


class Base(Own):
    def __getitem__(self, index):
        self.tint.label = index
        return STEPS(Image.open(self.files[index]).convert("RGB")), index


class Derived(Base):
    def __init__(self, files):
        self.tint = TINT
        super().__init__(files, None)


STEPS = with_step(TINT)


class Slots:
    __slots__ = ("label", "picture")


class Options(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


class OwnDict(dict):
    def __init__(self):
        super().__init__()
        self.__dict__ = self


NAMESPACES = [
    *(SimpleNamespace(), argparse.Namespace(), threading.local(), Slots(), Options(), OwnDict())
]
ARGS = NAMESPACES[0]


class ToldByNamespace(Own):
    def __getitem__(self, index):
        ARGS.label = index
        return self.sample(Image.open(self.files[index]).convert("RGB")), index


def test_a_step_that_the_base_class_tells_is_shared(files):
    data = Derived(files)
    assert copy_of(data).tint is data.tint


@pytest.mark.few(2)
@pytest.mark.parametrize("args", NAMESPACES, ids=lambda args: type(args).__name__)
def test_a_step_that_is_told_in_a_namespace(args, files, monkeypatch):
    monkeypatch.setitem(globals(), "ARGS", args)
    args.label = 0
    data = ToldByNamespace(files, with_step(lambda x: brighter(x, ARGS.label)))
    with pytest.raises(NotConvertibleError, match="it reads label, which the data set changes"):
        Conversion.of(DataLoader(data, 4))
    assert args.label == 0


# An attribute with the name of a global is another thing


def test_attributes_are_no_globals(files):
    def step(image):
        return image.NOW

    def by_name(image):
        return globals()["NOW"]

    assert id(NOW) not in reach([step]).objects
    assert id(NOW) in reach([by_name]).objects


def test_one_process_where_an_object_is_shared(files):
    recorder = Recorder(Method(files, "strength"))
    with recorder:
        assert recorder.copy is recorder.dataset and recorder.shares_objects
    with (plain := Recorder(Own(files, with_step(Tint())))):
        assert not plain.shares_objects


# What is kept


def test_slots_in_rows_are_restored():
    rows = [Slots() for _ in range(100)]
    with globals_kept(rows):
        rows[3].picture = "noise"
    assert not hasattr(rows[3], "picture")


def test_tensors_of_all_kinds_are_kept_or_left():
    plain = torch.zeros(4)
    held = [
        torch.zeros(4).to(torch.float8_e4m3fn),
        torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
        torch.zeros(4, 4).to_sparse(),
        torch.tensor([0.0, float("nan")]),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(4, requires_grad=True),
        torch.zeros(()),
        plain,
    ]
    with globals_kept(held) as kept:
        plain += 1
        with torch.no_grad():
            held[5].fill_(3)
        held[0].copy_(torch.ones(4))
        assert {at for at, _ in kept.changed_at()} >= {id(held[0]), id(held[5]), id(plain)}
    assert not plain.any() and not held[5].any() and not held[0].float().any()


def test_generators_are_found_without_copies(monkeypatch):
    monkeypatch.setattr(kept_module, "_copy_of", None)
    generator = torch.Generator()
    assert find_generators([torch.zeros(4), {"generator": generator}]) == [generator]


@dataclass
class Node:
    value: int
    other: "Node | None" = None


def two_nodes(value):
    one = Node(1)
    one.other = Node(value, one)
    return one


def test_objects_that_refer_to_each_other_are_compared():
    assert first_difference(two_nodes(2), two_nodes(2)) is None
    assert first_difference(two_nodes(2), two_nodes(3)) == ".other.value"
