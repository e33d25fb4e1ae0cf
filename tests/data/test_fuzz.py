"""Whatever bytes a file holds, looking at it ends with an answer: never a crash, never an
exception.
"""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import dali_pipes as dp
from dali_pipes.data.image_files.decoders import FORMATS
from dali_pipes.data.image_files.headers import ScanOptions, read_header
from dali_pipes.data.table.schema import SCHEMA


def good(form: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if form in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    Image.fromarray(noise).save(buffer, form, **options)
    return buffer.getvalue()


GOOD = {form: good(form) for form in (*FORMATS, "GIF")}
scratch = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(
    form=st.sampled_from(sorted(GOOD)),
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=20),
    cut=st.integers(1, 3000),
)
@scratch
def test_mutated_images(tmp_path, form, changes, cut):
    mutated = bytearray(GOOD[form])
    for place, value in changes:
        mutated[place % len(mutated)] = value
    check_header(tmp_path / "x.jpg", bytes(mutated[:cut]))


@given(
    st.binary(max_size=400),
    st.sampled_from(
        [
            b"",
            b"\xff\xd8\xff\xe0",
            b"\xff\xd8\xff\xe1\x00\x20Exif\0\0",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF\0\0\0\0WEBP",
            b"II*\0",
            b"BM",
        ]
    ),
)
@scratch
def test_arbitrary_bytes(tmp_path, junk, magic):
    check_header(tmp_path / "x.jpg", magic + junk)


def check_header(path, content):
    path.write_bytes(content)
    for verify in ("header", "full"):
        header = read_header(path, ScanOptions(verify=verify))
        assert header.problem or (
            header.height > 0 and header.width > 0 and header.format in FORMATS
        )
        assert header.orientation in range(1, 9)
        assert header.problem is None or "\n" not in header.problem.strip()


CELLS = {
    "path": st.one_of(st.none(), st.binary(max_size=20)),
    "label": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "height": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "problem": st.one_of(st.none(), st.text(max_size=5)),
    "jpeg": st.one_of(st.none(), st.text(max_size=5)),
    "member": st.one_of(st.none(), st.binary(max_size=5)),
    "content": st.one_of(st.none(), st.binary(max_size=5)),
    **dict.fromkeys(
        ("offset", "bytes", "file_bytes"), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
    ),
}
DEFAULTS = {
    "path": b"a.jpg",
    "format": "JPEG",
    "jpeg": "4:2:0",
    "decoded": False,
    "member": b"",
    "content": b"",
}


@pytest.mark.slow
@given(st.data(), st.integers(1, 4))
@scratch
def test_a_forged_manifest_is_refused_or_safe(tmp_path, data, rows):
    """Any cells: either ManifestError, or a manifest whose every sample has a class, a size, a
    path, and bytes inside its file.
    """
    columns = {name: [DEFAULTS.get(name, 1)] * rows for name in SCHEMA.names}
    columns["problem"] = [None] * rows
    for name in data.draw(st.sets(st.sampled_from(sorted(CELLS)))):
        columns[name] = [data.draw(CELLS[name]) for _ in range(rows)]
    table = pa.table(columns, schema=SCHEMA).replace_schema_metadata(
        {b"dali_pipes": b'{"root": "/r", "classes": ["a", "b"]}'}
    )
    pq.write_table(table, tmp_path / "m.parquet")
    try:
        manifest = dp.Manifest.load(tmp_path / "m.parquet")
    except dp.ManifestError:
        return
    assert len(manifest.take_jpegs(np.arange(len(manifest)))) == len(manifest)
    for sample in range(len(manifest)):
        assert 0 <= manifest.labels[sample] < 2
        assert (manifest.sizes[sample] > 0).all()
        assert str(manifest.path(sample)).startswith("/")
        assert os.fsencode(manifest.path(sample)).find(b"\0") < 0
        extent = manifest.extent(sample)
        assert not extent.member or (
            extent.offset >= 0 <= extent.length <= extent.stamp[0] - extent.offset
        )


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"[]",
        b'{"root": 3, "classes": []}',
        b'{"root": "/r", "classes": "ab"}',
        b'{"root": "/r", "classes": [1]}',
        b'{"root": null}',
    ],
)
def test_a_manifest_with_a_forged_head(tmp_path, head):
    pq.write_table(
        pa.table({name: [] for name in SCHEMA.names}, schema=SCHEMA).replace_schema_metadata(
            {b"dali_pipes": head}
        ),
        tmp_path / "m.parquet",
    )
    with pytest.raises(dp.ManifestError):
        dp.Manifest.load(tmp_path / "m.parquet")
