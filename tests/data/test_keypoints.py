"""Which keypoints change places on a flip, by their names or as they are given."""

import json

import pytest
from PIL import Image

import dali_pipes as dp
from dali_pipes import ConfigError, ManifestError
from dali_pipes.data.objects import Keypoints, Targets
from dali_pipes.plan.transforms.base import check_flips

PAIRS = [
    *(
        ("left_eye", "right_eye"),
        ("L_eye", "R_eye"),
        ("l_ankle", "r_ankle"),
        ("LeftEye", "RightEye"),
        ("leftEye", "rightEye"),
    ),
    *(
        ("eye_l", "eye_r"),
        ("eye.L", "eye.R"),
        ("LEFT EYE", "RIGHT EYE"),
        ("upright_left", "upright_right"),
        ("lefteye", "righteye"),
    ),
    *(
        ("LEye", "REye"),
        ("left", "right"),
        ("hand-left-1", "hand-right-1"),
        ("bright_l", "bright_r"),
        ("Left_Eye", "right_eye"),
    ),
    *(("EyeLeft", "EyeRight"), ("eyeL", "eyeR"), ("left_1", "right_1"), ("L1", "R1")),
]
ALONE = [
    *(
        ("upright", "tail"),
        ("bright_spot", "tail"),
        ("1", "2"),
        ("nose", "mouth"),
        ("alight", "aright"),
        ("upleft_x", "upright_x"),
    ),
    *(
        ("left_eye", "right_ear"),
        ("leftover", "tail"),
        ("ball", "barr"),
        ("lip", "rip"),
        ("left_a", "left_b"),
        ("links", "rechts"),
    ),
]


@pytest.mark.parametrize("names", PAIRS)
def test_whole_words_for_left_and_right_make_pairs(names):
    assert Keypoints.from_names(["nose", *names]).flipped == [0, 2, 1]


@pytest.mark.parametrize("names", ALONE)
def test_parts_of_words_and_words_for_something_else_do_not(names):
    assert Keypoints.from_names(["nose0", *names]).flipped == [0, 1, 2]


def scan(folder, names, **options):
    Image.new("RGB", (100, 80)).save(folder / "a.png")
    one = {
        "id": 1,
        "image_id": 1,
        "category_id": 1,
        "bbox": [10, 10, 80, 60],
        "keypoints": [20, 50, 2, 80, 50, 2, 9, 9, 2][: 3 * len(names)],
    }
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [one]}
    (folder / "x.json").write_text(
        json.dumps(content | {"categories": [{"id": 1, "name": "face", "keypoints": names}]})
    )
    return dp.Manifest.from_coco(folder / "x.json", progress=False, **options)


def xs(manifest, **options):
    transform = dp.LetterboxTransform(size=(80, 100), **{"flip": 1.0} | options)
    with dp.build_loader(
        manifest,
        dp.TorchConfig(num_workers=0),
        transform=transform,
        batch_size=1,
        device="cpu",
        last_batch="partial",
    ) as loader:
        return next(iter(loader))["keypoints"][0][0, :, 0].tolist()


def test_pairs_that_are_given_are_those_and_no_others(tmp_path, caplog):
    assert xs(scan(tmp_path, ["1", "2"], flip_pairs=[["1", "2"]])) == [19, 79]
    assert xs(scan(tmp_path, ["left_eye", "right_eye"], flip_pairs=[])) == [79, 19]
    assert xs(
        dp.Manifest.open(
            tmp_path / "x.json",
            targets=Targets(flip_pairs=[("left_eye", "right_eye")]),
            progress=False,
        )
    ) == [
        19,
        79,
    ]
    assert not caplog.text
    made = scan(tmp_path, ["a", "b"], flip_pairs=[])
    made.save(tmp_path / "m.parquet")
    made.save(tmp_path / "m.arrow")
    for each in (
        dp.Manifest.load(tmp_path / "m.parquet"),
        dp.Manifest.load(tmp_path / "m.arrow"),
        dp.Manifest.concat([made, made]),
    ):
        xs(each)
    assert all(record.levelname == "INFO" for record in caplog.records)


def test_a_flip_of_keypoints_without_pairs_is_warned_of_by_name(tmp_path, caplog):
    manifest = scan(tmp_path, ["1", "2"])
    xs(manifest, flip=0.0)
    assert not caplog.text
    assert xs(manifest) == [79, 19]
    assert (
        "the transform flips images, and the keypoints 1, 2 keep their names; name the pairs "
        "with flip_pairs"
    ) in caplog.text


@pytest.mark.parametrize("names", [["left_eye", "right_ear"], ["Left", "nose"], ["leftx", "nose"]])
def test_a_flip_of_keypoints_whose_names_have_a_side_and_no_pair_is_refused(tmp_path, names):
    manifest = scan(tmp_path, names)
    with pytest.raises(
        ConfigError, match=f"of the keypoints {names[0]}.* none becomes another one.*flip_pairs"
    ):
        xs(manifest)
    with pytest.raises(ConfigError, match="none becomes another one"):
        xs(manifest, flip=0.0, vertical_flip=1.0)
    xs(manifest, flip=0.0)


def test_one_that_is_left_over_is_warned_of(tmp_path, caplog):
    manifest = scan(tmp_path, ["left_eye", "right_eye", "left_ear"])
    check_flips(manifest, dp.LetterboxTransform(size=80))
    assert "the keypoints left_ear keep their names" in caplog.text


@pytest.mark.parametrize(
    "pairs", [[["a", "b", "c"]], [["a", "b"], ["b", "c"]], [["a", "a"]], "ab", ["ab"], [[1, 2]], 5]
)
def test_pairs_that_are_none_are_refused(tmp_path, pairs):
    with pytest.raises(ConfigError, match="flip_pairs"):
        scan(tmp_path, ["a", "b"], flip_pairs=pairs)
    with pytest.raises(ConfigError, match="flip_pairs"):
        Targets(flip_pairs=pairs)


def test_a_pair_of_another_name_is_refused(tmp_path):
    with pytest.raises(ManifestError, match="flip_pairs has 'c', and the keypoints are a, b"):
        scan(tmp_path, ["a", "b"], flip_pairs=[["a", "c"]])
