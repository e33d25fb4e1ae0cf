"""What a thing says it is, and programs that decide by it."""

import collections.abc
import contextlib
import functools
import hashlib
import inspect
import io
import numbers
import operator
import sys
import zlib
from contextlib import suppress as quietly

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from cv2 import blur as blur_by_name
from PIL import Image, JpegImagePlugin, PngImagePlugin
from torchvision import tv_tensors

from programs.traps import SIZE, array, small, tensor, trap


def open_jpeg(path):
    out = io.BytesIO()
    small(path).save(out, "JPEG")
    return Image.open(out)


# Its class


@trap
def type_of_a_picture_is(path, other):
    p, q = open_jpeg(path), small(path)
    kind = type(p) is JpegImagePlugin.JpegImageFile, type(q) is Image.Image
    return F.to_tensor(q) if all(kind) else torch.zeros(3, SIZE, SIZE)


@trap
def type_of_a_tensor_is(path, other):
    x = tensor(path)
    return x if type(x) is torch.Tensor else torch.zeros(3, SIZE, SIZE)


@trap
def type_of_an_array_is(path, other):
    a = array(path)
    return a if type(a) is np.ndarray else np.zeros((SIZE, SIZE, 3), np.uint8)


@trap
def types_are_equal_and_in_tables(path, other):
    x, a, p = tensor(path), array(path), small(path)
    table = {np.ndarray: 1, torch.Tensor: 2, Image.Image: 3}
    equal = type(x) == torch.Tensor, type(a) == np.ndarray, type(p) == Image.Image  # noqa: E721
    return x, equal, [table.get(type(each), 0) for each in (x, a, p)]


@trap
def type_of_a_wrapped_tensor_is(path, other):
    x, y = tv_tensors.Image(small(path)), tv_tensors.Mask(tensor(other))
    kind = type(x) is tv_tensors.Image, type(y) is tv_tensors.Mask
    return x if kind[0] else x * 0, y if kind[1] else y * 0


@trap
def isinstance_class_format_and_module(path, other):
    p = open_jpeg(path)
    q, x, a = p.convert("RGB"), tensor(path), array(path)
    said = [isinstance(each, JpegImagePlugin.JpegImageFile) for each in (p, q)]
    said += [isinstance(q, Image.Image), isinstance(x, torch.Tensor), isinstance(a, np.ndarray)]
    said += [torch.is_tensor(x), hasattr(p, "app"), hasattr(q, "app"), hasattr(q, "filename")]
    said += [np.isscalar(a), np.iterable(a), torch.is_floating_point(x), callable(p)]
    said += [isinstance(each, collections.abc.Sequence | numbers.Number) for each in (a, x)]
    said += [isinstance(each, collections.abc.Iterable) for each in (a, x, q)]
    said += [isinstance(each, collections.abc.Hashable) for each in (a, x)]
    names = [each.__class__.__name__ for each in (p, q, x, a)]
    modules = [type(each).__module__ for each in (p, q, x, a)]
    return said, names, modules, str(p.format), str(q.format), p.format_description


@trap
def names_and_bases_of_types(path, other):
    things = small(path), tensor(path), array(path)
    names = [str(type(each)) for each in things], [type(each).__qualname__ for each in things]
    bases = [[base.__name__ for base in type(each).__mro__] for each in things]
    whole = [inspect.isclass(type(each)) and type(each) is each.__class__ for each in things]
    return *names, bases, whole, issubclass(type(things[0]), Image.Image)


@trap
def chain_of_isinstance_and_match(path, other):
    return [_kind_of(each) for each in (small(path), tensor(path), array(path), Image.open(path))]


def _kind_of(value):
    match value:
        case PngImagePlugin.PngImageFile() | JpegImagePlugin.JpegImageFile():
            return F.to_tensor(value.convert("RGB").resize((9, 9)))
        case Image.Image(mode="RGB", size=(width, height)):
            return F.to_tensor(value), width * height
        case np.ndarray(ndim=3, shape=(_, _, 3)):
            return torch.from_numpy(value)
        case torch.Tensor():
            return value + 1
        case _:
            return None


@trap
def single_dispatch(path, other):
    things = open_jpeg(path), small(path), tensor(path), array(path)
    return [_dispatched(each) for each in things], things[2]


@functools.singledispatch
def _dispatched(value):
    return "other"


_dispatched.register(Image.Image, lambda value: "picture")
_dispatched.register(JpegImagePlugin.JpegImageFile, lambda value: "jpeg")
_dispatched.register(torch.Tensor, lambda value: "tensor")
_dispatched.register(np.ndarray, lambda value: "array")


@trap
def class_of_a_picture_is_set(path, other):
    p = small(path)
    p.__class__ = Named
    return F.to_tensor(p), p.say(), type(p).__name__, type(p.copy()).__name__


class Named(Image.Image):
    def say(self):
        return f"{self.width} wide"


@trap
def tensor_of_a_class_of_the_program(path, other):
    x = tensor(path).as_subclass(Scaled)
    y = torch.nn.Parameter(tensor(other), requires_grad=False)
    return (x * 2).scale, type(x + 1).__name__, x + 1, y, type(y).__name__


class Scaled(torch.Tensor):
    scale = 3


@trap
def array_of_a_class_of_the_program(path, other):
    a = array(path).view(Plate)
    b = np.asarray(a * 2)
    return type(a[1:]).__name__, b, np.asanyarray(a).sum(), a.plate


class Plate(np.ndarray):
    plate = 7


# What it says when asked


@trap
def hashes_equality_and_texts(path, other):
    p, x, a = small(path), tensor(path), array(path)
    said = p == small(path), p == small(other), p == Image.fromarray(a)
    said += bool((x == tensor(path)).all()), bool((a == array(path)).all()), x.equal(tensor(path))
    said += p.__hash__ is None, isinstance(hash(x), int), x in {x}, str(p)[:26], f"{x.mean():.3f}"
    return said, str(x), repr(a), np.array2string(a[0, :3]), format(a.sum(), "d")


@trap
def flags_strides_and_sizes(path, other):
    a, b, x = array(path), array(path)[:, ::-1], F.pil_to_tensor(small(path))
    said = [a.strides, b.strides, a.flags.c_contiguous, b.flags.c_contiguous, a.flags.f_contiguous]
    said += [x.stride(), x.is_contiguous(), x.permute(1, 2, 0).is_contiguous()]
    said += [a.itemsize, a.nbytes, x.element_size(), a.dtype.name, str(x.dtype), x.nbytes, len(x)]
    said += [x.storage_offset(), x.device.type, x.is_leaf, x.requires_grad, x.layout, x.is_sparse]
    said += [x.untyped_storage().nbytes(), a.size, x.numel(), x.dim()]
    return str(said), x.is_contiguous(memory_format=torch.channels_last) if x.ndim == 4 else 0


@trap
def size_in_bytes_as_python_says(path, other):
    """By which some caches know when they are full."""
    a, p = array(path), small(path)
    return sys.getsizeof(a) > a.nbytes, a.__sizeof__() > a.nbytes, sys.getsizeof(p) < 9999


@trap
def interfaces_to_memory(path, other):
    a, x, p = array(path), tensor(path), small(path)
    of_array, of_picture = a.__array_interface__, p.__array_interface__
    said = of_array["shape"], of_array["typestr"], of_picture["shape"], of_picture["typestr"]
    held = Held(a.__array_interface__)
    by_struct = np.array(Struct(a.__array_struct__))
    found = said, np.asarray(held).copy(), by_struct, x.__array__(np.float64)
    return *found, np.asarray(p, np.int16)


class Held:
    def __init__(self, interface):
        self.__array_interface__ = interface


class Struct:
    def __init__(self, struct):
        self.__array_struct__ = struct


# C code that wants an array


@trap
def bytes_by_many_ways(path, other):
    a, x, out = array(path), tensor(path), io.BytesIO()
    np.save(out, a)
    np.savez(packed := io.BytesIO(), a=a, x=x)
    packed.seek(0)
    made = out.getvalue()[-9:].hex(), memoryview(a).nbytes, a.tobytes()[:9].hex()
    made += (bytes(a)[:9].hex(),)
    made += x.numpy().tobytes()[:9].hex(), a.ctypes.data > 0, np.load(packed)["x"]
    return *made, hashlib.md5(a).hexdigest(), zlib.crc32(a), a.tolist()[0][0]


# which keeps the function that it was made of
_BLUR = functools.partial(cv2.medianBlur, ksize=3)


@trap
def c_code_in_a_partial_in_an_except(path, other):
    try:
        return _BLUR(array(path))
    except Exception:
        return array(other)


@trap
def c_code_in_a_partial_in_a_suppress(path, other):
    made = array(other)
    with contextlib.suppress(TypeError, cv2.error):
        made = _BLUR(array(path))
    return made


@trap
def c_code_in_a_partial_in_a_suppress_by_another_name(path, other):
    made = array(other)
    with quietly(TypeError, cv2.error):
        made = _BLUR(array(path))
    return made


@trap
def c_code_in_a_partial_in_an_except_of_groups(path, other):
    made = array(other)
    try:
        made = _BLUR(array(path))
    except* (TypeError, cv2.error):
        pass
    return made


class Quietly:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, Exception)


@trap
def c_code_in_a_partial_in_a_with_that_keeps_errors(path, other):
    with Quietly():
        return _BLUR(array(path))
    return array(other)


@trap
def c_code_in_a_partial_in_a_bare_except_of_a_function(path, other):
    def blurred():
        try:
            return _BLUR(array(path))
        except:  # noqa: E722
            return array(other)

    return blurred()


@trap
def c_code_in_a_partial_in_an_except_of_attributes(path, other):
    try:
        return _BLUR(array(path)).copy()
    except (AttributeError, RuntimeError, cv2.error):
        return array(other)


@trap
def c_code_by_its_name(path, other):
    return blur_by_name(array(path), (3, 3))


@trap
def c_constructors_of_tensors(path, other):
    a = array(path)
    made = torch.Tensor(a), torch.FloatTensor(a), torch.ByteTensor(a), torch.asarray(a)
    made += torch.tensor(a.tolist()), torch.as_tensor([a[0], a[1]])
    made += (torch.tensor(a, dtype=torch.half),)
    found = *made, torch.utils.data.default_convert({"a": a})["a"]
    return *found, torch.frombuffer(a, dtype=torch.uint8)


@trap
def arrow_and_hdf5(path, other):
    import h5py
    import pyarrow

    a = array(path)
    with h5py.File("x.h5", "w", driver="core", backing_store=False) as file:
        file["a"] = a
        file.create_dataset("b", data=array(other), compression="gzip")
        file["a"][0] = array(other)[0]
        stored = file["a"][:], file["b"][:]
    flat = pyarrow.array(a.ravel()).to_numpy(zero_copy_only=False)
    tensor_of = pyarrow.Tensor.from_numpy(a).to_numpy().copy()
    return *stored, flat, tensor_of, pyarrow.py_buffer(a).size


@trap
def arrays_in_tables_and_object_arrays(path, other):
    import pandas

    table = pandas.DataFrame({"image": [array(path), array(other)], "label": [1, 2]})
    held = np.empty(2, object)
    held[0], held[1] = array(path), small(other)
    table["mean"] = table.image.map(np.mean)
    return table["mean"].tolist(), np.stack(table.image), held[0] + 1, np.asarray(held[1])


@trap
def matplotlib_and_scipy(path, other):
    import matplotlib.image
    import scipy.ndimage

    out = io.BytesIO()
    matplotlib.image.imsave(out, array(path), format="png")
    blurred, zoomed = (
        scipy.ndimage.gaussian_filter(array(path), 1),
        scipy.ndimage.zoom(array(path), (1, 2, 1)),
    )
    return matplotlib.image.pil_to_array(small(path)), blurred, zoomed, len(out.getvalue())


@trap(collate_fn=list)
def attributes_that_a_program_sets(path, other):
    x, p = tensor(path), small(other)
    x.label, p.label = "mine", "mine"
    y, q = x * 2, p.copy()
    said = hasattr(y, "label"), hasattr(q, "label"), x.label
    return x, p, y, said


@trap
def methods_by_their_classes(path, other):
    x, y = tensor(path), tensor(other)
    made = [torch.Tensor.numpy(x), torch.Tensor.mul(y, 2), torch.Tensor.detach(x).numpy()]
    made += [operator.methodcaller("numpy")(tensor(path)), torch.Tensor.__array__(y)]
    made += [x.numpy(force=True)]
    made += [torch.Tensor.tolist(x[0, :2]), float(y[0, 0, 0]), next(iter(y[0, 0])), 0.5 in y]
    p = small(path)
    made += [Image.Image.resize(p, (9, 9)).tobytes()[:9].hex(), np.ndarray.sum(array(path)).item()]
    return made


@trap
def conversions_of_numpy(path, other):
    a = array(path)
    made = [np.asanyarray(a), np.require(a, np.float32, "C"), np.atleast_3d(a)]
    made += [np.array(a, ndmin=4), np.broadcast_to(a, (2, *a.shape)).copy(), np.copy(a, order="F")]
    made += [np.einsum("hwc->chw", a), np.array([each.sum() for each in np.nditer(a[:2, :2])])]
    made += [np.asarray(a, copy=True), np.apply_along_axis(np.max, 2, a)]
    made += [np.array(a, dtype=np.float64, order="F"), np.unique(a)[:3]]
    return made
