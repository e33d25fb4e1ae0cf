"""Odd images on a GPU: delivered with the pixels of the others, or named, and never the end of the
process.

With OUT=FOLDER the figures are also written there, into odd_images.jsonl. What is tried runs in a
process of its own, so that a crash fails one test only.
"""

import numpy as np
import pytest
from figures import tell
from gpu_backends import GPU_BACKENDS, makes_pixels, needs_cuda
from in_child import Child
from odd_inputs import ODD

import dali_pipes as dp
from dali_pipes.measure.agreement import NVJPEG, PLAIN_UPSAMPLING, PixelBound

CONFIGS = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali_cpu": dp.DaliConfig(device="cpu"),
    **GPU_BACKENDS,
}
# tests/loader/test_inputs.py has them for all loaders on the CPU
ON_CPU = pytest.param("dali_cpu", marks=pytest.mark.slow)
NAMES = [ON_CPU, *needs_cuda("dali_gpu", "dali_gpu_regions")]
APPLYING_EXIF = [ON_CPU, *needs_cuda("dali_gpu", "dali_gpu_regions")]
LIMITS = {"dali_cpu": PixelBound(0.25, 2), "dali_gpu": NVJPEG, "dali_gpu_regions": PLAIN_UPSAMPLING}
DAMAGED = {
    "JPEG that states a larger height",
    "JPEG that states a smaller height",
    "JPEG without its last 2 bytes",
    "JPEG cut in half",
    "JPEG with flipped bits in its scan",
}  # decoders may each make something else of them


@pytest.fixture(scope="module")
def child():
    child = Child()
    yield child
    child.close()


def pixels(folder, config, exif="ignore"):
    """All images of a folder in one batch, or the sentence that names those that fail; None if a
    scan refuses one.
    """
    manifest = dp.Manifest.scan(folder, progress=False)
    if manifest.problems:
        return None
    transform = dp.EvalTransform(size=64, resize=72, dtype="uint8", exif=exif)
    with dp.build_loader(manifest, config, transform=transform, batch_size=len(manifest)) as loader:
        try:
            return next(iter(loader)).images.cpu().numpy().astype(int)
        except dp.BadSampleError as error:
            return str(error)


@pytest.mark.few
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_image_is_delivered_or_named(child, tmp_path, odd, name):
    (tmp_path / "a").mkdir()
    # where all images of a batch fail, none is to blame
    ODD["baseline JPEG 4:4:4"](tmp_path / "a/0.jpg")
    ODD[odd](tmp_path / "a/x.jpg")
    found = child(pixels, tmp_path, CONFIGS[name])
    if not isinstance(found, np.ndarray):
        tell("odd_images", image=odd, loader=name, outcome="named" if found else "not in the plan")
        assert found is None or "1 of 2 images cannot be loaded" in found
        return
    assert found.shape == (2, 3, 64, 64)
    expected = child(pixels, tmp_path, CONFIGS["torch"])
    if not isinstance(expected, np.ndarray):
        tell("odd_images", image=odd, loader=name, outcome="delivered, though torch names it")
        return
    difference = np.abs(found[1] - expected[1])
    mean, p99 = float(difference.mean()), float(np.percentile(difference, 99))
    tell(
        "odd_images",
        image=odd,
        loader=name,
        outcome="delivered",
        mean=mean,
        p99=p99,
        max=int(difference.max()),
    )
    if odd not in DAMAGED and name in LIMITS and makes_pixels(name):
        assert mean <= LIMITS[name].mean and p99 <= LIMITS[name].p99, f"mean {mean:.3f}, p99 {p99}"


def orientations(child, folder, name, exif):
    """The eight images of one folder, each stored in another orientation."""
    (folder / "a").mkdir(exist_ok=True)
    for number in range(1, 9):
        ODD[f"JPEG with EXIF orientation {number}"](folder / f"a/{number}.jpg")
    return child(pixels, folder, CONFIGS[name], exif)


@pytest.mark.compares_pixels
@pytest.mark.parametrize("name", APPLYING_EXIF)
@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_orientation_is_that_of_pillow(child, tmp_path, name, exif):
    found, expected = (orientations(child, tmp_path, each, exif) for each in (name, "torch"))
    assert (np.abs(found - expected).mean(axis=(1, 2, 3)) <= LIMITS[name][0]).all()


@pytest.mark.slow
def test_orientation_makes_a_difference(child, tmp_path):
    stored, upright = (
        orientations(child, tmp_path, "dali_cpu", exif) for exif in ("ignore", "apply")
    )
    assert (np.abs(stored - upright).mean(axis=(1, 2, 3)) > 5).tolist() == [False] + [True] * 7
