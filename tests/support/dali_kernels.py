"""Which GPU kernels a DALI graph needs, and which of them DALI's libraries lack; needs no GPU.

DALI builds its operators for some types only, and says so when the first batch runs. The libraries'
symbol tables show for which. Operators on the CPU are left out: other tests run them.
"""

import ctypes
import mmap
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali
from nvidia.dali.types import DALIDataType

_FOLDER = Path(nvidia.dali.__file__).parent
_LIBRARIES = ("libdali.so", "libdali_kernels.so", "libdali_operators.so")
_SYMBOL_TABLE = 2  # sh_type, SHT_SYMTAB of the ELF format

_TYPES = {
    "bool": "bool",
    "uint8": "unsigned char",
    "int8": "signed char",
    "uint16": "unsigned short",
    "int16": "short",
    "uint32": "unsigned int",
    "int32": "int",
    "uint64": "unsigned long",
    "int64": "long",
    "float16": "dali::float16",
    "float32": "float",
    "float64": "double",
}  # NumPy's names, and those of C++ in the symbols
# which stand for all types of that size
_OF_SIZE = {1: "signed char", 2: "short", 4: "int", 8: "long"}
_UNKNOWN = "?"
_COMPARISONS = ("eq", "neq", "lt", "leq", "gt", "geq")
_ALWAYS_FLOAT = ("fdiv", "floor", "ceil", "sqrt", "exp", "log", "fabs", "fpow")


@dataclass(frozen=True, slots=True)
class Use:
    """One operator on the GPU; types by NumPy's names, "?" where none is known.

    Attributes:
        expression: of arithmetic, DALI's own notation, such as "mul(&0 $0:float32)".
    """

    operator: str
    inputs: tuple[str, ...]
    output: str
    expression: str = ""

    def __str__(self) -> str:
        return (
            f"{self.expression or self.operator} of {', '.join(self.inputs) or 'nothing'} to "
            f"{self.output}"
        )


def uses(pipeline: Any) -> set[Use]:
    """The operators on the GPU of a pipeline whose graph has been built."""
    types = edge_types(pipeline)
    return {
        Use(_kind(each), _inputs(each, types), types[each.outputs[0].name], _expression(each))
        for each in pipeline._ops
        if getattr(each._op, "device", "cpu") in ("gpu", "mixed")
    }


def edge_types(pipeline: Any) -> dict[str, str]:
    """The type of each edge of a graph that has been built, by the edge's name."""
    types: dict[str, str] = {}
    for operator in pipeline._ops:  # each after those that it needs
        for place, edge in enumerate(operator.outputs):
            types[edge.name] = _output_type(operator, place, _inputs(operator, types))
    return types


def lacking(needed: Iterable[Use]) -> tuple[list[str], list[str]]:
    """What DALI's libraries have no kernel for, with the missing symbols; and what nobody has said
    how to look for.
    """
    wanted = {use: _symbols_of(use) for use in needed}
    missing = {
        use: [symbol for symbol in symbols if "::" + symbol not in _present()]
        for use, symbols in wanted.items()
    }
    unchecked = sorted(str(use) for use, symbols in wanted.items() if not symbols)
    return sorted(
        f"{use}: no {', '.join(symbols)}" for use, symbols in missing.items() if symbols
    ), unchecked


def _kind(operator: Any) -> str:
    return getattr(operator._op, "schema_name", "ExternalSource")


def _expression(operator: Any) -> str:
    return (
        re.search(r"expression_desc: (.*)", str(operator.spec))[1]
        if _kind(operator) == "_ArithmeticGenericOp"
        else ""
    )


def _inputs(operator: Any, types: dict[str, str]) -> tuple[str, ...]:
    return tuple(types[edge.name] for edge in operator.inputs)


def _output_type(operator: Any, place: int, inputs: tuple[str, ...]) -> str:
    """What DALI itself infers from an operator's arguments, else what follows from the inputs'
    types.
    """
    operator.spec.InferOutputMetadata()
    dtype, kind = operator.spec.OutputDesc(place)[3], _kind(operator)
    if isinstance(dtype, DALIDataType):
        return _name(dtype)
    if kind == "_ArithmeticGenericOp":
        return _promoted(_expression(operator), inputs)
    if kind == "reductions__Mean" and inputs[0] != _UNKNOWN:
        return inputs[0] if inputs[0].startswith("float") else "float32"
    return inputs[0] if kind in _OUTPUT_IS_AS_INPUT else _UNKNOWN


def _name(dtype: DALIDataType) -> str:
    """NumPy's name of DALI's type."""
    name = dtype.name.lower()
    return "float32" if name == "float" else name


def _operands(expression: str, inputs: tuple[str, ...]) -> tuple[str, list[str]]:
    """The operation, and the types of what it works on."""
    operation, parts = re.fullmatch(r"(\w+)\(([^()]*)\)", expression).groups()
    return operation, [
        inputs[int(part[1:])] if part[0] == "&" else part.partition(":")[2]
        for part in parts.split()
    ]


def _promoted(expression: str, inputs: tuple[str, ...]) -> str:
    """The rules of `binary_op_promotion` in DALI's arithmetic_meta.h: as NumPy's, but that no
    integer widens a float.
    """
    operation, operands = _operands(expression, inputs)
    if operation in _COMPARISONS:
        return "bool"
    if _UNKNOWN in operands:
        return _UNKNOWN
    floats = [name for name in operands if name.startswith("float")]
    if operation in _ALWAYS_FLOAT and not floats:
        return "float32"
    return np.result_type(*floats or operands).name


def _symbols_of(use: Use) -> list[str]:
    """Names without namespaces of what has to be in DALI's libraries; none: not known."""
    if _UNKNOWN in (*use.inputs, use.output):
        return []
    if use.expression:
        return _arithmetic(use)
    if use.operator not in _KERNELS:
        return []
    source = _TYPES[use.inputs[0]] if use.inputs else ""
    return _KERNELS[use.operator](source, _TYPES[use.output])


def _arithmetic(use: Use) -> list[str]:
    operation, operands = _operands(use.expression, use.inputs)
    number = (
        f"(dali::expr::ArithmeticOp){_arithmetic_ops().index(operation)}, {_TYPES[use.output]}, "
    )
    if len(operands) == 3:
        return [f"ExecuteTiledTernaryOp1D<{number}"]
    if len(operands) == 1:
        return [f"ExecuteTiledUnOp<{number}{_TYPES[operands[0]]}>"]
    template = number + ", ".join(_TYPES[name] for name in operands)
    broadcast = [] if "$" in use.expression else [f"ExecuteTiledBinOpND<{template}>"]
    return [f"ExecuteTiledBinOp1D<{template}, ", *broadcast]


@cache
def _arithmetic_ops() -> list[str]:
    """DALI's operations in the order of its enum; "bitand" where the enum says bit_and."""
    header = (_FOLDER / "include/dali/operators/math/expressions/arithmetic_meta.h").read_text()
    body = re.search(r"enum class ArithmeticOp : int \{(.*?)\};", header, re.S)[1]
    return re.findall(r"\w+", re.sub(r"//.*", "", body).replace("_", ""))


def _size(name: str) -> int:
    return np.dtype(next(ours for ours, theirs in _TYPES.items() if theirs == name)).itemsize


def _only_8_bits(symbol: str) -> Callable[[str, str], list[str]]:
    """What other types would need is not known."""
    return lambda source, output: [symbol] if output == "unsigned char" else []


def _normalize(source: str, output: str) -> list[str]:
    # the choice is GetImplementationKind's in DALI's
    # dali/operators/image/crop/new_crop_mirror_normalize.cu
    fast = source == "unsigned char" and output in ("float", "dali::float16")
    kernels = [f"SliceHwc2HwcChwNormalizeGPU<{output}>"] if fast else []
    # images of one channel have this one in any type
    kernels.append(f"SliceFlipNormalizeGPU<{output}, {source}, 2, 2>")
    namespace = "dali::kernels::slice_flip_normalize"
    return [f"NewCropMirrorNormalizeGPU::RunSfnKernel<{namespace}::{each}" for each in kernels]


def _registered(name: str) -> Callable[[str, str], list[str]]:
    """No type matters."""
    return lambda source, output: [f"OperatorCreator<dali::{name}<dali::GPUBackend>"]


def _equalize(source: str, output: str) -> list[str]:
    view = (
        f"Run(dali::kernels::KernelContext&, dali::TensorListView<dali::StorageGPU, {output}, "
        "2> const&"
    )
    return [f"LutKernelGpu::{view}", f"LookupKernelGpu::{view}", "HistogramKernelGpu::Run("]


def _resize(source: str, output: str) -> list[str]:
    return [
        f"BatchedSeparableResampleKernel<2, float, {source}>",
        f"BatchedSeparableResampleKernel<2, {output}, float>",
    ]


# What each operator has to have been built for, by the C++ types of its first input and of its
# output. Images have 3 dimensions.
_KERNELS: dict[str, Callable[[str, str], list[str]]] = {
    "Cast": lambda source, output: [f"BinSearchCastKernel<{output}, {source}>"],
    "Cat": lambda source, output: [f"TensorJoinImplGPU<{_OF_SIZE[_size(output)]}, false>::Run"],
    "ColorSpaceConversion": lambda source, output: [
        f"ColorSpaceConvKernel<dali::kernels::color::RGB_to_Gray_Converter<{output}, {source}>"
    ],
    "Constant": lambda source, output: [
        f"FillTensorList<{output}, float>(dali::TensorList<dali::GPUBackend>&"
    ],
    "CoordTransform": lambda source, output: [f"TransformPointsKernel<{output}, {source}, 1, 3>"],
    "CropMirrorNormalize": _normalize,
    "Equalize": _equalize,
    "Erase": lambda source, output: [
        f"EraseImplGpu<{source}, 3, {channel}>::RunImpl" for channel in (0, 2)
    ],
    "Filter": lambda source, output: [f"FilterGpu<{output}, {source}, float, true, false, 2, "],
    "Flip": lambda source, output: [
        f"FlipKernel<{dim}ul, {x}, {source}>" for dim in range(4) for x in ("false", "true")
    ],
    "GaussianBlur": lambda source, output: [f"GetGaussianBlurGpuImpl<{output}, {source}>"],
    "Reinterpret": _registered("Reshape"),
    "Reshape": _registered("Reshape"),
    "RandomResizedCrop": _resize,
    "Resize": _resize,
    "Slice": lambda source, output: [
        f"SliceKernel<{output}, {source}, 3, {pad}>" for pad in ("false", "true")
    ],
    "WarpAffine": lambda source, output: [
        f"BatchWarp{sizes}Size<dali::kernels::AffineMapping<2>, 2, {output}, {source}, {output}>"
        for sizes in ("Uniform", "Variable")
    ],
    "_TensorSubscript": lambda source, output: [
        f"TensorSubscript<dali::GPUBackend>::RunTyped<{dims}, {_size(output)}>"
        for dims in (1, 2, 3)
    ],
    "_conditional__Merge": _registered("Merge"),
    "_conditional__Split": _registered("Split"),
    "decoders__Image": _only_8_bits("OperatorCreator<dali::imgcodec::MixedDecoder>"),
    "decoders__ImageRandomCrop": _only_8_bits(
        "OperatorCreator<dali::imgcodec::WithRandomCropAttr<dali::imgcodec::MixedDecoder>"
    ),
    "decoders__ImageSlice": _only_8_bits(
        "OperatorCreator<dali::imgcodec::WithSliceAttr<dali::imgcodec::MixedDecoder>"
    ),
    "reductions__Max": lambda source, output: [f"MaxGPU<{output}, {source}>::Run"],
    "reductions__Mean": lambda source, output: [f"MeanGPU<{output}, {source}>::Run"],
    "reductions__Min": lambda source, output: [f"MinGPU<{output}, {source}>::Run"],
}
_OUTPUT_IS_AS_INPUT = {
    *(
        "Cat",
        "ColorSpaceConversion",
        "Equalize",
        "Erase",
        "Filter",
        "Flip",
        "GaussianBlur",
        "RandomResizedCrop",
        "Reshape",
        "Resize",
    ),
    *("Slice", "WarpAffine"),
    *(
        "_TensorSubscript",
        "_conditional__Merge",
        "_conditional__Split",
        "reductions__Max",
        "reductions__Min",
    ),
}


@cache
def _present() -> str:
    """All symbols of DALI's libraries that the table may ask for, as C++ writes them, one a
    line.
    """
    asked = [
        each
        for kernels in _KERNELS.values()
        for output in ("unsigned char", "float")
        for each in kernels("unsigned char", output)
    ]
    words = {re.match(r"\w+", symbol)[0] for symbol in asked} | {"ExecuteTiled"}
    search = re.compile("|".join(sorted(words)).encode()).search
    mangled = {
        name.partition(b"@")[0]
        for library in _LIBRARIES
        for name in _names(_FOLDER / library)
        if search(name)
    }
    return "\n".join(_demangled(mangled))


def _names(library: Path) -> list[bytes]:
    """The names in the symbol table of an ELF file of 64 bits."""
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        (start,) = struct.unpack_from("<Q", content, 0x28)
        size, count = struct.unpack_from("<HH", content, 0x3A)
        sections = [
            struct.unpack_from("<IIQQQQI", content, start + place * size) for place in range(count)
        ]
        tables = [section for section in sections if section[1] == _SYMBOL_TABLE]
        assert tables, (
            f"{library} has no symbol table any more; see which kernels it has in another way"
        )
        *_, offset, length, _ = sections[tables[0][6]]
        return content[offset : offset + length].split(b"\0")


def _demangled(names: Iterable[bytes]) -> Iterable[str]:
    demangle, free = ctypes.CDLL("libstdc++.so.6").__cxa_demangle, ctypes.CDLL(None).free
    demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p] + 3 * [ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p]
    for name in names:
        if found := demangle(name, None, None, None):
            yield ctypes.string_at(found).decode()
            free(found)
