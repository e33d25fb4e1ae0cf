"""Every step that programs for classification have: what becomes of it, on which loaders, and how
far pixels and draws are from the library's. docs/steps.md says so.
"""

import warnings
from collections import Counter

import pytest
import torch
from library_steps import CASES, LARGE, SMALL, SQUARE, Case, draw_pictures, outcome_of
from step_figures import differences, distance_of_draws
from step_table import (
    ON_PURPOSE,
    PAGE,
    PLACES,
    chance,
    key_of,
    page_with,
    read_figures,
    why_different,
    write_tables,
)

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.registry import load_backend

FIGURES = read_figures()["cases"]
REWRITE = "docs/benchmarks/steps_cpu_2026-11-26/measure.py writes the tables anew"
GROUPS = list(dict.fromkeys((case.library, case.place) for case in CASES))
carried_out = [case for case in CASES if FIGURES.get(key_of(case), {}).get("kind") != "refused"]


@pytest.fixture(autouse=True)
def few_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        # albumentations' of ShiftScaleRotate
        warnings.simplefilter("ignore", UserWarning)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("steps")
    folders = {size: root / str(place) for place, size in enumerate((SMALL, SQUARE, LARGE))}
    for size, folder in folders.items():
        draw_pictures(folder, size, 32)
    return folders


def test_the_page_has_the_tables_of_the_figures():
    # the figures have more steps, which are refused now
    keys = list(map(key_of, CASES))
    assert keys == [key for key in FIGURES if key in keys], REWRITE
    assert PAGE.read_text() == page_with(write_tables(read_figures())), REWRITE
    assert {case.place for case in CASES} == set(PLACES)
    assert Counter(map(key_of, CASES)).most_common(1)[0][1] == 1
    # 100 where nothing is drawn
    counts = {FIGURES[key_of(case)]["draws"]["count"] for case in carried_out}
    assert counts == {100, 10_000}


@pytest.mark.few(4)
@pytest.mark.parametrize(("library", "place"), GROUPS)
def test_what_becomes_of_each_step_is_what_the_page_says(library, place, folders):
    for case in CASES:
        if (case.library, case.place) == (library, place):
            outcome, stated = outcome_of(case, folders[case.size]), FIGURES[key_of(case)]
            assert (outcome.kind, outcome.words) == (stated["kind"], stated["words"]), REWRITE
            # others there were when the figures were made
            assert outcome.loaders.items() <= stated["loaders"].items(), f"{case}: {REWRITE}"


@pytest.mark.parametrize("case", carried_out, ids=key_of)
def test_what_the_page_says_is_equal(case):
    """Only what differs on purpose differs, with its reason."""
    stated = FIGURES[key_of(case)]
    pixels, draws, why = stated["pixels"], stated["draws"], why_different(case, stated)
    # single pixels of a bicubic resize are clipped elsewhere (docs/pixels.md)
    assert pixels["torch"]["max"] <= 3 or why
    assert pixels["dali_cpu"]["mean"] <= 0.6 or why
    assert "dali" not in pixels or pixels["dali"]["mean"] <= 0.6 or why
    assert draws["distance"] <= chance(draws["count"]) or why


def test_what_differs_on_purpose_differs():
    names = {case.text for case in carried_out if why_different(case, FIGURES[key_of(case)])}
    assert names == set(ON_PURPOSE)


@pytest.mark.few(12)
@pytest.mark.slow
@pytest.mark.parametrize("case", carried_out, ids=key_of)
def test_pixels_and_draws_are_what_the_page_says(case, folders):
    folder, stated = folders[case.size], FIGURES[key_of(case)]
    outcome = outcome_of(case, folder)
    for loader, pixels in stated["pixels"].items():
        found = differences(case, outcome.transform, loader, folder)
        assert found["mean"] <= 1.2 * pixels["mean"] + 0.01
        assert found["max"] <= pixels["max"] + 1

    count = 200
    found = distance_of_draws(case, outcome.transform, folder, count)
    assert found <= stated["draws"]["distance"] + chance(count)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.library == "torchvision" and not case.is_of_v2],
    ids=key_of,
)
def test_both_versions_of_torchvision_become_the_same(case, folders):
    folder = folders[case.size]
    one, other = outcome_of(case, folder), outcome_of(case, folder, "torchvision.transforms")
    assert (one.kind, one.words, one.loaders) == (other.kind, other.words, other.loaders)


@pytest.mark.needs_cuda
def test_a_gpu_refuses_what_the_graph_on_a_cpu_refuses(folders):
    for case in carried_out:
        stated, device = FIGURES[key_of(case)]["loaders"]["dali"], torch.device("cuda", 0)
        _, transform = case.read()
        manifest = dp.Manifest.scan(folders[case.size], progress=False)
        config = dp.DaliConfig(device="gpu").on_cores(1)
        try:
            load_backend(config)(Job(transform, manifest, 4, device), config).close()
            is_refused = False
        except dp.ConfigError:
            is_refused = True
        assert is_refused == bool(stated), case


def test_a_case_of_several_steps_says_what_becomes_of_each(folders):
    case = Case("torchvision", "size", "Resize(50), RandomResizedCrop(40)")
    words = outcome_of(case, folders[LARGE]).words
    assert words.startswith("before: Resize; TrainTransform: size=40")


def test_it_is_said_that_hue_differs():
    for text, is_said in {"ColorJitter(hue=0.1)": True, "ColorJitter(0.4)": False}.items():
        (by,), _ = Case("torchvision", "after", text).read()
        assert ("hue is computed in floats" in by) == is_said
