"""`Augment`: functions of the user's give the same images on every loader, on any number of ranks
and after a resume, or are refused.
"""

import os
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gpu_backends import needs_cuda
from later import later
from own_functions import (
    Counting,
    add_noise,
    brighten,
    draw_for_batches,
    draw_from_numpy,
    draw_from_random,
    drop_out,
    fail,
    move_right,
    moves_right,
    return_floats,
    return_half,
    return_nothing,
    shift_batch,
    subtract_batch_mean,
)
from PIL import Image
from ranks import finish, kill_after, start_ranks

import dali_pipes as dp
from dali_pipes.backends.pixels.functions import check_functions
from dali_pipes.plan.draws import Draws

v2 = later("torchvision.transforms.v2")

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_workers": dp.TorchConfig(num_workers=2),
    "torch_spawned": dp.TorchConfig(num_workers=1, multiprocessing_context="spawn"),
    "torch_device": dp.TorchConfig(num_workers=0, normalize_on="device"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali"),
    "torch_to_gpu": dp.TorchConfig(num_workers=1),
    "dali_cpu_to_gpu": dp.DaliConfig(device="cpu"),
}
ON_GPU = ("torch_to_gpu", "dali_cpu_to_gpu")
ALL = [*(name for name in BACKENDS if name not in ON_GPU), *needs_cuda(*ON_GPU)]
OWN = [
    dp.Augment(brighten, draws=2),
    dp.Augment(add_noise, where="normalized"),
    dp.Augment(shift_batch, draws=1, per="batch", where="normalized"),
    {"name": "RandomErasing", "p": 0.5},
]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Twenty PNGs, which all decoders decode alike."""
    root = tmp_path_factory.mktemp("png")
    rng = np.random.default_rng(0)
    for number in range(20):
        (root / f"{number % 2}").mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (40, 48, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number % 2}/{number}.png")
    return dp.Manifest.scan(root, progress=False)


def cropped(augment, **options):
    """Not resized, so that all loaders make the same pixels bit for bit."""
    return dp.RandomCropTransform(**{"size": (24, 32), "augment": augment} | options)


def load(manifest, name, transform, **options):
    device = "cuda" if name in ON_GPU else "cpu"
    options = {"batch_size": 8, "last_batch": "partial", "seed": 5, "device": device} | options
    return dp.build_loader(manifest, BACKENDS[name], transform=transform, **options)


def images_of(loader):
    """All images of an epoch by their ids."""
    with loader:
        return {
            int(id): image.cpu()
            for batch in loader
            for id, image in zip(batch.ids, batch.images, strict=True)
        }


@pytest.fixture(scope="module")
def expected(manifest):
    """What the functions make, by hand: of the planned crops, with the planned numbers."""
    transform, images = cropped(OWN), {}
    plain = images_of(load(manifest, "torch", cropped([], dtype="uint8")))
    with load(manifest, "torch", transform) as loader:
        planned = [loader.plan.batch(0, step) for step in range(len(loader))]
    mean, std = (torch.tensor(value)[:, None, None] for value in (transform.mean, transform.std))
    for batch in planned:
        for at, id in enumerate(batch.ids):
            drawn = batch.augmentation.take([at])
            _, first, _, noise_seed, _, shift = drawn.numbers[0].tolist()
            image = brighten(plain[int(id)], torch.tensor([first]))
            image = (image.float() - 255 * mean) * (1 / (255 * std))
            noise = torch.randn(
                image.shape, generator=torch.Generator().manual_seed(int(noise_seed))
            )
            image = image + 0.1 * noise + shift
            top, left, height, width = drawn.erased[0]
            image[:, top : top + height, left : left + width] = 0
            images[int(id)] = image
    return images


@pytest.mark.few
@pytest.mark.parametrize("name", ALL)
def test_functions_get_the_planned_numbers_on_every_loader(manifest, expected, name):
    images = images_of(load(manifest, name, cropped(OWN)))
    assert images.keys() == expected.keys() and len(images) == 20
    for id, image in images.items():
        torch.testing.assert_close(image, expected[id], atol=2e-6, rtol=0)


@pytest.mark.few
@pytest.mark.parametrize("name", [name for name in ALL if name not in ("torch", "torch_spawned")])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "uint8"])
def test_loaders_are_equal_bit_for_bit(manifest, name, memory_format, dtype):
    own = [dp.Augment(brighten, draws=1), dp.Augment(v2.RandomPhotometricDistort(p=0.9))]
    if dtype != "uint8":
        own = [*own, *OWN[1:]]
    transform = cropped(["RandomInvert", *own], dtype=dtype, memory_format=memory_format)
    expected = images_of(load(manifest, "torch", transform))
    images = images_of(load(manifest, name, transform))
    assert all(torch.equal(images[id], expected[id]) for id in expected)


FROM_GLOBALS = [dp.Augment(draw_from_random), dp.Augment(draw_from_numpy, where="normalized")]


@pytest.mark.parametrize("name", [name for name in ALL if name != "torch_spawned"])
def test_functions_that_draw_from_generators_of_the_process(manifest, name):
    """Each call gets the same numbers on every loader, and the program's go on as if there were no
    loader.
    """
    transform = cropped(["RandomInvert", *FROM_GLOBALS, dp.Augment(brighten, draws=1)][:3])
    expected = images_of(load(manifest, "torch_workers", transform))
    random.seed(1)
    np.random.seed(1)
    with load(manifest, name, transform) as loader:
        drawn, images = [], {}
        for batch in loader:
            drawn.append((random.random(), np.random.rand()))
            images |= dict(zip(batch.ids.tolist(), batch.images.cpu(), strict=True))
        assert "in no thread of the loader" in loader.explain()
    assert all(torch.equal(images[id], expected[id]) for id in expected)

    random.seed(1)
    np.random.seed(1)
    assert drawn == [(random.random(), np.random.rand()) for _ in drawn]


def test_the_numbers_of_the_process_differ_for_images_and_epochs(manifest):
    seen = []

    def note(image):
        seen.append(random.random())
        return image

    with load(manifest, "dali_cpu", cropped([dp.Augment(note)])) as loader:
        seen.clear()
        for _ in range(2):
            list(loader)
    assert len(set(seen)) == 40 and 0.3 < np.mean(seen) < 0.7


def test_each_epoch_sample_and_function_has_numbers_of_its_own(manifest):
    seen = []

    def note(image, draws):
        seen.append(draws.tolist())
        return image

    transform = cropped([dp.Augment(note, draws=64), dp.Augment(note, draws=64)])
    with load(manifest, "torch", transform) as loader:
        seen.clear()
        for _ in range(2):
            list(loader)
    numbers = np.array(seen)
    assert numbers.shape == (2 * 20 * 2, 64) and len(np.unique(numbers)) > 0.99 * numbers.size
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.02


def test_a_policy_more_changes_no_number_of_a_function(manifest):
    one, more = (
        cropped([*policies, dp.Augment(brighten, draws=1), *last])
        for policies, last in (([], []), (["RandomGrayscale"], ["RandomErasing"]))
    )
    draws = [
        load(manifest, "torch", transform).plan.batch(0, 0).augmentation.numbers
        for transform in (one, more)
    ]
    assert np.array_equal(*draws)


def test_no_draw_serves_two_purposes(manifest, monkeypatch):
    """Of crops, operations, steps on whole images and functions, all at once."""
    drawn = []
    uniform = Draws.uniform

    def note(self, draw, *subset):
        drawn.extend(np.ravel(draw).tolist())
        return uniform(self, draw, *subset)

    functions = [dp.Augment(brighten, draws=64)] * 8
    transform = dp.RandomCropTransform(
        size=24,
        resize=(40, 40),
        before=[{"name": "RandomRotation", "degrees": 9}, functions[0]] * 2,
        augment=["RandAugment", "TrivialAugmentWide", *functions, "RandomErasing"],
    )
    with load(manifest, "torch", transform) as loader:
        monkeypatch.setattr(Draws, "uniform", note)
        loader.plan.batch(0, 0)
    assert len(drawn) == len(set(drawn)) > 100


@pytest.mark.parametrize("name", ["torch", "dali_cpu", "dali_cpu_graph"])
def test_a_mode_of_the_program_changes_no_number(manifest, expected, name):
    with torch.device("meta"):
        images = images_of(load(manifest, name, cropped(OWN)))
        assert torch.rand(2).is_meta  # the mode is there again
    for id, image in images.items():
        torch.testing.assert_close(image, expected[id], atol=2e-6, rtol=0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_and_a_resume_on_another_loader(manifest, ranks):
    transform = cropped(OWN)
    expected = images_of(load(manifest, "torch", transform, batch_size=6))
    together = {}
    for index in range(ranks):
        rank = dp.Rank(index, ranks)
        options = {"batch_size": 6 // ranks, "rank": rank}
        with load(manifest, "dali_cpu", transform, **options) as loader:
            batch = next(iter(loader))
            state = loader.state_dict()
        with load(manifest, "torch", transform, **options) as other:
            other.load_state_dict(state)
            for each in (batch, *other):
                together |= dict(zip(each.ids.tolist(), each.images, strict=True))
    assert together.keys() == expected.keys()
    assert all(torch.equal(together[id], expected[id]) for id in expected)


@pytest.mark.slow
def test_killed_and_gone_on_with(manifest, tmp_path):
    """With -9 in the middle of an epoch."""
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, hashlib, json, pathlib, time\n"
        "import dali_pipes as dp\n"
        "from own_functions import add_noise, brighten\n"
        "images, out = sys.argv[1], pathlib.Path(sys.argv[2])\n"
        "augment = [dp.Augment(brighten, draws=2), dp.Augment(add_noise, where='normalized')]\n"
        "transform = dp.RandomCropTransform(size=24, augment=augment)\n"
        "manifest = dp.Manifest.scan(images, progress=False)\n"
        "with dp.build_loader(manifest, dp.DaliConfig(device='cpu'), transform=transform,\n"
        "                     batch_size=2, seed=1) as loader:\n"
        "    if (state := out / 'state.json').exists():\n"
        "        loader.load_state_dict(json.loads(state.read_text()))\n"
        "    while loader.epoch < 2:\n"
        "        for batch in loader:\n"
        "            digest = hashlib.sha256(batch.images.numpy().tobytes()).hexdigest()\n"
        "            with (out / 'digests').open('a') as file:\n"
        "                file.write(f'{loader.epoch} {batch.ids.tolist()} {digest}\\n')\n"
        "            (out / 'new').write_text(json.dumps(loader.state_dict()))\n"
        "            (out / 'new').rename(state)\n"
        "            time.sleep(0.05)\n"
    )
    path = os.pathsep.join([str(tmp_path.parents[0]), *os.sys.path])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    finish(start_ranks(program, manifest.root, whole, PYTHONPATH=path))
    process = start_ranks(program, manifest.root, killed, PYTHONPATH=path)
    digests = killed / "digests"
    kill_after(process, lambda: digests.exists() and digests.read_text().count("\n") >= 7)
    finish(start_ranks(program, manifest.root, killed, PYTHONPATH=path))
    lines = (whole / "digests").read_text().splitlines()
    again = dict.fromkeys(digests.read_text().splitlines())  # the last one may be there twice
    assert list(again) == lines and len(lines) == 20


def test_views_have_functions_and_numbers_of_their_own(manifest):
    views = [
        {"name": "one", "count": 2, "size": 24, "augment": [dp.Augment(brighten, draws=1)]},
        {"name": "two", "size": 16, "augment": [dp.Augment(add_noise, where="normalized")]},
    ]
    transform = dp.ViewsTransform(views=views, scale=(1, 1), ratio=(1, 1), flip=0)
    batches = {}
    for name in ("torch", "dali_cpu", "dali_cpu_graph"):
        with load(manifest, name, transform) as loader:
            batches[name] = next(iter(loader)).views
    first, second = batches["torch"]["one"].unbind(1)
    assert (first != second).any()  # of the same crop
    for made in batches.values():
        for group, images in made.items():
            difference = (images - batches["torch"][group]).abs()
            assert difference.mean() < 0.02


def test_boxes_and_masks_go_along(tmp_path):
    """A white rectangle on black, moved by a function of the user's."""
    (tmp_path / "masks").mkdir()
    (tmp_path / "images").mkdir()
    for number in range(6):
        pixels = np.zeros((30, 50, 3), np.uint8)
        pixels[5 + number : 15, 10 : 20 + number] = 255
        Image.fromarray(pixels).save(tmp_path / f"images/{number}.png")
        Image.fromarray(pixels[..., 0] // 255).save(tmp_path / f"masks/{number}.png")
    manifest = dp.Manifest.from_masks(
        tmp_path / "images", tmp_path / "masks", classes=["black", "white"], progress=False
    )
    moving = dp.Augment(move_right, draws=1, geometry=moves_right)
    transform = dp.RandomCropTransform(size=(30, 50), augment=[moving], dtype="uint8")
    for name in ("torch", "dali_cpu"):
        with load(manifest, name, transform) as loader:
            batch = next(iter(loader))
        white = batch.images[:, 0] == 255
        assert white.any() and torch.equal(batch["mask"] == 1, white)
        outside = torch.stack([image[:, :10].amax(0) for image in batch["mask"]]) == 255
        assert outside.any()  # what moved in has the ignored value


def test_a_geometry_that_is_none(manifest):
    wrong = dp.Augment(move_right, draws=1, geometry=lambda draws, shape: np.zeros((3, 3)))
    with pytest.raises(
        dp.ConfigError, match=r"geometry of move_right returned .3, 3. for 4 images"
    ):
        load(manifest, "torch", cropped([wrong]))


REFUSED = {
    "random for batches": (draw_for_batches, {"per": "batch"}, "draws from random, whose numbers"),
    "drop_out": (drop_out, {}, "calls dropout, which takes no generator"),
    "state": (Counting(), {}, "Counting returns another image for the same image"),
    "half": (return_half, {}, r"returned a tensor of \(3, 12, 32\) uint8 on cpu for a tensor of"),
    "floats": (return_floats, {}, r"returned a tensor of \(3, 24, 32\) float32 on cpu for"),
    "nothing": (return_nothing, {}, "returned a NoneType for a tensor"),
    "fails": (
        fail,
        {},
        r"fail failed on a tensor of \(3, 24, 32\) uint8 on cpu: IndexError: index",
    ),
    "batch": (
        subtract_batch_mean,
        {"per": "batch"},
        "gives an image other pixels in another batch",
    ),
    "batch draws": (
        add_noise,
        {"per": "batch", "where": "normalized"},
        "add_noise calls randn_like, whose numbers would depend on the batch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("around", [nullcontext, lambda: torch.device("cpu")])
def test_a_function_that_no_plan_can_repeat_is_refused(manifest, case, around):
    """Also in a mode of the program's."""
    function, options, message = REFUSED[case]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with around(), pytest.raises(dp.ConfigError, match=message):
        load(manifest, "torch", cropped([dp.Augment(function, **options)]))
    now = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert states == now


def test_a_dropout_that_does_not_train_draws_nothing(manifest):
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.AlphaDropout(0.5)).eval()
    images = [
        images_of(load(manifest, "torch", cropped(augment)))
        for augment in ([], [dp.Augment(network, where="normalized")])
    ]
    assert all(torch.equal(images[0][id], images[1][id]) for id in images[0])
    with pytest.raises(dp.ConfigError, match=r"calls \w*dropout, which takes no generator"):
        load(manifest, "torch", cropped([dp.Augment(network.train(), where="normalized")]))


def test_an_error_in_mid_epoch_names_the_function_and_no_file(manifest):
    calls = []

    def fail_later(image):
        calls.append(1)
        if len(calls) > 12:
            raise KeyError("later")
        return image

    for name in ("torch", "dali_cpu", "dali_cpu_graph"):
        calls.clear()
        with (
            load(
                manifest, name, cropped([dp.Augment(fail_later)]), on_bad_sample="substitute"
            ) as loader,
            pytest.raises(dp.ConfigError, match=r"the function .*fail_later failed on .* KeyError"),
        ):
            list(loader)
        assert not loader.bad_samples


def test_a_resume_with_another_function_is_refused(manifest):
    with load(manifest, "torch", cropped([dp.Augment(brighten, draws=2)])) as loader:
        state = loader.state_dict()
    for other in (dp.Augment(move_right, draws=2), dp.Augment(brighten, draws=3)):
        with (
            load(manifest, "torch", cropped([other])) as loader,
            pytest.raises(dp.ConfigError, match="augment"),
        ):
            loader.load_state_dict(state)


def test_explain_says_where_they_run(manifest):
    with load(manifest, "dali_cpu", cropped(OWN)) as loader:
        assert (
            "functions of yours on cpu with the interpreter lock: brighten (image by image), "
            "add_noise (image by image), shift_batch (batches)"
        ) in loader.explain()


def test_by_name_as_in_yaml(manifest):
    named = {"name": "Augment", "function": "own_functions:brighten", "draws": 2}
    images = [
        images_of(load(manifest, "torch", cropped([augment])))
        for augment in (named, dp.Augment(brighten, draws=2))
    ]
    assert all(torch.equal(images[0][id], images[1][id]) for id in images[1])


@pytest.mark.slow
def test_modules_of_torchvision_as_they_are():
    """All random ones of v2 that keep the shape either have a plan or are refused by name."""
    modules = [
        v2.RandomPhotometricDistort(p=0.5),
        v2.RandomChannelPermutation(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.RandomPerspective(),
        v2.ElasticTransform(),
        v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5),
        v2.RandomInvert(),
        v2.RandomEqualize(),
        v2.RandomOrder([v2.RandomInvert(), v2.RandomPosterize(3)]),
        v2.RandomChoice([v2.RandomSolarize(128), v2.GaussianBlur(3)]),
        v2.RandomApply([v2.ColorJitter(0.5)], p=0.3),
        v2.AugMix(),
        v2.RandAugment(),
        v2.TrivialAugmentWide(),
        v2.AutoAugment(),
        v2.RandomErasing(value="random"),
        v2.JPEG((50, 90)),
        v2.RandomRotation(30),
        v2.RandomHorizontalFlip(),
    ]
    for module in modules:
        transform = dp.TrainTransform(size=32, augment=[dp.Augment(module)])
        check_functions(transform, torch.device("cpu"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": "own_functions:none"}, "function of Augment: own_functions:none: .* has no"),
        (
            {"function": "add_light"},
            "function of Augment: 'add_light' names no function; .*my_code",
        ),
        ({"function": "my_broken:make"}, "'my_broken:make', which cannot be imported: No module"),
        (
            {"function": "own_functions:brighten"},
            r"own_functions:brighten is called as brighten\(image\) \(.*'draws'\); set draws, or",
        ),
        ({"function": "own_functions:add_noise", "draws": 1}, "let it take these, or leave draws"),
        ({"function": brighten, "geometry": "math:sqrt"}, "geometry of Augment: math:sqrt is call"),
    ],
)
def test_a_name_of_no_such_function(tmp_path, monkeypatch, options, message):
    (tmp_path / "my_broken.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(dp.ConfigError, match=message) as raised:
        dp.Augment(**options)
    names = [value for value in options.values() if isinstance(value, str)]
    assert [str(raised.value).count(name) for name in names] == [1] * len(names)


def test_its_arguments():
    for wrong, message in (
        ({"function": 3}, "function of Augment is 3; it takes a function of a tensor"),
        ({"function": brighten, "draws": 65}, "draws is 65"),
        ({"function": brighten, "per": "pixel"}, "per is 'pixel'"),
        ({"function": brighten, "where": "device"}, "where is 'device'"),
        ({"function": torch.nn.Dropout}, "it takes a function of a tensor, or an object"),
    ):
        with pytest.raises(dp.ConfigError, match=message):
            dp.Augment(**wrong)
    own = dp.Augment(brighten, draws=1)
    for augment, message in (
        ([own, "RandomInvert"], "RandomInvert stands after the function brighten; write"),
        ([dp.Augment(add_noise, where="normalized"), own], "Augment stands after the function"),
        ([brighten], "is a function; put it into Augment"),
        ([v2.RandomPhotometricDistort()], r"or put it into Augment\(…\)|; or put it into Augment"),
        ([{"name": "Augment", "draws": 2}], "Augment has no function"),
    ):
        with pytest.raises(dp.ConfigError, match=message):
            dp.TrainTransform(augment=augment)
    with pytest.raises(dp.ConfigError, match="takes normalized images, and dtype=uint8"):
        dp.TrainTransform(dtype="uint8", augment=[dp.Augment(add_noise, where="normalized")])
    with pytest.raises(dp.ConfigError, match="brighten would take what fills up a batch"):
        dp.ShortestSizeTransform(augment=[own])
