"""The tables of odd inputs in docs/inputs.md: every line is what the backends do now. UPDATE_DOCS=1
writes them anew.
"""

import itertools
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from built_files import EVERY, many
from odd_inputs import BACKENDS

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
    """ "equal" within the contract's tolerance, "differs by the mean", or "named" for an image that
    BadSampleError names.
    """
    got = pixels(manifest, config, exif)
    if got is None:
        return "named"
    if reference is None:
        return "delivered"
    mean = np.abs(got - reference).mean()
    return (
        "equal"
        if mean <= 0.25
        else f"differs ({mean:.0f} of 255)"
        if mean >= 1
        else "differs (< 1 of 255)"
    )


def row(name, folder) -> list[str]:
    """What happens to a file: in all columns, or in the only one that says something.

    A file that both scans refuse for one reason has just that; one that both find usable, and from
    which all backends make equal pixels, has its name alone.
    """
    (folder / "a").mkdir()
    EVERY[name](folder / "a/x.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scans = [
            dp.Manifest.scan(folder, verify=verify, progress=False) for verify in ("header", "full")
        ]
        message = [
            "; ".join(problem.split("(")[0].split(";")[0].strip() for _, problem in scan.problems)
            or "usable"
            for scan in scans
        ]
        if not len(scans[0]):
            return [name, *dict.fromkeys(message)]
        reference = pixels(scans[0], BACKENDS["torch"], "ignore")
        first = "named" if reference is None else "reference"
        others = [outcome(scans[0], BACKENDS[each], reference) for each in list(BACKENDS)[1:]]
        whole = [*message, first, *others]
        return [name] if {*whole} == {"usable", "reference", "equal"} else [name, *whole]


def documented() -> dict[str, list[str]]:
    lines = (
        [line for line in DOC.read_text().splitlines() if line.startswith("| ")]
        if DOC.exists()
        else []
    )
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {line[0]: line for line in cells if line[0] in EVERY}


HUGE = "400-megapixel PNG of 389 KB"  # seconds


@pytest.mark.few(24)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == HUGE else name for name in EVERY]
)
def test_the_table_says_what_happens(tmp_path, name):
    found = row(name, tmp_path)
    if os.environ.get("UPDATE_DOCS") == "1":
        (DOC.parent / ".inputs").mkdir(exist_ok=True)
        (DOC.parent / ".inputs" / f"{list(EVERY).index(name):03d}").write_text(
            "| " + " | ".join(found) + " |\n"
        )
    else:
        assert documented().get(name) == found


@pytest.mark.slow
def test_loaders_agree_on_whatever_a_full_scan_finds_usable(tmp_path):
    """No pair of them differs by more than the contract's mean of 0.25 of 255 on any of more than
    three hundred files.
    """
    (tmp_path / "a").mkdir()
    for number, content in enumerate(many()):
        (tmp_path / f"a/{number:03d}.jpg").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manifest = dp.Manifest.scan(tmp_path, verify="full", workers=1, progress=False)
    usable = manifest.subset(np.arange(len(manifest)))
    assert len(manifest) > 250 and len(manifest) + len(manifest.problems) > 300
    transform = dp.EvalTransform(size=64, resize=72, dtype="uint8")
    made = {}
    for name, config in BACKENDS.items():
        with dp.build_loader(usable, config, transform=transform, batch_size=32) as loader:
            made[name] = np.concatenate([batch.images.numpy() for batch in loader]).astype(int)
    for one, other in itertools.combinations(made, 2):
        means = np.abs(made[one] - made[other]).mean(axis=(1, 2, 3))
        assert means.max() <= 0.25, (one, other, manifest.name(int(means.argmax())), means.max())
