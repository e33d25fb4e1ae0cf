"""DALI's libraries have kernels for all that a GPU graph of this package asks for, in the types
that it gets. Needs no GPU.
"""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from dali_kernels import Use, edge_types, lacking, uses
from make_shards import tar_shards
from nvidia.dali import fn, pipeline_def, types

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.dali import graph as dali_graph
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.graph import ViewInputs, erase
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.arms.native_loader import DaliNativeBackend
from dali_pipes.plan.steps.whole import PADDING_MODES
from dali_pipes.plan.transforms import DTYPES, INTERPOLATIONS
from dali_pipes.tools.doctor import decode as doctor

FORMS = [
    {"dtype": dtype, "memory_format": memory_format}
    for dtype in DTYPES
    for memory_format in ("contiguous", "channels_last")
]
# of one kind each: what a graph before other policies delivers, and what it erases itself
AFTER = [[], ["RandomErasing"], ["RandomRotation", "RandomErasing"]]
HALF = types.DALIDataType.FLOAT16


def used(manifest, transform, decode="whole") -> set[Use]:
    config = dp.DaliConfig(device="gpu", num_threads=2, decode=decode)
    backend = DaliBackend(Job(transform, manifest, 8, torch.device("cuda", 0)), config)
    pipeline = backend.pipeline(dp.Plan(manifest, transform, 8).iter_from())
    pipeline._build_graph()
    return uses(pipeline)


def nothing_is_lacking(found: set[Use]):
    missing, unchecked = lacking(found)
    assert not missing, "DALI would raise at the first batch on a GPU:\n" + "\n".join(missing)
    assert not unchecked, (
        "add what these need to the table in tests/support/dali_kernels.py:\n"
        + "\n".join(unchecked)
    )


def test_every_form_of_image_has_its_kernels(manifest, tmp_path):
    shards = dp.Manifest.open(tar_shards(manifest, tmp_path), progress=False)
    found = set()
    for images, decode, form in product((manifest, shards), ("whole", "force_region"), FORMS):
        found |= used(images, dp.EvalTransform(**form), decode)
        for augment in AFTER:
            found |= used(images, dp.TrainTransform(**form, augment=augment), decode)
            found |= used(
                images, dp.RandomCropTransform(**form, augment=augment, resize=40), decode
            )
        found |= used(images, dp.ShortestSizeTransform(**form), decode)
        found |= used(
            images,
            dp.ViewsTransform(**form, views={"a": {}, "b": {"size": 96, "vertical_flip": 0.5}}),
            decode,
        )
    assert {use.output for use in found if use.operator == "CropMirrorNormalize"} == {
        "float32",
        "float16",
        "uint8",
    }
    assert {"decoders__Image", "decoders__ImageSlice", "Erase", "Slice"} <= {
        use.operator for use in found
    }
    nothing_is_lacking(found)


def test_crops_as_stored_flips_and_interpolations_have_their_kernels(manifest):
    found = set()
    for form, decode in product(FORMS, ("whole", "force_region")):
        found |= used(
            manifest, dp.RandomCropTransform(**form, vertical_flip=0.5, padding=4), decode
        )
    assert "Flip" in {use.operator for use in found} and "Resize" not in {
        use.operator for use in found
    }
    for interpolation in INTERPOLATIONS:
        found |= used(manifest, dp.TrainTransform(size=(32, 24), interpolation=interpolation))
    nothing_is_lacking(found)


def test_steps_on_whole_images_have_their_kernels(manifest):
    steps = [{"name": "Pad", "padding": 3, "padding_mode": mode} for mode in PADDING_MODES]
    steps += ["RandomRotate90", {"name": "RandomSizedCrop", "min_max_height": [20, 30]}, "Resize"]
    found = used(manifest, dp.TrainTransform(before=steps))
    assert {"WarpAffine", "Cat", "Flip", "Slice", "Resize"} <= {use.operator for use in found}
    nothing_is_lacking(found)


def test_one_channel_has_its_kernels(manifest):
    found = set()
    for form, augment in product(FORMS, AFTER):
        one = form | {"channels": 1, "mean": [0.5], "std": [0.5]}
        found |= used(manifest, dp.TrainTransform(**one, augment=augment))
        found |= used(manifest, dp.EvalTransform(**one), "force_region")
    assert "ColorSpaceConversion" in {use.operator for use in found}
    nothing_is_lacking(found)


def graph(definition, *args):
    pipeline = definition(*args, batch_size=8, num_threads=1, device_id=0)
    pipeline._build_graph()
    return pipeline


def test_dalis_own_graph_has_its_kernels(manifest):
    found = set()
    for form, decode in product(FORMS, ("whole", "force_region")):
        config, device = (
            DaliNativeConfig(device="gpu", num_threads=2, decode=decode),
            torch.device("cuda", 0),
        )
        job = Job(dp.TrainTransform(**form), manifest, 8, device)
        pipeline = DaliNativeBackend(job, config).pipeline(iter(()))
        pipeline._build_graph()
        found |= uses(pipeline)
    assert {"decoders__ImageRandomCrop", "decoders__Image", "RandomResizedCrop"} <= {
        use.operator for use in found
    }
    nothing_is_lacking(found)


def test_the_doctors_graph_has_its_kernels():
    found = uses(graph(doctor._decoding, b"", {"device": "mixed", "jpeg_fancy_upsampling": True}))
    assert {use.operator for use in found} == {"decoders__Image"}
    nothing_is_lacking(found)


def test_no_other_graph_of_the_package_reaches_a_gpu():
    """A new definition has to be added to the tests above."""
    package = Path(dp.__file__).parent
    defined = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r"@pipeline_def.*\ndef (\w+)", file.read_text())
    }
    assert defined == {"_planned_pipeline", "_native_pipeline", "_decoding"}


def test_an_erase_of_float16_is_found(manifest, monkeypatch):
    """What raised at the first batch on a GPU, before images were erased as int16."""

    def erase_as_it_was(image, inputs, dtype):
        return fn.erase(
            image, anchor=inputs.erased, shape=inputs.erased_shape, axis_names="HW", fill_value=0
        )

    monkeypatch.setattr(dali_graph, "erase", erase_as_it_was)
    missing, _ = lacking(used(manifest, dp.TrainTransform(dtype="fp16", augment=["RandomErasing"])))
    (only,) = missing
    assert only.startswith(
        "Erase of float16, float32, float32 to float16: no EraseImplGpu<dali::float16, 3, 0>"
    )
    missing, _ = lacking(used(manifest, dp.TrainTransform(augment=["RandomErasing"])))
    assert not missing


def test_what_nobody_has_looked_up_is_not_passed_over():
    @pipeline_def
    def unknown():
        image = fn.external_source(source=lambda: 0, dtype=types.DALIDataType.UINT8, ndim=3).gpu()
        return (
            fn.water(image),
            fn.brightness(image) * 2.0,
            fn.equalize(fn.cast(image, dtype=types.DALIDataType.FLOAT)),
        )

    missing, unchecked = lacking(uses(graph(unknown)))
    assert unchecked == [
        "Brightness of uint8 to ?",
        "Water of uint8 to ?",
        "mul(&0 $0:float32) of ? to ?",
    ]
    assert [each.partition(":")[0] for each in missing] == ["Equalize of float32 to float32"]


@pipeline_def(batch_size=2, num_threads=1, device_id=None)
def _each_rule():
    """What has its output's type from its inputs'."""
    image = fn.external_source(
        source=lambda: [np.full((4, 5, 3), 7, np.uint8)] * 2,
        dtype=types.DALIDataType.UINT8,
        ndim=3,
        layout="HWC",
    )
    real, short, half, long = (
        fn.cast(image, dtype=getattr(types.DALIDataType, name))
        for name in ("FLOAT", "INT16", "FLOAT16", "INT32")
    )
    box = {"anchor": [0, 0], "shape": [1, 1], "axis_names": "HW"}
    moved = [
        fn.flip(image),
        fn.erase(half, **box),
        fn.erase(short, **box),
        fn.cat(short, short, axis=2),
        fn.slice(real, start=[0], axes=[0]),
    ]
    moved += [
        fn.warp_affine(real, matrix=[1.0, 0, 0, 0, 1, 0]),
        fn.equalize(image),
        fn.reshape(half, shape=[-1]),
        image[:, :, 0:1],
    ]
    moved += [
        fn.resize(image, size=(3, 3)),
        fn.resize(image, size=(3, 3), dtype=types.DALIDataType.FLOAT),
    ]
    moved += [
        fn.gaussian_blur(image, sigma=1.0),
        fn.gaussian_blur(image, sigma=1.0, dtype=types.DALIDataType.FLOAT),
    ]
    moved += [
        fn.filter(image, np.ones((3, 3), np.float32)),
        fn.reinterpret(half, dtype=types.DALIDataType.INT16),
    ]
    reduced = [
        fn.reductions.mean(image),
        fn.reductions.mean(real),
        fn.reductions.min(short),
        fn.reductions.max(image),
    ]
    computed = [
        image * 2,
        image + short,
        image * 2.0,
        short - real,
        long + real,
        image / 2,
        image // 2,
        image & 3,
        image >= real,
        -short,
    ]
    computed += [fn.coord_transform(image, M=1.0), fn.crop_mirror_normalize(image)]
    return *moved, *reduced, *computed


def test_types_follow_from_types_as_they_do_when_dali_runs():
    pipeline = _each_rule()
    pipeline.build()
    names = [edge.name for edge in pipeline._graph_outputs]
    outputs = pipeline.run()
    expected = [np.asarray(each[0]).dtype.name for each in outputs]
    found = edge_types(pipeline)
    assert [found[name] for name in names] == expected


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def _erasing(images, layout):
    """As image_graph does it, and by DALI's operator on float16, which it has on the CPU."""
    image = fn.external_source(source=lambda: images, dtype=HALF, ndim=3, layout=layout)
    region = {
        "erased": types.Constant(np.float32([3, 5])),
        "erased_shape": types.Constant(np.float32([60, 41])),
    }
    inputs = ViewInputs(**region)
    plain = fn.erase(
        image, anchor=region["erased"], shape=region["erased_shape"], axis_names="HW", fill_value=0
    )
    return erase(image, inputs, HALF), plain, image


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_float16_is_erased_bit_for_bit(layout):
    """All 65,536 values, NaNs and negative zeros among them."""
    shape = (128, 128, 1) if layout == "HWC" else (1, 128, 128)
    images = [
        part.reshape(shape).view(np.float16)
        for part in np.split(np.arange(2**16, dtype=np.uint16), 4)
    ]
    pipeline = _erasing(images, layout)
    pipeline.build()
    erased, plain, before = pipeline.run()
    assert erased.dtype == HALF and erased.layout() == layout
    bits = [
        np.stack([np.asarray(each) for each in batch]).view(np.uint16)
        for batch in (erased, plain, before)
    ]
    assert np.array_equal(bits[0], bits[1])
    assert (bits[0] != bits[2]).sum() == 4 * 60 * 41
