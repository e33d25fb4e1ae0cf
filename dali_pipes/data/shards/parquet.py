"""Images inside Parquet files, in the form of Hugging Face's `datasets`: a column of structs of
`bytes` and `path`.

Pages are compressed, so no image can be read by itself. A row group therefore takes the part of a
shard, and is named FILE#NUMBER. When the first of its images is read, all are copied, one after the
other, into a file of the local cache (copies.py).
"""

import json
import os
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dali_pipes.data.arrow_types import plain
from dali_pipes.errors import ManifestError

_MARK = ".parquet#"


def is_group(file: str) -> bool:
    _, mark, number = file.rpartition(_MARK)
    return bool(mark) and number.isdecimal()


def has_groups(files: pa.ChunkedArray) -> bool:
    """Whether one of these names, which are binary, is that of a row group."""
    some = files.filter(pc.match_substring(files, _MARK))
    return any(is_group(os.fsdecode(file)) for file in pc.unique(some).to_pylist())


def group_name(file: bytes, number: int) -> bytes:
    return b"%b#%d" % (file, number)


def group_of(name: str) -> tuple[str, int]:
    """The file of a row group, and its number."""
    file, _, number = name.rpartition("#")
    return file, int(number)


def features_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """What `datasets` notes of each column in the metadata; nothing of what is not its own."""
    # its JSON: {"info": {"features": {COLUMN: {"_type": "ClassLabel", "names": […]}}}}
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: of for name, of in features.items() if isinstance(of, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def image_column(
    schema: pa.Schema, file: str = "a Parquet file", or_bytes: bool = True
) -> str | None:
    """The name of the only column of images; None: there is none.

    It is the one that `datasets` calls an Image, or else the structs of bytes of which it says
    nothing: an Audio has the same form. Where there is none of these, it is the only column of
    bytes.

    Args:
        or_bytes: whether a column of bytes may be one.

    Raises:
        ManifestError: there are several.
    """
    noted = {name: of.get("_type") for name, of in features_of(schema).items()}
    structs = [
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    ]
    images = [name for name in structs if noted.get(name) == "Image"]
    names = images or [name for name in structs if noted.get(name) is None]
    if or_bytes and not names:
        names = [field.name for field in schema if _is_binary(field.type)]
    if len(names) > 1:
        raise ManifestError(
            f"{file}: has several columns of images, {', '.join(names)}; write a file with one of "
            "them, or read the rows by Manifest.from_hf(datasets.load_dataset('parquet', "
            f"data_files=…, split='train'), image={names[0]!r})"
        )
    if names:
        refuse_mode(file, names[0], features_of(schema).get(names[0], {}).get("mode"))
    return names[0] if names else None


def refuse_mode(place: str, name: str, mode: object) -> None:
    """Refuses a column of images that `datasets` would convert to another mode than RGB.

    Args:
        mode: Pillow's, as `datasets.Image` has it; None: as the images are.

    Raises:
        ManifestError: it is another one.
    """
    if mode not in (None, "RGB"):
        raise ManifestError(
            f"{place}: the column {name} is declared as Image(mode={mode!r}), and batches are made "
            "of the pixels as they are stored; cast it, dataset.cast_column("
            f"{name!r}, datasets.Image()), and make gray ones by the transform (channels=1)"
        )


def _is_binary(kind: pa.DataType) -> bool:
    is_one = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(check(kind) for check in is_one)


def read_group(file: Any, number: int) -> pa.StructArray:
    """Reads the images of a row group: structs of `bytes` and maybe `path`.

    Args:
        file: a path or an open file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with pq.ParquetFile(file, pre_buffer=False) as opened:
            name = image_column(opened.schema_arrow)
            table = plain(opened.read_row_group(number, columns=[name], use_threads=False))
            images = table[name].combine_chunks()
    except (pa.ArrowException, KeyError, IndexError) as error:
        raise OSError(f"row group {number} cannot be read ({error})") from None

    if not pa.types.is_struct(images.type):
        images = pa.StructArray.from_arrays([images], ["bytes"])
    large = [
        (column.name, pa.large_binary() if pa.types.is_binary(column.type) else column.type)
        for column in images.type
    ]
    return images.cast(pa.struct(large))


def copy_group(file: Any, number: int, out: BinaryIO) -> int:
    """Writes the encoded images of a row group one after the other; returns their size in bytes."""
    encoded = pc.struct_field(read_group(file, number), "bytes")
    # a row without bytes takes no room, as in the manifest; the buffers are not copied
    for image in encoded.drop_null():
        out.write(image.as_buffer())
    return int(pc.sum(pc.binary_length(encoded)).as_py() or 0)
