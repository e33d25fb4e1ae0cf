"""The table of odd inputs in docs/inputs.md: every line is what the backends do now. UPDATE_DOCS=1 writes it anew."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from odd_inputs import BACKENDS, ODD

import dali_pipes as dp

DOC = Path(__file__).parents[2] / "docs" / "inputs.md"
COLUMNS = ["input", "scan", "scan verify=full", *BACKENDS]


def pixels(manifest, config, exif):
    transform = dp.EvalTransform(size=64, resize=72, dtype="uint8", exif=exif)
    with dp.build_loader(manifest, config, transform=transform, batch_size=1) as loader:
        try:
            return next(iter(loader)).images.cpu().numpy().astype(int)
        except dp.BadSampleError as error:
            assert len(error.bad_samples) == 1
            return None
        except RuntimeError as error:  # a batch of one file, which Pillow can decode
            assert any(manifest.name(0) in note for note in error.__notes__)
            return None


def outcome(manifest, config, reference, exif="ignore"):
    """ "equal" within the contract's tolerance, "differs by the mean", or "named" for an image that BadSampleError names."""
    got = pixels(manifest, config, exif)
    if got is None:
        return "named"
    if reference is None:
        return "delivered"
    mean = np.abs(got - reference).mean()
    return "equal" if mean <= 0.25 else f"differs ({mean:.0f} of 255)" if mean >= 1 else "differs (< 1 of 255)"


def row(name, folder) -> list[str]:
    (folder / "a").mkdir()
    ODD[name](folder / "a/x.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scans = [dp.Manifest.scan(folder, verify=verify, progress=False) for verify in ("header", "full")]
        message = [
            "; ".join(problem.split("(")[0].split(";")[0].strip() for _, problem in scan.problems) or "usable" for scan in scans
        ]
        if not len(scans[0]):
            return [name, *message, *["not in the plan"] * len(BACKENDS)]
        reference = pixels(scans[0], BACKENDS["torch"], "ignore")
        first = "named" if reference is None else "reference"
        return [name, *message, first, *(outcome(scans[0], BACKENDS[each], reference) for each in list(BACKENDS)[1:])]


def documented() -> dict[str, list[str]]:
    lines = [line for line in DOC.read_text().splitlines() if line.startswith("| ")] if DOC.exists() else []
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {line[0]: line for line in cells if line[0] in ODD}


HUGE = "400-megapixel PNG of 389 KB"  # seconds


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name == HUGE else name for name in ODD])
def test_the_table_says_what_happens(tmp_path, name):
    found = row(name, tmp_path)
    if os.environ.get("UPDATE_DOCS") == "1":
        (DOC.parent / ".inputs").mkdir(exist_ok=True)
        (DOC.parent / ".inputs" / f"{list(ODD).index(name):03d}").write_text("| " + " | ".join(found) + " |\n")
    else:
        assert documented().get(name) == found


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_orientation_is_the_same_for_every_backend(tmp_path, orientation, exif):
    (tmp_path / "a").mkdir()
    ODD[f"JPEG with EXIF orientation {orientation}"](tmp_path / "a/x.jpg")
    manifest = dp.Manifest.scan(tmp_path, progress=False)
    reference = pixels(manifest, BACKENDS["torch"], exif)
    able = [config for name, config in BACKENDS.items() if exif == "ignore" or name != "tfdata"]
    assert {outcome(manifest, config, reference, exif) for config in able} == {"equal"}
    plain = pixels(manifest, BACKENDS["torch"], "ignore")
    assert (np.abs(reference - plain).mean() > 5) == (exif == "apply" and orientation > 1)
