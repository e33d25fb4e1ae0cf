"""`Augment` in `before`: functions of whole images give the same pixels on every loader that has
them, on any number of ranks and after a resume, or are refused.
"""

import numpy as np
import pytest
import torch
from later import later
from own_functions import (
    add_bytes,
    brighten,
    draw_from_numpy,
    draw_from_random,
    return_half,
    turn_right,
)
from PIL import Image

import dali_pipes as dp

v2 = later("torchvision.transforms.v2")

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "torch_workers": dp.TorchConfig(num_workers=2),
    "torch_spawned": dp.TorchConfig(num_workers=1, multiprocessing_context="spawn"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
}
EQUAL = [
    *("torch", "dali_cpu"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS if name.startswith("torch_")),
]
BEFORE = ["RandomHorizontalFlip", dp.Augment(brighten, draws=2), dp.Augment(add_bytes)]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Twelve PNGs of several sizes, which all decoders decode alike."""
    root = tmp_path_factory.mktemp("png")
    rng = np.random.default_rng(0)
    (root / "a").mkdir()
    for number in range(12):
        pixels = rng.integers(0, 256, (40 + number, 60 - number, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"a/{number:02}.png")
    return dp.Manifest.scan(root, progress=False)


def cropped(before, **options):
    """Not resized, so that all loaders make the same pixels bit for bit."""
    return dp.RandomCropTransform(
        **{"size": (24, 32), "before": before, "dtype": "uint8"} | options
    )


def load(manifest, name, transform, **options):
    options = {"batch_size": 4, "last_batch": "partial", "seed": 5, "device": "cpu"} | options
    config = BACKENDS[name] if isinstance(name, str) else name
    return dp.build_loader(manifest, config, transform=transform, **options)


def images_of(loader, epochs=1):
    """All images of each epoch by their ids."""
    images = {}
    with loader:
        for epoch in range(epochs):
            for batch in loader:
                images |= {
                    (epoch, int(id)): image
                    for id, image in zip(batch.ids, batch.images, strict=True)
                }
    return images


@pytest.fixture(scope="module")
def expected(manifest):
    """What the functions make, by hand: of the stored images, with the planned numbers."""
    images = {}
    with load(manifest, "torch", cropped(BEFORE)) as loader:
        planned = [loader.plan.batch(epoch, step) for epoch in range(2) for step in range(3)]
    for batch in planned:
        view = batch.views[0]
        for at, id in enumerate(batch.ids.tolist()):
            image = np.asarray(Image.open(manifest.root / manifest.name(id)))
            image = torch.from_numpy(image.copy()).permute(2, 0, 1)
            flip, first, second = (step.take(at) for step in view.before)
            image = image.flip(2) if flip.happens else image
            assert len(first.numbers) == 3 and len(second.numbers) == 1
            image = brighten(image, torch.from_numpy(first.numbers[1:].astype(np.float32)))
            generator = torch.Generator().manual_seed(int(second.numbers[0]))
            image = image // 2 + torch.randint(0, 100, image.shape, generator=generator).byte()

            top, left, height, width = view.geometry.region[at].tolist()
            image = image[:, top : top + height, left : left + width]
            image = image.flip(2) if view.geometry.flip[at] else image
            images[batch.epoch, id] = image
    return images


@pytest.mark.parametrize("name", EQUAL)
def test_functions_get_the_planned_numbers_on_every_loader(manifest, expected, name):
    images = images_of(load(manifest, name, cropped(BEFORE)), epochs=2)
    assert images.keys() == expected.keys() and len(images) == 24
    assert all(torch.equal(images[key], expected[key]) for key in expected)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_and_a_resume_on_another_loader(manifest, expected, ranks):
    together = {}
    for index in range(ranks):
        options = {"batch_size": 6 // ranks, "rank": dp.Rank(index, ranks)}
        with load(manifest, "dali_cpu", cropped(BEFORE), **options) as loader:
            batch = next(iter(loader))
            state = loader.state_dict()
        with load(manifest, "torch", cropped(BEFORE), **options) as other:
            other.load_state_dict(state)
            for each in (batch, *other):
                together |= {
                    (0, int(id)): image for id, image in zip(each.ids, each.images, strict=True)
                }
    assert len(together) == 12
    assert all(torch.equal(image, expected[key]) for key, image in together.items())


GLOBALS = [dp.Augment(draw_from_random), dp.Augment(draw_from_numpy)]


@pytest.mark.parametrize("name", ["torch", pytest.param("torch_workers", marks=pytest.mark.slow)])
def test_functions_that_draw_from_generators_of_the_process(manifest, name):
    images, again, plain = (
        images_of(load(manifest, name, cropped(before))) for before in (GLOBALS, GLOBALS, [])
    )
    assert all(torch.equal(images[key], again[key]) for key in images)
    assert sum(not torch.equal(images[key], plain[key]) for key in images) > 8


def test_dali_refuses_those_since_its_threads_would_share_them(manifest):
    with pytest.raises(
        dp.ConfigError,
        match=r"runs before in threads, and the function draw_from_random .*use TorchConfig",
    ):
        load(manifest, "dali_cpu", cropped(GLOBALS))


@pytest.mark.parametrize("place", ["augment", "before"])
def test_a_view_keeps_what_is_known_of_a_function_by_name(manifest, place):
    """Views are made anew each time, and this one draws from `random`."""
    named = {"name": "Augment", "function": "own_functions:draw_from_random"}
    views = dp.ViewsTransform(views=[{"name": "one", "size": 24, place: [named]}])
    with load(manifest, "torch", views) as loader:
        seen = [
            function.draws_from_globals
            for view in loader.plan.transform.groups[0]
            for function in (*view.functions_before, *view.augmenter.functions)
        ]
    assert seen == [True]


def test_by_name_as_in_yaml(manifest):
    named = {"name": "Augment", "function": "own_functions:brighten", "draws": 2}
    one, other = (
        images_of(load(manifest, "torch", cropped([step])))
        for step in (named, dp.Augment(brighten, draws=2))
    )
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_function_changes_no_number_of_another_step(manifest):
    turn = {"name": "RandomRotation", "degrees": 30}
    plain, own = (
        load(manifest, "torch", cropped(before)).plan.batch(0, 0).views[0]
        for before in ([turn], [turn, dp.Augment(brighten, draws=64), turn])
    )
    assert np.array_equal(plain.before[0].numbers, own.before[0].numbers)
    assert not np.array_equal(own.before[0].numbers, own.before[2].numbers)
    assert np.array_equal(plain.geometry.crop, own.geometry.crop)


REFUSED = {
    "half": (return_half, r"before: the function return_half returned a tensor of \(3, 48, 128\)"),
    "turned": (turn_right, r"returned a tensor of \(3, 128, 96\) .* must return the same shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_changes_the_shape_is_refused(manifest, case):
    function, message = REFUSED[case]
    with pytest.raises(dp.ConfigError, match=message):
        load(manifest, "torch", cropped([dp.Augment(function)]))


def test_what_loaders_without_functions_say(manifest):
    graph = dp.DaliConfig(device="cpu", resize="dali")
    with pytest.raises(
        dp.ConfigError, match=r"DALI's graph does not support before: the function brighten; use "
    ):
        load(manifest, graph, cropped([dp.Augment(brighten, draws=2)]))


def test_an_error_names_the_function_and_no_file(manifest):
    calls = []

    def fail_later(image):
        calls.append(1)
        if len(calls) > 30:
            raise KeyError("later")
        return image

    for name in ("torch", "dali_cpu"):
        calls.clear()
        with (
            load(
                manifest, name, cropped([dp.Augment(fail_later)]), on_bad_sample="substitute"
            ) as loader,
            pytest.raises(dp.ConfigError, match=r"before: the function .*fail_later failed on"),
        ):
            list(loader)
        assert not loader.bad_samples


def test_explain_says_where_they_run(manifest):
    transform = cropped(BEFORE, augment=[dp.Augment(brighten, draws=2)])
    with load(manifest, "dali_cpu", transform) as loader:
        assert (
            "functions of yours on cpu with the interpreter lock: brighten (whole images), "
            "add_bytes (whole images), brighten (image by image)"
        ) in loader.explain()


def test_modules_of_torchvision_as_they_are(manifest):
    before = [dp.Augment(v2.RandomPhotometricDistort(p=0.9)), dp.Augment(v2.ColorJitter(0.4))]
    one, other = (
        images_of(load(manifest, name, cropped(before))) for name in ("torch", "dali_cpu")
    )
    assert all(torch.equal(one[key], other[key]) for key in one)
