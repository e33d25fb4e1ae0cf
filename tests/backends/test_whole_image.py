"""Steps on the whole image before the crop, on every backend: torchvision's pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_backends import needs_cuda
from PIL import Image
from torchvision.transforms import functional as F

import dali_pipes as dp
from dali_pipes.plan.draws import BEFORE_DRAW, Draws
from dali_pipes.plan.plan import Plan

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali", num_threads=2),
    "dali_gpu": dp.DaliConfig(device="gpu"),
}
STEPS = [
    {"name": "Resize", "size": 60},
    "RandomVerticalFlip",
    {"name": "RandomRotation", "degrees": 40},
    {"name": "RandomAffine", "translate": [0.2, 0.1], "scale": [0.8, 1.2], "shear": 10},
]
PADDED = [
    {"name": "Pad", "padding": [9, 0, 3, 5], "fill": [10, 200, 90], "p": 0.6},
    {"name": "RandomRotation", "degrees": [80, 100], "expand": True, "fill": 130, "p": 0.5},
    {"name": "Pad", "min_size": [95, 140]},
]
TURNED = [
    "RandomRotate90",
    {"name": "Resize", "size": 70, "side": "longer", "rounding": "nearest", "antialias": False},
    {"name": "Pad", "min_size": [50, 64], "missing": "halved", "fill": 9},
    {"name": "Transpose", "p": 0.5},
    {"name": "RandomSizedCrop", "min_max_height": [30, 45], "w2h_ratio": 1.2},
]
COUNT, SEED = 5, 7


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("whole"), np.random.default_rng(0)
    (root / "a").mkdir()
    for at, (height, width) in enumerate([(90, 120), (131, 77), (64, 64), (75, 150), (100, 101)]):
        small = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
        picture = small.resize((width, height), Image.Resampling.BICUBIC)
        picture.convert("L" if at == 2 else "RGB").save(root / "a" / f"{at}.png")
    return dp.Manifest.scan(root)


def images_of(manifest, config, transform, **options):
    options = {"batch_size": COUNT, "shuffle": False, "seed": SEED, "device": "cpu"} | options
    with dp.build_loader(manifest, config, transform=transform, **options) as loader:
        return next(iter(loader)).images.cpu()


@pytest.mark.compares_pixels
@pytest.mark.parametrize(
    "name", [*(each for each in BACKENDS if each != "dali_gpu"), *needs_cuda("dali_gpu")]
)
def test_pixels_are_torchvisions(name, pictures):
    """Those of RandomRotation and RandomResizedCrop for PIL images, with the plan's draws."""
    device = "cuda" if name == "dali_gpu" else "cpu"
    transform = dp.TrainTransform(
        size=32, before=[{"name": "RandomRotation", "degrees": 30}], dtype="uint8"
    )
    ours = images_of(pictures, BACKENDS[name], transform, device=device)

    planned = Plan(pictures, transform, COUNT, seed=SEED, sampling="sequential").batch(0, 0)
    shares = Draws(SEED, 0, planned.ids).uniform(BEFORE_DRAW)[1]
    for at, share in enumerate(shares):
        picture = Image.open(pictures.root / pictures.name(planned.ids[at])).convert("RGB")
        picture = F.rotate(picture, -30 + 60 * share)
        region = planned.geometry.region[at].tolist()
        picture = F.resized_crop(picture, *region, [32, 32])
        theirs = F.pil_to_tensor(F.hflip(picture) if planned.geometry.flip[at] else picture)
        difference = (ours[at].float() - theirs.float()).abs()
        bound = 0 if name.startswith("torch") else 1
        # in a graph the nearest pixel is another one for few pixels
        in_graph = name in ("dali_cpu_graph", "dali_gpu")
        assert difference.quantile(0.97 if in_graph else 1) <= bound
        assert difference.mean() <= {"dali_cpu_graph": 0.5, "dali_gpu": 1}.get(name, bound * 0.3)


@pytest.mark.parametrize("name", ["torch_torchvision", "dali_cpu", "dali_cpu_graph"])
@pytest.mark.parametrize("steps", [STEPS, PADDED, TURNED], ids=["moved", "padded", "turned"])
def test_backends_agree(name, steps, pictures):
    transform = dp.TrainTransform(size=32, before=steps, dtype="uint8", vertical_flip=0.5)
    one, other = (
        images_of(pictures, BACKENDS[each], transform).float() for each in ("torch", name)
    )
    assert (one - other).abs().mean() < 0.5 and (one - other).abs().quantile(0.97) <= 1
    without = images_of(pictures, BACKENDS["torch"], replace(transform, before=[])).float()
    assert (one - without).abs().mean() > 5


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "dali_gpu"])
def test_a_random_interpolation_is_one_of_two(name, pictures):
    """Each image is made as if the transform had the one that the plan drew for it."""
    transform = dp.TrainTransform(size=32, scale=(0.05, 0.2), dtype="uint8")
    random, bilinear, bicubic = (
        images_of(pictures, BACKENDS[name], replace(transform, interpolation=each)).float()
        for each in ("random", "bilinear", "bicubic")
    )
    plan = Plan(pictures, replace(transform, interpolation="random"), COUNT, seed=SEED)
    drawn = plan.batch(0, 0)
    at = np.argsort(drawn.ids)
    is_bicubic = drawn.views[0].interpolations[at]
    assert set(is_bicubic.tolist()) == {0, 1}
    for place, cubic in enumerate(is_bicubic):
        same, other = (bicubic, bilinear) if cubic else (bilinear, bicubic)
        assert torch.equal(random[place], same[place])
        assert not torch.equal(random[place], other[place])


def test_each_view_has_its_own(pictures):
    steps = [{"name": "RandomRotation", "degrees": [80, 100], "interpolation": "bilinear"}]
    views = dp.ViewsTransform(
        size=32, views={"turned": {"count": 2, "before": steps}, "plain": {}}, dtype="uint8"
    )
    options = {"batch_size": COUNT, "shuffle": False, "seed": SEED, "device": "cpu"}
    found = []
    for name in ("torch", "dali_cpu"):
        with dp.build_loader(pictures, BACKENDS[name], transform=views, **options) as loader:
            found.append(next(iter(loader)).views)
    for name in ("turned", "plain"):
        assert (found[0][name].float() - found[1][name].float()).abs().max() <= 1
    plain = images_of(pictures, BACKENDS["torch"], dp.TrainTransform(size=32, dtype="uint8"))
    assert not torch.equal(found[0]["turned"][:, 0], plain)


def darken(image):
    assert image.is_cuda
    return image // 2


GRAPHS = {
    "a rotation": {"before": [{"name": "RandomRotation", "degrees": 20}, "RandomHorizontalFlip"]},
    "a padding": {"before": [{"name": "Pad", "padding": 3, "fill": [1, 2, 3]}, "RandomAffine"]},
    "a turn": {"before": TURNED},
    "edges": {"before": [{"name": "Pad", "padding": 3, "padding_mode": "edge"}]},
    "reflections": {"before": [{"name": "Pad", "padding": 3, "padding_mode": "reflect"}]},
    "mirror images": {"before": [{"name": "Pad", "padding": 3, "padding_mode": "symmetric"}]},
    "a resize": {"before": [{"name": "Resize", "size": 60}, "RandomAffine"]},
    "a drawn interpolation": {"interpolation": "random"},
    "no antialiasing": {"antialias": False},
    "what PyTorch does after it": {
        "augment": [
            {"name": "AutoAugment", "equalize": "torchvision"},
            "TimmRandAugment",
            "TimmRandomErasing",
        ]
    },
    "a function of images": {"augment": ["RandAugment", dp.Augment(darken), "RandomErasing"]},
    "a function of batches": {
        "augment": [dp.Augment(torch.abs, where="normalized", per="batch")],
        "dtype": "bf16",
    },
}


@pytest.mark.needs_cuda
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_graph_of_a_gpu_delivers(pictures, graph):
    """Its host code, which the simulated GPU runs as well."""
    transform = dp.TrainTransform(size=32, **GRAPHS[graph])
    with dp.build_loader(
        pictures, dp.DaliConfig(device="gpu"), transform=transform, batch_size=4
    ) as loader:
        for step, batch in enumerate(loader):
            assert batch.images.is_cuda and batch.images.shape == (4, 3, 32, 32)
            assert batch.ids.tolist() == loader.plan.batch(0, step).ids.tolist()


@pytest.mark.parametrize("name", ["torch", "dali_cpu"])
def test_a_resumed_run_goes_on_with_the_same_draws(name, pictures):
    transform = dp.TrainTransform(size=24, before=["RandomPerspective", *STEPS])
    options = {"transform": transform, "batch_size": 2, "device": "cpu", "last_batch": "partial"}
    with dp.build_loader(pictures, BACKENDS[name], **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.images for batch in batches]
    with dp.build_loader(pictures, BACKENDS[name], **options) as loader:
        loader.load_state_dict(state)
        again = [batch.images for batch in loader]
    assert len(rest) == 2 and all(map(torch.equal, rest, again))


BEYOND_GRAPH = [
    ("RandomPerspective", "RandomPerspective; use DaliConfig"),
    (
        {"name": "RandomRotation", "interpolation": "bilinear"},
        "RandomRotation with interpolation=bilinear; use interpolation=nearest, or ",
    ),
    (
        {"name": "RandomAffine", "fill": [1, 1, 2]},
        r"RandomAffine with fill=\[1, 1, 2\]; use a gray fill, or ",
    ),
    (
        {"name": "Resize", "interpolation": "bicubic", "antialias": False},
        "Resize with interpolation=bicubic and antialias=False; use interpolation=bilinear, or ",
    ),
]


@pytest.mark.parametrize("name", ["torch_torchvision", "dali_cpu", "dali_cpu_graph"])
@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_a_padding_is_equal_on_all_backends(name, mode, pictures):
    """Pixel for pixel: nothing is resized."""
    steps = [
        {"name": "Pad", "padding": [11, 3, 0, 63], "padding_mode": mode, "p": 0.7},
        {"name": "Pad", "min_size": [120, 140], "padding_mode": mode, "missing": "halved"},
    ]
    transform = dp.RandomCropTransform(size=(110, 130), before=steps, dtype="uint8")
    one, other = (images_of(pictures, BACKENDS[each], transform) for each in ("torch", name))
    assert torch.equal(one, other)


@pytest.mark.parametrize(("mode", "most"), [("reflect", 63), ("symmetric", 64)])
def test_the_graph_of_dali_mirrors_once(mode, most, pictures):
    graph = BACKENDS["dali_cpu_graph"]

    def padded(pixels):
        step = {"name": "Pad", "padding": [0, 0, 0, pixels], "padding_mode": mode}
        return dp.RandomCropTransform(size=64, before=[step], dtype="uint8")

    images_of(pictures, graph, padded(most))
    text = f"mirrors an image once on a side, and before: Pad with padding_mode={mode} .*2.png; use"
    with pytest.raises(dp.ConfigError, match=text):
        images_of(pictures, graph, padded(most + 1))


def test_what_is_not_supported_is_refused(pictures, tmp_path):
    graph = BACKENDS["dali_cpu_graph"]
    with pytest.raises(dp.ConfigError, match="interpolation is 'random'; choose"):
        dp.EvalTransform(interpolation="random")
    for step, text in BEYOND_GRAPH:
        with pytest.raises(dp.ConfigError, match=f"does not support before: {text}"):
            images_of(pictures, graph, dp.TrainTransform(before=[step]))

    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        Image.new("L", (40, 40)).save(tmp_path / name / "0.png")
    masks = dp.Manifest.from_masks(tmp_path / "images", tmp_path / "masks")
    with pytest.raises(dp.ConfigError, match="before moves the pixels of an image, but not its ma"):
        images_of(masks, BACKENDS["torch"], dp.TrainTransform(before=STEPS), batch_size=1)
