"""Images of 16 bits a channel: their values by NumPy, with TorchConfig, beside images of 8 bits."""

import tarfile
from io import BytesIO

import numpy as np
import pytest
import torch
from built_files import png
from wide_images import colors, expected, write_wide

import dali_pipes as dp

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
# no library's, so that a default in its place is seen
NORMALIZED = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.3, 0.25)}
ONE = {"mean": (0.3,), "std": (0.4,), "channels": 1}
BOUND = 2 / 65535
BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_workers": dp.TorchConfig(num_workers=1, decoder="torchvision"),
    "torch_on_device": dp.TorchConfig(num_workers=0, normalize_on="device"),
}
TRANSFORMS = {
    "train": dp.TrainTransform(size=48, vertical_flip=0.5, **NORMALIZED),
    "eval": dp.EvalTransform(resize=40, size=36, **NORMALIZED),
    "gray": dp.TrainTransform(size=40, **ONE),
    "upright": dp.EvalTransform(resize=40, size=36, exif="apply", **NORMALIZED),
    "bicubic": dp.TrainTransform(size=48, interpolation="bicubic", **NORMALIZED),
    "cropped, padded": dp.RandomCropTransform(size=(50, 64), pad_if_needed=True, **NORMALIZED),
    "ten crops": dp.TenCropTransform(size=24, resize=30, **NORMALIZED),
    "views": dp.ViewsTransform(
        views={"large": {"count": 2, "size": 40}, "small": {"size": 24}}, **NORMALIZED
    ),
}
MORE = {
    "erased": dp.TrainTransform(
        size=48, dtype="fp16", augment=[{"name": "TimmRandomErasing", "p": 1.0, "mode": "pixel"}]
    ),
    "before": dp.TrainTransform(
        size=32,
        exif="apply",
        before=[
            {"name": "Resize", "size": 50},
            {"name": "RandomRotation", "degrees": 30, "fill": [9, 99, 199]},
        ],
    ),
}
OTHERS = {
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_graph": dp.DaliConfig(device="cpu", resize="dali"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("wide")
    (root / "a").mkdir()
    return root, write_wide(root / "a")


@pytest.fixture(scope="module")
def manifest(folder):
    return dp.Manifest.scan(folder[0], bits=16, progress=False)


def load(manifest, config, transform, **options):
    options = {"shuffle": False, "device": "cpu", "max_bad_fraction": 1, **options}
    options.setdefault("last_batch", "partial")
    return dp.build_loader(manifest, config, transform=transform, batch_size=8, **options)


def groups_of(batch):
    """The images of each group, (V, N, C, H, W)."""
    if not batch.views:
        return [batch.images[None]]
    return [images.transpose(0, 1) for images in batch.views.values()]


@pytest.mark.few
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("backend", ["torch", "torch_workers"])
def test_wide_images_are_what_numpy_makes_of_them(folder, manifest, backend, name):
    transform, worst = TRANSFORMS[name], 0.0
    given = ONE if transform.channels == 1 else NORMALIZED
    mean, std = (np.reshape(given[each], (-1, 1, 1)) for each in ("mean", "std"))
    with load(manifest, BACKENDS[backend], transform) as loader:
        for step, batch in enumerate(loader):
            planned = loader.plan.batch(0, step)
            turns = manifest.take_orientations(planned.ids) * (transform.exif == "apply")
            for images, views in zip(groups_of(batch), planned.groups, strict=True):
                for made, view in zip(images, views, strict=True):
                    for at, sample_id in enumerate(planned.ids.tolist()):
                        stored = folder[1][manifest.path(sample_id).name]
                        if stored.dtype == np.uint8:
                            continue
                        wanted = expected(
                            stored,
                            turns[at],
                            view,
                            at,
                            transform.channels,
                            transform.interpolation,
                        )
                        worst = max(worst, np.abs(made[at].numpy() * std + mean - wanted).max())
    assert worst <= BOUND


BEFORE = {
    "rotation": {"name": "RandomRotation", "degrees": 40, "interpolation": "bilinear"},
    "rotation, filled": {"name": "RandomRotation", "degrees": 40, "fill": [200, 10, 90]},
    "perspective": {"name": "RandomPerspective", "p": 1.0, "interpolation": "bicubic"},
    "resize": {"name": "Resize", "size": 33},
    "plain resize": {"name": "Resize", "size": 33, "antialias": False},
    "plain bicubic": {
        "name": "Resize",
        "size": 33,
        "antialias": False,
        "interpolation": "bicubic",
    },
    "pad": {"name": "Pad", "padding": [3, 5, 7, 9], "fill": [200, 10, 90]},
    "reflected": {"name": "Pad", "padding": 4, "padding_mode": "reflect"},
}


@pytest.mark.parametrize("step", BEFORE)
@pytest.mark.parametrize("backend", ["torch", "torch_workers"])
def test_steps_before_the_crop_are_those_of_8_bits(tmp_path, backend, step):
    """Multiples of 257 are what 8 bits hold too, and there each step rounds to 8 bits."""
    made = {}
    for depth in (8, 16):
        (tmp_path / str(depth) / "a").mkdir(parents=True)
        for at in range(4):
            kind = 2 if at % 2 else 0  # colors, or gray
            eight = (colors(60, 80, 3 if kind else 1, at) >> 8).astype(np.uint8)
            wide = png(eight.astype(">u2") * 257, kind, 16)
            content = wide if depth == 16 else png(eight, kind)
            (tmp_path / str(depth) / "a" / f"{at}.png").write_bytes(content)
        manifest = dp.Manifest.scan(tmp_path / str(depth), bits=16, progress=False)
        transform = dp.TrainTransform(size=24, before=[BEFORE[step]], **PLAIN)
        with load(manifest, BACKENDS[backend], transform) as loader:
            made[depth] = next(iter(loader)).images * 255
    difference = made[16] - made[8]
    assert difference.abs().max() <= 2.5 and difference.abs().mean() > 0
    # where Pillow interpolates a warp of bytes it cuts fractions off: half a step on average
    is_cut = step in ("rotation", "perspective")
    assert abs(difference.mean() - 0.5 * is_cut) <= 0.15


@pytest.mark.parametrize("backend", BACKENDS)
def test_images_of_8_bits_beside_wide_ones_are_those_of_any_manifest(folder, manifest, backend):
    alone = dp.Manifest.scan(folder[0], progress=False)
    beside = manifest.filter("format == 'PNG'")
    assert not alone.has_wide and len(alone) == len(beside) == 2
    both = dp.Manifest.concat([beside, manifest.filter("format != 'PNG'")])

    for transform in TRANSFORMS["eval"], dp.EvalTransform(resize=40, size=36, dtype="fp16"):
        with load(alone, BACKENDS[backend], transform) as loader:
            usual = torch.cat([batch.images for batch in loader])
        with load(both, BACKENDS[backend], transform) as loader:
            mixed = torch.cat([batch.images for batch in loader])
        assert len(mixed) == 14 and torch.equal(mixed[:2], usual)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_is_fp32_rounded_once(manifest, backend, dtype):
    made = {}
    for each in ("fp32", dtype):
        transform = dp.TrainTransform(
            size=48, dtype=each, memory_format="channels_last", augment=["RandomErasing"]
        )
        with load(manifest, BACKENDS[backend], transform) as loader:
            made[each] = next(iter(loader)).images
    assert torch.equal(made["fp32"].to(made[dtype].dtype), made[dtype])
    assert made[dtype].is_contiguous(memory_format=torch.channels_last)


def test_resizing_without_antialiasing_and_to_the_nearest_pixel(folder, manifest):
    names = [manifest.path(at).name for at in range(len(manifest))]
    at = names.index("1_rgb.png")
    stored = folder[1]["1_rgb.png"]  # 46 × 44
    nearest = dp.EvalTransform(
        resize=(23, 22), size=(23, 22), interpolation="nearest-exact", **PLAIN
    )
    plain = dp.EvalTransform(resize=(23, 22), size=(23, 22), antialias=False, **PLAIN)
    one = manifest.subset(np.array([at]))
    with load(one, BACKENDS["torch"], nearest) as loader:
        made = next(iter(loader)).images[0].permute(1, 2, 0).numpy()
    # at half the size the centre of a pixel lies between two, and the second one is taken
    assert np.abs(made * 65535 - stored[1::2, 1::2]).max() <= 2
    with load(one, BACKENDS["torch"], plain) as loader:
        made = next(iter(loader)).images[0].permute(1, 2, 0).numpy()
    fours = stored.astype(np.float64).reshape(23, 2, 22, 2, 3).mean((1, 3))
    assert np.abs(made * 65535 - fours).max() <= 2


@pytest.mark.parametrize("backend", ["torch", "torch_workers"])
def test_functions_of_normalized_images_get_wide_ones(manifest, backend):
    transform = dp.TrainTransform(
        size=48, augment=[dp.Augment(lambda image: image * 2, where="normalized")], **PLAIN
    )
    with load(manifest, BACKENDS[backend], transform) as loader:
        doubled = next(iter(loader)).images
    with load(manifest, BACKENDS[backend], dp.TrainTransform(size=48, **PLAIN)) as loader:
        assert torch.equal(doubled, next(iter(loader)).images * 2)


@pytest.mark.parametrize("name", ["train", "views", "ten crops", "erased", "before"])
def test_wide_images_are_equal_bit_for_bit_with_every_option(manifest, name):
    made = []
    for config in BACKENDS.values():
        with load(manifest, config, (TRANSFORMS | MORE)[name], seed=3) as loader:
            made.append(list(loader))
    for one, other in (
        (one, other) for each in made[1:] for one, other in zip(made[0], each, strict=True)
    ):
        wide = torch.from_numpy(manifest.take_wide(one.ids.numpy()))
        assert wide.any() and torch.equal(one.ids, other.ids)
        for images, others in zip(groups_of(one), groups_of(other), strict=True):
            assert torch.equal(images[:, wide], others[:, wide])


def test_wide_images_in_shards_and_their_resume(tmp_path):
    (tmp_path / "a").mkdir()
    write_wide(tmp_path / "a")
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for at, file in enumerate(sorted((tmp_path / "a").iterdir())):
            shard.add(file, f"{at:03d}{file.suffix}")
            label = tarfile.TarInfo(f"{at:03d}.cls")
            label.size = 1
            shard.addfile(label, BytesIO(b"0"))
    manifest = dp.Manifest.scan(tmp_path / "0.tar", bits=16, progress=False)
    assert manifest.has_wide and len(manifest) == 14

    transform, made = TRANSFORMS["train"], []
    with load(manifest, BACKENDS["torch"], transform) as loader:
        made = [batch.images for batch in loader]
        state = loader.state_dict() | {"epoch": 0, "samples": 8}
    with load(manifest, BACKENDS["torch_workers"], transform) as loader:
        loader.load_state_dict(state)
        (rest,) = list(loader)
    wide = manifest.take_wide(rest.ids.numpy())
    assert torch.equal(rest.images[wide], made[1][wide])


def test_functions_that_draw_from_generators_of_the_process_take_wide_images(manifest):
    def noisy(image):
        return image + float(np.random.rand())

    transform = dp.TrainTransform(size=32, augment=[dp.Augment(noisy, where="normalized")])
    with load(manifest, BACKENDS["torch"], transform) as loader:
        next(iter(loader))


@pytest.mark.parametrize("backend", OTHERS)
def test_other_loaders_refuse_wide_images(manifest, backend):
    with pytest.raises(dp.ConfigError, match=r"images of 16 bits a channel.*use .*TorchConfig"):
        load(manifest, OTHERS[backend], TRANSFORMS["eval"])
    # but not a part without them
    with load(manifest.filter("format == 'PNG'"), OTHERS[backend], TRANSFORMS["eval"]):
        pass


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "uint8"}, "dtype is uint8"),
        ({"augment": ["TrivialAugmentWide"]}, "augment: TrivialAugmentWide"),
        ({"augment": [{"name": "ColorJitter", "hue": 0.1}]}, "augment: ColorJitter"),
        ({"augment": [dp.Augment(torch.flip)]}, "augment: "),
        ({"before": [dp.Augment(torch.flip)]}, "before: "),
    ],
    ids=["uint8", "table", "policy", "function", "before"],
)
def test_what_is_defined_for_bytes_is_refused(manifest, options, named):
    transform = dp.TrainTransform(size=32, **options)
    with pytest.raises(dp.ConfigError, match=f"{named}.*16 bits a channel.*without bits=16"):
        load(manifest, BACKENDS["torch"], transform)


@pytest.mark.few
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("damage", ["cut", "8 bits", "another size", "gone"])
def test_a_wide_file_that_has_changed_is_named(tmp_path, backend, damage):
    (tmp_path / "a").mkdir()
    write_wide(tmp_path / "a")
    manifest = dp.Manifest.scan(tmp_path, bits=16, progress=False)
    bad = tmp_path / "a" / "1_rgb.png"
    if damage == "cut":
        bad.write_bytes(bad.read_bytes()[:-2000])
    elif damage == "gone":
        bad.unlink()
    else:
        other = "1_eight.png" if damage == "8 bits" else "0_rgb.png"
        bad.write_bytes((tmp_path / "a" / other).read_bytes())

    with (
        load(manifest, BACKENDS[backend], TRANSFORMS["eval"]) as loader,
        pytest.raises(dp.BadSampleError, match=r"1_rgb\.png"),
    ):
        list(loader)
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2}
    with load(manifest, BACKENDS[backend], TRANSFORMS["eval"], **options) as loader:
        assert sum(map(len, loader)) == len(manifest)
        assert [path.rpartition("/")[2] for _, path, _ in loader.bad_samples] == ["1_rgb.png"]
