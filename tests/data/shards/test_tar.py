"""The walk over a tar's headers, against tarfile on good archives, and on ones that lie."""

import contextlib
import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_shards import add

from dali_pipes.data.shards.tar import BLOCK, DamagedError, list_images, members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@contextlib.contextmanager
def opened(content, folder):
    (folder / "x.tar").write_bytes(content)
    number = os.open(folder / "x.tar", os.O_RDONLY)
    try:
        yield number, len(content)
    finally:
        os.close(number)


def archive(*entries, format="gnu", **options) -> bytes:
    """A tar of (name, content) or (name, content, fields)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[format], **options) as tar:
        for name, content, *fields in entries:
            add(tar, name, content, **(fields[0] if fields else {}))
    return file.getvalue()


def found(content, tmp_path):
    """(member, label) of what can be used, and {member: problem} of what cannot."""
    with opened(content, tmp_path) as (number, total):
        every = list(list_images(number, total))
    for part in every:
        assert part.offset >= 0 and part.offset + part.length <= total
    good = [(os.fsdecode(part.member), part.label) for part in every if not part.problem]
    return good, {os.fsdecode(part.member): part.problem for part in every if part.problem}


def header(change, name=b"000.jpg", size=b"00000000005\0", kind=b"0") -> bytes:
    """A header block with one field written over, and a checksum that is right again."""
    block = bytearray(BLOCK)
    block[: len(name)], block[124 : 124 + len(size)], block[156:157], block[257:265] = (
        name,
        size,
        kind,
        b"ustar\00000",
    )
    for at, value in change.items():
        block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="/"),
    min_size=1,
    max_size=130,
).filter(lambda name: name not in (".", ".."))


@given(
    st.lists(
        st.tuples(NAMES, st.binary(max_size=1500)), max_size=6, unique_by=lambda entry: entry[0]
    ),
    st.sampled_from(["gnu", "pax"]),
)
def test_members_are_those_that_tarfile_finds(tmp_path_factory, entries, form):
    folder = tmp_path_factory.mktemp("tar")
    with opened(archive(*entries, format=form), folder) as (number, total):
        mine = [(os.fsdecode(each.name), each.offset, each.size) for each in members(number, total)]
        content = [os.pread(number, size, offset) for _, offset, size in mine]
    with tarfile.open(folder / "x.tar") as theirs:
        assert mine == [(each.name, each.offset_data, each.size) for each in theirs]
    assert content == [each for _, each in entries]


@pytest.mark.parametrize("form", FORMATS)
def test_a_long_name(tmp_path, form):
    name = "/".join(["a" * 40] * 3) + "/000.jpg"
    assert found(archive((name, b"x"), (name[:-4] + ".cls", b"3"), format=form), tmp_path) == (
        [(name, 3)],
        {},
    )


def test_what_gnu_tar_writes(tmp_path):
    (tmp_path / "in" / ("d" * 120)).mkdir(parents=True)
    for number in range(3):
        (tmp_path / "in" / ("d" * 120) / f"{number}.jpg").write_bytes(b"x" * number)
        (tmp_path / "in" / ("d" * 120) / f"{number}.cls").write_text(f"{number}\n")
    (tmp_path / "in" / ("d" * 120) / "9.jpg").symlink_to("/etc/passwd")
    os.link(tmp_path / "in" / ("d" * 120) / "1.jpg", tmp_path / "in" / ("d" * 120) / "8.jpg")
    for form in ("gnu", "pax"):
        subprocess.run(
            [
                "tar",
                "--sort=name",
                f"--format={form}",
                "-cf",
                tmp_path / "x.tar",
                "-C",
                tmp_path / "in",
                ".",
            ],
            check=True,
        )
        good, problems = found((tmp_path / "x.tar").read_bytes(), tmp_path)
        assert good == [(f"./{'d' * 120}/{number}.jpg", number) for number in range(3)]
        assert [name.rsplit("/")[-1] for name in problems] == [
            "8.jpg",
            "9.jpg",
        ] and "a link" in str(problems)


def test_samples_are_made_as_webdataset_makes_them(tmp_path):
    content = archive(
        ("b/000.jpg", b"x"),
        ("b/000.cls", b" 7\n"),
        ("b/000.txt", b"a caption"),
        ("a/000.JPEG", b"x"),  # the same key in another folder is another one
        ("a/000.json", b'{"label": 8, "caption": "c"}'),
        ("001.png", b"x"),
        ("002.cls", b"2"),  # image and label need not be neighbours
        ("001.json", b'{"cls": 1}'),
        ("002.webp", b"x"),
        ("002.seg.png", b"a mask"),
    )
    assert found(content, tmp_path) == (
        [("b/000.jpg", 7), ("a/000.JPEG", 8), ("001.png", 1), ("002.webp", 2)],
        {"002.seg.png": "a second image of one key; 002.webp is used"},
    )


ODD = {
    "no label": ([("0.jpg", b"x")], {"0.jpg": "no label: no .cls or .json"}),
    "label without an image": ([("0.cls", b"1")], {"0.cls": "no image of this key (.cls)"}),
    "a member that is no image": (
        [("README.md", b"hello")],
        {"README.md": "no image of this key (.md)"},
    ),
    "a member without an extension": (
        [("README", b"hello"), ("a/LICENSE", b"hello"), ("b/0", b"x"), ("b/0.txt", b"x")],
        {
            "README": "no image of this key (no extension)",
            "a/LICENSE": "no image of this key (no extension)",
            "b/0": "no image of this key (no extension, .txt)",
        },
    ),
    "an image without an extension": (
        [("0", b"x"), ("0.cls", b"1")],
        {"0": "no image of this key (no extension, .cls)"},
    ),
    "extensions of several dots": (
        [(f"0.v2.{number}.jpg", b"x") for number in range(6)],
        {
            f"0.v2.{number}.jpg": "(.v2.0.jpg, .v2.1.jpg, .v2.2.jpg, .v2.3.jpg, .v2.4.jpg, …); a "
            "key ends at the first dot"
            for number in range(6)
        },
    ),
    "a GIF": ([("0.gif", b"x"), ("0.cls", b"1")], {"0.gif": "no image of this key (.gif, .cls)"}),
    "label that is a name": (
        [("0.jpg", b"x"), ("0.cls", b"tench")],
        {"0.jpg": "its .cls holds no class number (b'tench')"},
    ),
    "negative label": ([("0.jpg", b"x"), ("0.cls", b"-1")], {"0.jpg": "holds no class number"}),
    "empty label": ([("0.jpg", b"x"), ("0.cls", b"")], {"0.jpg": "holds no class number"}),
    "label of many digits": (
        [("0.jpg", b"x"), ("0.cls", b"9" * 5000)],
        {"0.jpg": "holds no class number"},
    ),
    "json without one": (
        [("0.jpg", b"x"), ("0.json", b'{"text": 1}')],
        {"0.jpg": "its .json holds no class number"},
    ),
    "json that is none": (
        [("0.jpg", b"x"), ("0.json", b"{")],
        {"0.jpg": "its .json holds no class number"},
    ),
    "json of a bool": (
        [("0.jpg", b"x"), ("0.json", b'{"label": true}')],
        {"0.jpg": "its .json holds no class number"},
    ),
    "json that is deep": (
        [("0.jpg", b"x"), ("0.json", b"[" * 100_000)],
        {"0.jpg": "its .json holds no class number"},
    ),
    "json that is large": (
        [("0.jpg", b"x"), ("0.json", b" " * 2**21)],
        {"0.jpg": "its .json is too long (2,097,152 bytes"},
    ),
    "path traversal": (
        [("../../0.jpg", b"x"), ("../../0.cls", b"1")],
        {"../../0.jpg": "leads out", "../../0.cls": "leads out"},
    ),
    "absolute name": ([("/etc/0.jpg", b"x")], {"/etc/0.jpg": "its path leads outside the archive"}),
    "symbolic link": (
        [("0.jpg", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
        {"0.jpg": "a link"},
    ),
    "hard link": (
        [("0.jpg", b"", {"type": tarfile.LNKTYPE, "linkname": "1.jpg"})],
        {"0.jpg": "a link"},
    ),
    "device": ([("0.jpg", b"", {"type": tarfile.CHRTYPE})], {"0.jpg": "not a regular file"}),
    "FIFO": ([("0.jpg", b"", {"type": tarfile.FIFOTYPE})], {"0.jpg": "not a regular file"}),
    "sparse file": (
        [("0.jpg", b"x", {"pax_headers": {"GNU.sparse.major": "1"}})],
        {"0.jpg": "a sparse file"},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_members_are_named_and_cost_no_other(tmp_path, name):
    entries, expected = ODD[name]
    form = "pax" if name == "sparse file" else "gnu"
    good, problems = found(
        archive(
            ("a.jpg", b"x"),
            ("a.cls", b"5"),
            *entries,
            ("z.jpg", b"x"),
            ("z.cls", b"6"),
            format=form,
        ),
        tmp_path,
    )
    assert good == [("a.jpg", 5), ("z.jpg", 6)]
    assert problems.keys() == expected.keys() and all(
        text in problems[each] for each, text in expected.items()
    )


def test_duplicates(tmp_path):
    content = archive(
        ("0.jpg", b"x"), ("0.cls", b"1"), ("0.jpg", b"y"), ("0.cls", b"2"), ("0.png", b"z")
    )
    with opened(content, tmp_path) as (number, total):
        every = list(list_images(number, total))
    assert [(each.member, each.label) for each in every if not each.problem] == [(b"0.jpg", 1)]
    problems = [(each.member, each.problem.split(";")[0]) for each in every if each.problem]
    again = "a second member of this name"
    assert problems == [
        (b"0.jpg", again),
        (b"0.cls", again),
        (b"0.png", "a second image of one key"),
    ]


GOOD = archive(("a.jpg", b"x" * 700), ("a.cls", b"5"), ("b.jpg", b"y" * 700), ("b.cls", b"6"))
END = 2 * BLOCK
FIRST = GOOD[: 5 * BLOCK]  # a.jpg and a.cls
BROKEN = {
    "cut off in an image": (
        GOOD[:3500],
        "b.jpg has 700 bytes by its header, and the archive ends after 428",
    ),
    "cut off in a header": (GOOD[:2800], "stops in the middle of a header (at byte 2,800)"),
    "cut off between members": (FIRST, "stops without the mark of its end (at byte 2,560)"),
    "garbage between members": (
        FIRST + os.urandom(BLOCK) + GOOD,
        "damaged: no header there (at byte 2,560)",
    ),
    "size beyond the end": (
        FIRST + header({}, size=b"77777777777\0") + bytes(END),
        "8,589,934,591 bytes by its header",
    ),
    "binary size": (
        FIRST + header({124: b"\x80" + b"\xff" * 11}) + bytes(END),
        "bytes by its header, and the archive ends",
    ),
    "negative size": (FIRST + header({124: b"\xff" * 12}) + bytes(END), "(at byte 2,560"),
    "size that is no number": (
        FIRST + header({124: b"-0000000005\0"}) + bytes(END),
        "(at byte 2,560",
    ),
    "size with an underscore": (
        FIRST + header({124: b"0000_000005\0"}) + bytes(END),
        "(at byte 2,560",
    ),
    "name of 8 GiB": (
        FIRST + header({}, size=b"77777777777\0", kind=b"L") + bytes(END),
        "a name of 8,589,934,591 bytes",
    ),
    "pax header of 8 GiB": (
        FIRST + header({}, size=b"77777777777\0", kind=b"x") + bytes(END),
        "a name of 8,589,934,591 bytes",
    ),
    "pax header that lies": (
        FIRST + header({}, size=b"00000000012\0", kind=b"x") + b"99 path=x\n".ljust(BLOCK, b"\0"),
        "a pax header",
    ),
    "pax size below zero": (
        FIRST
        + header({}, size=b"00000000013\0", kind=b"x")
        + b"11 size=-5\n".ljust(BLOCK, b"\0")
        + header({})
        + bytes(END),
        "a size that is not a number",
    ),
    "pax size beyond the end": (
        FIRST
        + header({}, size=b"00000000017\0", kind=b"x")
        + b"15 size=999999\n".ljust(BLOCK, b"\0")
        + header({})
        + bytes(END),
        "has 999,999 bytes by its header",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_archive_gives_what_comes_before(tmp_path, name):
    content, message = BROKEN[name]
    good, problems = found(content, tmp_path)
    assert good == [("a.jpg", 5)]
    assert message in problems[""]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x1f\x8b" + bytes(600), "compressed with gzip"), (b"x" * 1000, "it is not a tar")],
)
def test_what_is_no_tar(tmp_path, content, message):
    good, problems = found(content, tmp_path)
    assert not good and message in problems[""]


def test_archives_one_after_the_other_are_read_to_the_end(tmp_path):
    more = archive(("c.jpg", b"x"), ("c.cls", b"7"))
    assert found(GOOD + bytes(3 * 2**20) + more, tmp_path) == (
        [("a.jpg", 5), ("b.jpg", 6), ("c.jpg", 7)],
        {},
    )
    good, problems = found(GOOD + b"rubbish" * 100, tmp_path)
    assert good == [("a.jpg", 5), ("b.jpg", 6)] and "(at byte 10,240" in problems[""]


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=40))
def test_whatever_is_written_over_an_archive_nothing_outside_it_is_read(tmp_path_factory, at, junk):
    content = bytearray(GOOD)
    content[at : at + len(junk)] = junk
    found(bytes(content), tmp_path_factory.mktemp("junk"))


@given(st.binary(max_size=3 * BLOCK))
def test_junk_is_no_archive(tmp_path_factory, junk):
    with (
        opened(junk, tmp_path_factory.mktemp("junk")) as (number, total),
        contextlib.suppress(DamagedError),
    ):
        list(members(number, total))
