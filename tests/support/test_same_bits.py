import shutil

import numpy as np
import pytest
import same_bits
from same_bits import AFTER, BEFORE, DIFFERENT, EQUAL, FAILED, REFUSED, REPO, Child, judge, main
from same_bits_cases import list_cases
from same_bits_child import write
from same_bits_images import SOURCES, WRITERS


def answer(folder, error=None, refused=False, **tensors):
    folder.mkdir(exist_ok=True)
    return {
        "at": folder,
        "tensors": {
            name: write(values, folder / f"{name}.npy") for name, values in tensors.items()
        },
        "error": error and {"text": error, "refused": refused},
    }


def judged(tmp_path, before, after):
    sides = {"before": before, "after": after}
    return judge([answer(tmp_path / side, **values) for side, values in sides.items()])


PIXELS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CHANGED = np.where(PIXELS == 7, np.float32(7.5), PIXELS)
ZEROS, NEGATIVE = np.zeros((2, 3), np.float16), -np.zeros((2, 3), np.float16)


@pytest.mark.parametrize(
    ("before", "after", "kind", "text"),
    [
        ({"images": PIXELS}, {"images": PIXELS.copy()}, EQUAL, ""),
        (
            {"ids": ZEROS, "images": PIXELS},
            {"ids": ZEROS, "images": CHANGED},
            DIFFERENT,
            "images: 1 of 24 values differ, by 0.5 at most (1 of 2 tensors differ)",
        ),
        (
            {"images": ZEROS},
            {"images": NEGATIVE},
            DIFFERENT,
            "images: 6 of 6 values differ, by 0 at most (1 of 1 tensors differ)",
        ),
        (
            {"images": PIXELS},
            {"images": PIXELS.astype(np.float64)},
            DIFFERENT,
            "images: dtype was float32, is float64 (1 of 1 tensors differ)",
        ),
        (
            {"images": PIXELS},
            {"images": PIXELS[:1]},
            DIFFERENT,
            "images: shape was [2, 3, 4], is [1, 3, 4] (1 of 1 tensors differ)",
        ),
        (
            {"images": PIXELS},
            {"images": np.asfortranarray(PIXELS)},
            DIFFERENT,
            "images: strides was [48, 16, 4], is [4, 8, 24] (1 of 1 tensors differ)",
        ),
        (
            {"images": PIXELS},
            {"images": PIXELS, "sizes": ZEROS},
            DIFFERENT,
            "sizes: only after (1 of 2 tensors differ)",
        ),
        ({"error": "E: no", "refused": True}, {"images": PIXELS}, AFTER, "E: no"),
        ({"images": PIXELS}, {"error": "E: no", "refused": True}, BEFORE, "E: no"),
        ({"error": "E: a", "refused": True}, {"error": "E: b", "refused": True}, REFUSED, "E: a"),
        ({"images": PIXELS}, {"error": "E: no"}, DIFFERENT, "before: no error; after: E: no"),
        (
            {"error": "E: no", "refused": True},
            {"error": "E: bug"},
            FAILED,
            "before: E: no; after: E: bug",
        ),
    ],
)
def test_what_differs_is_named_and_counted(tmp_path, before, after, kind, text):
    assert judged(tmp_path, before, after) == (kind, text)


def test_every_source_is_in_a_case():
    assert {case.source for case in list_cases().values()} == SOURCES.keys()
    assert {source.folder for source in SOURCES.values()} == WRITERS.keys()


def test_a_process_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(same_bits, "SECONDS", 0)
    child = Child(REPO, tmp_path, "before")
    child.ask("train / torch")
    process = child._process
    assert child.answer()["error"] == {
        "text": "the process took more than 0 s",
        "refused": False,
    }
    assert process.poll() == -9


@pytest.mark.slow
def test_a_checkout_is_equal_to_itself(capsys):
    only = "^(train / dali|train, own mean / torch)$"
    assert main([str(REPO), str(REPO), "--only", only]) == 0
    captured = capsys.readouterr()
    assert captured.out == "equal: 2, different: 0\n"
    assert captured.err == "2 of 2 cases, 0 differ\n"


@pytest.mark.slow
def test_a_changed_copy_differs_where_it_was_changed(tmp_path, capsys):
    shutil.copytree(REPO / "dali_pipes", tmp_path / "dali_pipes")

    def change(module, old, new):
        file = tmp_path / "dali_pipes" / module
        assert file.read_text().count(old) == 1
        file.write_text(file.read_text().replace(old, new))

    # the red values of every normalized image, an end of the process, and a public name
    change("plan/transforms/base.py", "(0.485, 0.456, 0.406)", "(0.486, 0.456, 0.406)")
    change(
        "plan/transforms/detection.py",
        "from dataclasses import",
        "import os\nfrom dataclasses import",
    )
    change(
        "plan/transforms/detection.py",
        "        ratio = (",
        "        os._exit(3)\n        ratio = (",
    )
    change("__init__.py", '    "CutMix",\n', "")

    cases = (
        "train, own mean / torch",
        "evaluation / torch",
        "letterbox / torch",
        "CutMix, uint8 / torch",
    )
    assert main([str(REPO), str(tmp_path), "--only", f"^({'|'.join(cases)})$"]) == 1
    # of the first batch of 10 images, of which each has 44 × 44 red values
    red = "epoch 0, batch 0, images: 19,360 of 58,080 values differ, by 0.00436687 at most"
    ended = "before: no error; after: the process ended with status 3"
    assert capsys.readouterr().out.splitlines() == [
        f"different: evaluation / torch: {red} (3 of 10 tensors differ)",
        f"different: letterbox / torch: {ended}",
        "only before: CutMix, uint8 / torch: LacksName: dali_pipes has no CutMix",
        "equal: 1, different: 2, only before: 1",
    ]
