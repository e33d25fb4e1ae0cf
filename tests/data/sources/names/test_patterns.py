"""Patterns of shards, splits in their names, and what systems leave beside and inside them."""

import io
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from make_shards import add
from PIL import Image
from s3_server import s3_server

from dali_pipes import Manifest, ManifestError
from dali_pipes.cli.hydra import spell_word
from dali_pipes.data.sources.names import Pattern, expand_braces, is_pattern, split_of
from dali_pipes.data.sources.shards import list_shards
from dali_pipes.tools.scan.run import index


def encoded():
    file = io.BytesIO()
    Image.new("RGB", (8, 6)).save(file, "JPEG")
    return file.getvalue()


JPEG = encoded()


def tar(file, members=(("0.jpg", JPEG), ("0.cls", b"0"))):
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, content in members:
            add(archive, name, content)


def parquet(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": [{"bytes": JPEG, "path": None}], "label": [0]}), file)


def shards(folder, *names):
    for name in names:
        parquet(folder / name) if name.endswith(".parquet") else tar(folder / name)
    return folder


def opened(source, **options):
    made = Manifest.open(source, progress=False, **options)
    return sorted({made.name(number).split("/")[-2].split("#")[0] for number in range(len(made))})


TARS = [f"train-{number:04d}.tar" for number in range(12)]


@pytest.mark.few
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("train-*.tar", TARS),
        ("train-000?.tar", TARS[:10]),
        ("train-*[01].tar", [TARS[0], TARS[1], TARS[10], TARS[11]]),
        ("train-{0000..0010}.tar", TARS[:11]),
        ("train-{0010..0000..5}.tar", [TARS[0], TARS[5], TARS[10]]),
        ("train-{0003,0001}.tar", [TARS[1], TARS[3]]),
        ("{train,train}-{0000..0001}.tar", TARS[:2]),
        ("train-00{0..1}[01].tar", [TARS[0], TARS[1], TARS[10], TARS[11]]),
        ("train*", TARS),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_pattern_names_shards(pattern, names, scheme, tmp_path, cache):
    shards(tmp_path / "d", *TARS, "val-0000.tar")
    (tmp_path / "d" / "classes.json").write_text('["a"]')
    made = Manifest.open(f"{scheme}{tmp_path}/d/{pattern}", progress=False)
    assert [os.fsdecode(name) for name in made.shards.names] == names and made.classes == ["a"]
    assert str(made.root) == f"{scheme}{tmp_path}/d"
    assert Manifest.scan(f"{scheme}{tmp_path}/d/{pattern}", progress=False).table.equals(made.table)
    assert made.read(0).tobytes() == JPEG


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    "pattern", ["train-*.parquet", "train-*", "train-{00..01}-of-02.parquet", "train-{00,01}*"]
)
def test_a_pattern_names_parquet_files(pattern, scheme, tmp_path, cache):
    shards(
        tmp_path,
        "train-00-of-02.parquet",
        "train-01-of-02.parquet",
        "test-00-of-01.parquet",
        "._train-00.parquet",
    )
    assert opened(f"{scheme}{tmp_path}/{pattern}") == [
        "train-00-of-02.parquet",
        "train-01-of-02.parquet",
    ]


def test_a_pattern_names_tfrecord_files(tmp_path):
    files = [
        f"imagenet2012-{split}.tfrecord-0000{n}-of-00002"
        for split in ("train", "validation")
        for n in range(2)
    ]
    for name in files:
        (tmp_path / name).touch()
    for pattern in (
        "imagenet2012-train.tfrecord-*",
        "imagenet2012-train*",
        "*-train.tfrecord-{00000..00001}-of-00002",
    ):
        assert list(list_shards(tmp_path / pattern)[1]) == list(map(os.fsencode, files[:2]))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "train-{0000..0015}.tar",
            (
                r"4 of the 16 names in it are missing: train-0012.tar, train-0013.tar, "
                r"train-0014.tar, …"
            ),
        ),
        ("{train,dev}-*.tar", r"1 of the 2 names in it are missing: dev-\*.tar; its folder has "),
        ("nothing-*.tar", r"matches nothing; its folder has train-0000.tar, .*, … \(13 in all\)"),
        ("nothing-{0..1}.tar", r"2 of the 2 names in it are missing"),
        ("train-{0..9999999}.tar", r"stands for 10,000,000 names; use \*"),
        ("train-{0,{1,2}}.tar", r"braces within braces"),
        ("val*", r"none is a shard"),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_a_pattern_does_not_find_is_said(pattern, message, scheme, tmp_path):
    shards(tmp_path, *TARS)
    (tmp_path / "val.csv").touch()
    with pytest.raises(ManifestError, match=message):
        Manifest.open(f"{scheme}{tmp_path}/{pattern}", progress=False)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_pattern_of_folders_is_refused_by_name(scheme, tmp_path):
    shards(tmp_path / "a", "0.tar")
    for source in (f"{tmp_path}/*/0.tar", f"{tmp_path}/{{a,b}}/*.tar"):
        with pytest.raises(
            ManifestError,
            match=r"only read in the last part, the names of the files.*Manifest.concat",
        ):
            Manifest.open(f"{scheme}{source}", progress=False)


def test_a_pattern_of_two_kinds_is_refused(tmp_path):
    shards(tmp_path, "a-0.tar", "a-0.parquet")
    with pytest.raises(
        ManifestError, match=r"shards of two kinds, such as a-0.tar and a-0.parquet"
    ):
        Manifest.open(tmp_path / "a-*", progress=False)
    with pytest.raises(ManifestError, match=r"/gone is missing"):
        Manifest.open(tmp_path / "gone" / "a-*", progress=False)
    with pytest.raises(ManifestError, match=r"Manifest.open or Manifest.from_table"):
        Manifest.scan(tmp_path / "*.parquet", progress=False)


@pytest.mark.few
@pytest.mark.parametrize("name", ["a*", "x[1]", "{a,b}", "what?"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_exists_is_taken_literally(name, scheme, tmp_path, cache):
    shards(tmp_path / name, "0.tar", "1.tar")
    shards(tmp_path / "axe", "2.tar")
    assert opened(f"{scheme}{tmp_path}/{name}") == ["0.tar", "1.tar"]
    assert opened(f"{scheme}{tmp_path}/{name}/0.tar") == ["0.tar"]
    assert opened(f"{scheme}{tmp_path}/{name}/*.tar") == ["0.tar", "1.tar"]
    shards(tmp_path / "files", f"{name}.tar", "other.tar")
    assert opened(f"{scheme}{tmp_path}/files/{name}.tar") == [f"{name}.tar"]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{2..-1}", ["2", "1", "0", "-1"]),
        ("{a..c}{1,}", ["a1", "a", "b1", "b", "c1", "c"]),
        ("{x}-{}", ["{x}-{}"]),
        ("${a,b}", ["${a,b}"]),
    ],
)
def test_braces_are_those_of_a_shell(name, names):
    assert expand_braces(Pattern(Path("/"), name)) == names
    assert is_pattern(f"/tmp/{name}") == (names != [name])


def test_a_cache_is_of_one_pattern_and_new_files_are_noticed(tmp_path):
    shards(tmp_path / "d", *TARS[:2], "extra-0.tar")
    folder, pattern = tmp_path / "d", tmp_path / "d" / "train-*.tar"
    for _ in range(2):
        assert opened(folder, cache_dir=tmp_path / "c") == ["extra-0.tar", *TARS[:2]]
        assert opened(pattern, cache_dir=tmp_path / "c") == TARS[:2]
    assert len(list((tmp_path / "c").glob("*.arrow"))) == 2
    shards(tmp_path / "d", TARS[2])
    assert opened(pattern, cache_dir=tmp_path / "c") == TARS[:3]
    (tmp_path / "d" / TARS[0]).unlink()
    assert opened(pattern, cache_dir=tmp_path / "c") == TARS[1:3]
    for source, names in (
        (pattern, TARS[1:3]),
        (folder, ["extra-0.tar", *TARS[1:3]]),
        (pattern, TARS[1:3]),
    ):
        # a cache that is given for both
        made = Manifest.scan(source, cache=tmp_path / "one.arrow", progress=False)
        assert sorted(map(os.fsdecode, made.shards.names)) == names


SPLITS = {
    "tar": ["in1k-train-0000.tar", "in1k-train-0001.tar", "in1k-validation-00.tar"],
    "tfrecord": [
        f"imagenet2012-{split}.tfrecord-00000-of-00001" for split in ("train", "validation")
    ],
    "parquet": ["train-00000-of-00001.parquet", "test-00000-of-00001.parquet"],
}


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("kind", SPLITS)
@pytest.mark.parametrize("source", ["", "/*"])
def test_files_of_several_splits_are_refused(kind, scheme, source, tmp_path, cache):
    shards(tmp_path, *SPLITS[kind])
    with pytest.raises(ManifestError, match="holds 2 splits, which must not be mixed") as caught:
        Manifest.open(f"{scheme}{tmp_path}{source}", progress=False)
    assert "\n" not in str(caught.value)


def test_an_index_that_mixed_splits_is_not_read(tmp_path, cache):
    shards(tmp_path, "a-0.tar", "a-1.tar")
    Manifest.open(tmp_path, progress=False).save_index()
    made = Manifest.load(tmp_path / "index.arrow")
    for old, new in (("a-0.tar", "train-0.tar"), ("a-1.tar", "val-0.tar")):
        (tmp_path / old).rename(tmp_path / new)
    names = pa.array([b"train-0.tar", b"val-0.tar"], made.table["path"].type)
    renamed = made.table.set_column(made.table.column_names.index("path"), "path", names)
    (tmp_path / "index.arrow").unlink()
    versions = dict.fromkeys(("train-0.tar", "val-0.tar"), (0, 0))
    Manifest.from_rows(Path(), made.classes, renamed).with_versions(versions).save(
        tmp_path / "index.arrow"
    )
    with pytest.raises(ManifestError, match="holds 2 splits"):
        Manifest.open(f"file://{tmp_path}", progress=False)
    assert opened(f"file://{tmp_path}/train-*") == ["train-0.tar"]


@settings(max_examples=60, deadline=None)
@given(
    names=st.sets(
        st.tuples(st.sampled_from(["train", "val", "test", "x", "Validation"]), st.integers(0, 30)),
        min_size=1,
    )
)
def test_either_all_shards_are_read_or_every_split_is_named(names, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    files = [f"set-{word}-{number:02d}.tar" for word, number in names]
    for file in files:
        (folder / file).touch()
    splits = {split_of(file) for file in files} - {None}
    if len(splits) < 2:
        assert sorted(map(os.fsdecode, list_shards(folder)[1])) == sorted(files)
    else:
        with pytest.raises(ManifestError) as caught:
            list_shards(folder)
        counts = {split: sum(split_of(file) == split for file in files) for split in splits}
        assert all(f"{count} of {split}" in str(caught.value) for split, count in counts.items())


def test_what_systems_leave_beside_shards_is_none(tmp_path, cache):
    folder = shards(tmp_path / "d", "0.tar")
    for name in ("._0.tar", "._0.parquet", ".hidden.tar"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    for name in ("__MACOSX", ".ipynb_checkpoints", "@eaDir", "lost+found"):
        (folder / name).mkdir()
    for source in (folder, f"file://{folder}", folder / "*"):
        made = Manifest.open(source, progress=False)
        assert len(made) == 1 and not made.problems
    assert made.save_index()  # of all that are data


def test_what_macos_puts_into_a_tar_is_no_image_and_no_problem(tmp_path):
    copies = [
        ("._0.jpg", b"x"),
        ("__MACOSX/._1.jpg", b"x"),
        ("__MACOSX/2.jpg", b"x"),
        ("a/._3.cls", b"x"),
        ("a/Thumbs.db", b"x"),
    ]
    tar(
        tmp_path / "0.tar",
        [
            ("./0.jpg", JPEG),
            ("./0.cls", b"0"),
            (".data/1.jpg", JPEG),
            (".data/1.cls", b"1"),
            *copies,
        ],
    )
    made = Manifest.open(tmp_path, progress=False)
    assert not made.problems and [Path(made.name(each)).name for each in range(len(made))] == [
        "0.jpg",
        "1.jpg",
    ]


def test_masks_skip_what_systems_leave(tmp_path):
    for folder in ("images", "masks"):
        for name in ("1.png", "._2.png", "@eaDir/1.png"):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 6)).save(tmp_path / folder / name)
    made = Manifest.from_masks(tmp_path / "images", tmp_path / "masks", progress=False)
    assert len(made) == 1 and not made.problems
    assert {each.kind: (each.number, each.unit) for each in made.omissions} == {
        "housekeeping": (2, "file"),
        "housekeeping folders": (2, "file"),
    }


def test_an_index_of_a_pattern_that_leaves_files_out_is_refused(tmp_path, cache, monkeypatch):
    shards(tmp_path, *TARS[:2], "val-0.tar")
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path.parent / f"{tmp_path.name}_cache"))
    with pytest.raises(ManifestError, match="holds 2 splits"):
        list_shards(tmp_path)
    with pytest.raises(
        ManifestError,
        match=r"1 of the 3 files there are not in this manifest, such as val-0.tar.*Manifest.save",
    ):
        index(f"file://{tmp_path}/train-*", "header")
    (tmp_path / "val-0.tar").unlink()
    index(f"file://{tmp_path}/train-*", "header")
    assert opened(f"file://{tmp_path}") == TARS[:2]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.train=/x/train-{0000..0010}.tar", "/x/train-{0000..0010}.tar"),
        ("data.val=s3://b/{a,b}-*.tar", "s3://b/{a,b}-*.tar"),
        ("data.root=~/set", str(Path.home() / "set")),
        ("data.train=/x/[0-9].tar", "/x/[0-9].tar"),
        ("data.train=${data.root}/t-{0..1}.tar", "${data.root}/t-{0..1}.tar"),
        ("data.train=${data.root}/train", "${data.root}/train"),
        ('data.train="/x/{0..1}"', "/x/{0..1}"),
        ("data.train=/x/train-*.tar", "/x/train-*.tar"),
    ],
)
def test_the_command_line_takes_patterns(word, value):
    assert OverridesParser.create().parse_override(spell_word(word, "train")).value() == value


def test_a_sweep_takes_patterns():
    parsed = OverridesParser.create().parse_override(
        spell_word("data.train=/a/{0,1}.tar,/b/{2..3}.tar", "train", sweeps=True)
    )
    assert list(parsed.sweep_string_iterator()) == ['"/a/{0,1}.tar"', '"/b/{2..3}.tar"']
    for word in ("data.train=choice(/a,[b])", "data.train=[a,b]", "lr={a}"):
        assert spell_word(word, "train", sweeps=True) == word


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_patterns_and_splits_in_s3(tmp_path, cache):
    names = [*TARS[:3], "val-0000.tar", "._val-0000.tar"]
    shards(tmp_path / "set", *names)
    shards(tmp_path / "hf", "train-0.parquet", "train-1.parquet", "test-0.parquet")
    with s3_server({"patterns/set": tmp_path / "set", "patterns/hf": tmp_path / "hf"}):
        where = "s3://images/patterns/set"
        assert (
            opened(f"{where}/train-*") == TARS[:3]
            and opened(f"{where}/train-{{0000..0001}}.tar") == TARS[:2]
        )
        assert opened("s3://images/patterns/hf/train-*") == ["train-0.parquet", "train-1.parquet"]
        for source in (where, f"{where}/", f"{where}/*.tar"):
            with pytest.raises(
                ManifestError,
                match=r"holds 2 splits.*: 3 of train and 1 of val",
            ):
                Manifest.open(source, progress=False)
        with pytest.raises(
            ManifestError,
            match=r"2 of the 5 names in it are missing: train-0003.tar, train-0004.tar",
        ):
            Manifest.open(f"{where}/train-{{0000..0004}}.tar", progress=False)
        with pytest.raises(
            ManifestError,
            match=r"1 of the 4 files there are not in this manifest, such as val-0000.tar",
        ):
            index(f"{where}/train-*", "header")
        with pytest.raises(ManifestError, match="only read in the last part"):
            Manifest.open("s3://images/*/set/train-0000.tar", progress=False)
        saved = tmp_path / "train.arrow"
        Manifest.open(f"{where}/train-*", progress=False).save(saved)
        assert opened(saved) == TARS[:3]
