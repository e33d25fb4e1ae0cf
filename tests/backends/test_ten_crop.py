"""Five and ten crops of each image, on every backend: torchvision's."""

import numpy as np
import pytest
import torch
from gpu_backends import needs_cuda
from PIL import Image
from torchvision.transforms import functional as F

import dali_pipes as dp
from dali_pipes.plan.transforms import base

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "torch_torchvision": dp.TorchConfig(num_workers=0, decoder="torchvision"),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "dali_cpu_graph": dp.DaliConfig(device="cpu", resize="dali", num_threads=2),
    "dali_gpu": dp.DaliConfig(device="gpu"),
}
SIZES = [(90, 121), (64, 64), (75, 50)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("crops"), np.random.default_rng(0)
    (root / "a").mkdir()
    for at, (height, width) in enumerate(SIZES):
        small = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(root / "a" / f"{at}.png")
    return dp.Manifest.scan(root)


def theirs_of(manifest, resize, shape, vertical_flip):
    made = []
    for sample in range(len(manifest)):
        picture = Image.open(manifest.root / manifest.name(sample))
        picture = picture if resize is None else F.resize(picture, resize)
        made.append(
            torch.stack(list(map(F.pil_to_tensor, F.ten_crop(picture, shape, vertical_flip))))
        )
    return torch.stack(made).float()


@pytest.mark.compares_pixels
@pytest.mark.parametrize(
    "name", [*(each for each in BACKENDS if each != "dali_gpu"), *needs_cuda("dali_gpu")]
)
@pytest.mark.parametrize(
    ("resize", "vertical_flip"), [(41, False), (None, False), ((50, 33), True)], ids=str
)
def test_crops_are_torchvisions(name, resize, vertical_flip, pictures):
    # odd numbers of pixels are cropped away, which the mirror image leaves on the other side
    shape = (24, 32)
    expected = theirs_of(pictures, resize, shape, vertical_flip)
    for mirrored in (True, False):
        transform = dp.TenCropTransform(
            size=shape,
            resize=resize,
            dtype="uint8",
            mirrored=mirrored,
            vertical_flip=vertical_flip,
        )
        device = "cuda" if name == "dali_gpu" else "cpu"
        with dp.build_loader(
            pictures, BACKENDS[name], transform=transform, batch_size=3, device=device
        ) as loader:
            batch = next(iter(loader)).to("cpu")
        count = 10 if mirrored else 5
        assert batch.ids.tolist() == [0, 1, 2] and batch.views["crops"].shape == (
            3,
            count,
            3,
            *shape,
        )
        assert torch.equal(batch.images, batch.views["crops"][:, 0])
        difference = (batch.views["crops"].float() - expected[:, :count]).abs()
        if resize is None or name == "torch":
            assert not difference.any()
        assert difference.mean() < 0.3 and difference.quantile(0.99) <= 2


def test_images_smaller_than_a_crop_are_refused(pictures):
    transform = dp.TenCropTransform(size=60, resize=None)
    with pytest.raises(
        dp.ConfigError,
        match=r"size: 1 of 3 images .* a height of 60",
    ):
        dp.build_loader(pictures, BACKENDS["torch"], transform=transform, batch_size=1)
    with pytest.raises(dp.ConfigError, match=r"3 of 3 images .* the first is .*a/0.png"):
        dp.build_loader(
            pictures,
            BACKENDS["torch"],
            transform=dp.TenCropTransform(size=60, resize=50),
            batch_size=1,
        )


def test_sizes_are_looked_at_some_at_a_time(pictures, monkeypatch):
    """Those of all images would take 16 bytes each."""
    monkeypatch.setattr(base, "_BLOCK", 2)
    taken, take = [], dp.Manifest.take_sizes

    def count(manifest, ids, **options):
        taken.append(len(ids))
        return take(manifest, ids, **options)

    monkeypatch.setattr(dp.Manifest, "take_sizes", count)
    with pytest.raises(dp.ConfigError, match=r"3 of 3 images .* the first is .*a/0.png"):
        dp.TenCropTransform(size=90, resize=50).check(pictures)
    assert taken == [2, 1]
