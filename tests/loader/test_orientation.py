"""Orientation is read once, by the scan, and every backend obeys it: for each container, each way
to state it, and each value.
"""

import itertools

import numpy as np
import pytest
from odd_inputs import BACKENDS
from reference import Reference, read
from turned_files import WAYS, stored, turned

import dali_pipes as dp

ALL = {**BACKENDS, "dali graph": dp.DaliConfig(device="cpu", resize="dali")}
SIZE = 96  # DALI's own resize differs at the outermost pixels only
# of 255, on average, for lossy files and a resize of its own; what is turned wrongly is off by more
TOLERANCE = 4


@pytest.fixture(scope="module", params=WAYS)
def files(request, tmp_path_factory):
    """A scan of the files of all eight values, and what it should find."""
    write, expected = WAYS[request.param]
    folder = tmp_path_factory.mktemp("turned")
    (folder / "a").mkdir()
    for number in range(1, 9):
        (folder / f"a/{number}.jpg").write_bytes(write(number))
    return dp.Manifest.scan(folder, verify="full", progress=False), [
        expected(number) for number in range(1, 9)
    ]


def test_what_is_turned_wrongly_is_farther_off_than_the_tolerance():
    scenes = [
        np.asarray(turned(stored(), number).resize((SIZE, SIZE), 2)).astype(int)
        for number in range(1, 9)
    ]
    assert (
        min(np.abs(one - other).mean() for one, other in itertools.combinations(scenes, 2))
        > 2 * TOLERANCE
    )


def test_a_scan_finds_the_orientation_and_the_stored_size(files):
    manifest, expected = files
    assert not manifest.problems
    assert manifest.take_orientations(np.arange(8)).tolist() == expected
    assert set(map(tuple, manifest.take_sizes(np.arange(8)).tolist())) == {stored().shape[:2]}


@pytest.mark.few
@pytest.mark.parametrize(
    ("backend", "exif"),
    [(name, exif) for exif in ("ignore", "apply") for name in ALL],
)
def test_every_backend_obeys_it(files, backend, exif):
    manifest, orientations = files
    transform = dp.EvalTransform(size=(SIZE, SIZE), resize=(SIZE, SIZE), dtype="uint8", exif=exif)
    with dp.build_loader(manifest, ALL[backend], transform=transform, batch_size=8) as loader:
        made = next(iter(loader)).images.permute(0, 2, 3, 1).numpy().astype(int)
    for image, orientation in zip(made, orientations, strict=True):
        scene = turned(stored(), orientation if exif == "apply" else 1).resize((SIZE, SIZE), 2)
        assert np.abs(image - np.asarray(scene)).mean() < TOLERANCE


@pytest.mark.few
@pytest.mark.parametrize("backend", ["torch", "dali", "dali whole", "dali graph", "torchvision"])
def test_regions_of_turned_images_are_those_of_the_upright_ones(files, backend):
    """Random crops: each is a region of the stored image, found by way of the upright one."""
    manifest, orientations = files
    reference = Reference.of(
        dp.TrainTransform,
        size=64,
        exif="apply",
        scale=(0.1, 0.5),
        vertical_flip=0.5,
        mean=(0.4, 0.5, 0.3),
        std=(0.2, 0.3, 0.25),
    )
    with dp.build_loader(
        manifest, ALL[backend], transform=reference.transform, batch_size=8, seed=4
    ) as loader:
        made, planned = next(iter(loader)).images, loader.plan.batch(0, 0)
    pictures = [
        turned(np.asarray(read(manifest.path(sample))), orientations[sample])
        for sample in planned.ids.tolist()
    ]
    difference = reference.steps(made, reference(planned, pictures)[0])
    assert difference.mean(axis=(1, 2, 3)).max() < 1
