"""What happens in one call of a data set: files that are opened, transforms that are called.

The openers and steps of a thread tell the thread's active `Visit` (active_visit.py). Openers return
the true picture, one that is made up, or cheap noise, as the visit says (`Supply`). A transform
that is called gets the user's picture, and noise in the form of its result is returned. So the
order of the calls is seen, and whatever is done between them.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.recording.cheap import CheapNoise, form_of, identity, noise_of
from dali_pipes.adapters.from_torch.recording.containers import Containers, Place
from dali_pipes.adapters.from_torch.recording.decoding import decode, decode_mask, decode_once
from dali_pipes.adapters.from_torch.recording.keys import StepKeys
from dali_pipes.adapters.from_torch.recording.marks import (
    Mark,
    Match,
    Pixels,
    Snapshot,
    find,
    is_picture,
    is_single,
    is_stack,
    pixels_of,
    stack_like,
    to_array,
    with_noise,
)
from dali_pipes.adapters.from_torch.recording.masks import MaskNotes
from dali_pipes.adapters.from_torch.recording.nesting import (
    map_pictures,
    pictures_in,
    wholes_in,
    with_values_of,
)
from dali_pipes.adapters.from_torch.recording.random_states import random_states, states_kept

_LIBRARIES = ("torch", "torchvision", "timm", "albumentations", "PIL", "numpy", "datasets")
_MOST_FILES = 100  # that a sample may open
# bytes of a small picture, and small pictures whose matches are remembered
_SMALL, _MOST = 4096, 1024
# what a picture may be that is not the decoded file, by its channels
GRAY = {1: "one channel of gray", 3: "three channels of gray"}
WIDE = "a picture of 16 bits a channel"
AS_STORED = "a picture of Pillow's mode"  # and the mode, which is that of the file


class EndlessError(BaseException):
    """A sample opens files without end. It is no `Exception`, since code that tries the next file
    after any error would catch that.

    Attributes:
        is_after_error: whether a transform has failed before.
    """

    def __init__(self, message: str, is_after_error: bool):
        super().__init__(message)
        self.is_after_error = is_after_error


@dataclass(slots=True, eq=False)
class Opened:
    """A picture that was opened.

    Attributes:
        opener: the function, for people.
        path: its file, or the part of a file that it is; None: it is not known.
        data: the encoded bytes, if they were given instead of a path.
        place: file and line of the user's code, for people.
        mode: Pillow's mode of the encoded picture.
    """

    opener: str
    path: Place | None
    data: bytes | None = None
    place: str = ""
    mode: str = "RGB"

    @property
    def source(self) -> Any:
        """What Pillow opens."""
        return io.BytesIO(self.data) if self.data else self.path


@dataclass(slots=True, eq=False)
class TransformCall:
    """A transform of a library that was called.

    Attributes:
        step: the transform, or the Compose.
        inputs: how each picture among its arguments shows a mark; None: it shows none.
        outputs: what it returned, with pictures as examples of their form.
        place: file and line of the user's code, for people.
        steps: the transform, or those of a Compose that was called as one.
        keys: the keys of the steps at the time of the call, since code may set their attributes
            later.
        strange: what an input is that shows no mark, for people.
        example: under what `outputs` is kept as an example of what the step returns.
        takes_all: whether torchvision's v2 does its steps to all of several pictures.
    """

    step: Any
    inputs: list[Match | None]
    outputs: Any = None
    place: str = ""
    steps: list[Any] = field(default_factory=list)
    keys: tuple[int, ...] = ()
    strange: str = ""
    example: Any = None
    takes_all: bool = True


@dataclass(slots=True)
class Supply:
    """Which pictures a visit's openers return.

    Attributes:
        encode: the encoded picture for the nth opening; None: the true file.
        size: height and width of cheap noise, of which nothing is decoded; None: no cheap noise.
        modes: Pillow's mode of cheap noise for the nth opening.
        makes_masks: whether masks are made up, of the size of the true ones, beside true images.
        hides_draws: whether the program's own random numbers go on after a step as if it had drawn
            none, as in cheap visits, in which no step is carried out.
        keeps_data: whether cheap visits keep the bytes of a picture that is in no file of its own.
    """

    encode: Callable[[int], bytes] | None = None
    size: tuple[int, int] | None = None
    modes: tuple[str, ...] = ()
    makes_masks: bool = False
    hides_draws: bool = False
    keeps_data: bool = False


# no dataclass: one that makes so many lists takes three times as long, and there is one for each
# sample
class Visit:
    """One call of a data set.

    Attributes:
        supply: which pictures the openers return.
        is_cheap: whether they are cheap noise.
        keys: the keys of steps, which all visits share.
        known: by the key of a step, an example of what it returns, for cheap visits.
        seed: the seed of the noise.
        containers: files that hold many pictures, which all visits share.
        masks: the masks among the files, which all visits share; None: there are none.
        opened, calls, marks: what was opened and called, and the pictures that were handed out, in
            order.
        read: files that Python opened, in order.
        listed: folders that Python listed.
        events: what was opened and called, in a form that is compared with other visits.
        depth: how many pauses there are one inside another; nothing is recorded in them.
        failed_step: the last transform that raised an error; None: none did.
        drawn: the random states before and after each transform, but in cheap visits.
        changed: the first file that the program wanted to change; "": none.
        noise_number: visits with other numbers hand out other cheap noise, so that a picture of
            one shows no mark of another.
    """

    __slots__ = (
        *("supply", "is_cheap", "keys", "known", "seed", "containers", "masks", "opened", "calls"),
        *("marks", "read", "listed", "events", "depth", "failed_step", "drawn", "changed"),
        *("noise_number", "_noise"),
    )

    def __init__(
        self,
        supply: Supply,
        keys: StepKeys,
        known: dict[Any, Any],
        seed: int,
        containers: Containers,
        masks: MaskNotes | None = None,
        noise_number: int = 0,
    ):
        self.noise_number = noise_number
        self.supply, self.is_cheap, self.seed = supply, supply.size is not None, seed
        self.keys, self.known, self.containers, self.masks = keys, known, containers, masks
        self.opened: list[Opened] = []
        self.calls: list[TransformCall] = []
        self.marks: list[Mark] = []
        self.read: list[str] = []
        self.listed: list[str] = []
        self.events: list[Any] = []
        self.drawn: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        self.depth, self.changed = 0, ""
        self.failed_step: Any = None
        self._noise: np.random.Generator | None = None

    @property
    def noise(self) -> np.random.Generator:
        if self._noise is None:
            self._noise = np.random.default_rng(self.seed)
        return self._noise

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which nothing is recorded, since a library works on its own."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def refuse_change(self, what: str, path: str) -> None:
        """Keeps the program from changing a file: the pictures that it may keep in files are made
        up, and a file that a transform cannot take, and that it removes, is fine.
        """
        self.changed = self.changed or f"{what} {path}"
        raise PermissionError(f"{path} may not be changed while from_torch runs the data set")

    # Openers

    def open(self, opener: str, path: Any, data: bytes | None, options: tuple[Any, ...]) -> Opened:
        """Notes that a picture is opened, by its path or by its bytes."""
        most = 10 * _MOST_FILES if self.supply.keeps_data else _MOST_FILES
        if len(self.opened) >= most:
            raise EndlessError(
                f"it opens more than {most} files for one sample",
                self.failed_step is not None,
            )

        file: Place | None = None if path is None else _absolute(path)
        if file is None and data is not None:
            file = self._file_of(data) or self.containers.find(data, self.read)

        modes, number = self.supply.modes, len(self.opened)
        mode = modes[min(number, len(modes) - 1)] if modes else "RGB"
        # the walk over the stack is left out in cheap visits, of which there are many
        place = "" if self.is_cheap else place_of_user()
        # most cheap visits need the bytes no more, which would take new memory for each sample
        is_kept = not self.is_cheap or (self.supply.keeps_data and file is None)
        opened = Opened(opener, file, data if is_kept else None, place, mode)
        self.opened.append(opened)
        self.events.append((opener, *options))
        return opened

    def _file_of(self, data: bytes) -> str | None:
        """The file with these contents, the latest of those that were read; None: there is none."""
        files = []
        for path in self._latest_read():
            with suppress(OSError):  # it was a temporary file, or is none
                if self.containers.has_size(path, len(data)):
                    files.append(path)
        # cheap visits compare sizes only, where one file has it: contents would mean to read each
        # file once more
        if self.is_cheap and len(files) < 2:
            return files[0] if files else None
        for path in files:
            with suppress(OSError):  # it was a temporary file
                if Path(path).read_bytes() == data:
                    return path
        return None

    def _latest_read(self) -> list[str]:
        """The files that were read, each once, the latest first."""
        return list(dict.fromkeys(map(_absolute, reversed(self.read))))

    def encoded(self) -> bytes | None:
        """The made-up picture in place of the one that was opened last; None: the true one."""
        number = len(self.opened) - 1
        if self.supply.encode:
            return self.supply.encode(number)
        if self.masks is None or not (self.supply.makes_masks and self.masks.has(number)):
            return None
        with Image.open(self.opened[-1].source) as image:
            return self.masks.encode(number, image.size[::-1], self.seed)

    def hand_out(self, value: Any, opened: Opened) -> Any:
        """Marks a picture that an opener returns, by the pixels that the file is decoded to."""
        is_mask = self.masks is not None and self.masks.has(len(self.opened) - 1)
        # Pillow decodes the file once more, whichever opener it was: Image.open decodes nothing
        with self.paused():
            encoded = self.encoded()
            source = opened.source if encoded is None else io.BytesIO(encoded)
            if is_mask and (values := decode_mask(source)) is not None:
                opened.mode, pixels = values
                self.marks.append(Mark(value, pixels, opened, number=len(self.marks), is_mask=True))
                return value
            if encoded is not None:
                opened.mode, pixels, upright = decode_once(encoded)
            else:
                opened.mode, pixels, upright = decode(opened.source)
        self.marks.append(Mark(value, pixels, opened, 0, upright, len(self.marks)))
        return value

    def hand_out_noise(
        self, opened: Opened, make: Callable[[Opened, CheapNoise], tuple[Any, Snapshot | None]]
    ) -> Any:
        """Marks cheap noise, from which `make` makes what the opener returns, and of a tensor what
        it is now.
        """
        assert self.supply.size
        number = len(self.opened)
        if self.masks is not None and self.masks.has(number - 1):
            noise, values = self.masks.noise(number - 1, self.supply.size, self.seed)
            value, _ = make(opened, noise)
            self.marks.append(Mark(value, values, opened, number=len(self.marks), is_mask=True))
            return value

        noise = noise_of(self.seed + self.noise_number, number, self.supply.size, opened.mode)
        value, snapshot = make(opened, noise)
        # also for an array, of which code may make a PIL image
        twin = None if opened.mode in ("P", "1") else noise.twin
        number = len(self.marks)
        self.marks.append(Mark(value, noise.pixels, opened, 0, None, number, twin, snapshot))
        return value

    # Steps

    def call(self, original: Callable[..., Any], step: Any, args: Any, options: Any) -> Any:
        """Carries out a transform's call, and returns marked noise of the form of its result."""
        # what is given is compared before the call, which may write into it
        key = self.keys.of(step, self.is_cheap)
        given = list(pictures_in((args, options)))
        call = TransformCall(step, [self.match(each) for each in given], steps=[step], keys=(key,))
        call.takes_all = _takes_all((args, options), [step])
        # one step may get the image and then the mask, of which it makes something else
        call.example = key if self.masks is None else (key, *map(form_of, given))
        self.calls.append(call)
        self.events.append((key, *map(_relation, call.inputs)))

        if self.is_cheap and call.example in self.known:
            # a dict may have labels in it, which a transform passes on
            passed = args if len(args) > 1 else args[0] if args else options
            call.outputs = with_values_of(passed, self.known[call.example])
            if call.outputs is not None:
                return self._renew(call.outputs, call)

        # paused, since steps that a step calls are a part of it
        before = () if self.is_cheap else random_states()
        call.place = place_of_user()
        if None in call.inputs:
            call.strange = self._describe_strange(given[call.inputs.index(None)])
        with self.paused(), states_kept() if self.supply.hides_draws else nullcontext():
            try:
                result = original(step, *args, **options)
            except Exception:
                # the user's code may catch the error
                self.failed_step = step
                raise
            if not self.is_cheap:
                self.drawn.append((before, random_states()))
        call.outputs = result
        if self.masks is not None:
            results = list(pictures_in(result))
            self.masks.note(len(self.calls) - 1, call, given, results)
        return self._renew(result, call)

    def call_whole(self, steps: list[Any], compose: Any, args: Any) -> tuple[bool, Any]:
        """Notes the call of a Compose as one call of all its steps, since no code of the user runs
        between them. Returns whether that is possible, and the result.
        """
        # the result has the form of what the last step returns; a mask is followed step by step
        if self.masks is not None:
            return False, None
        numbers = self.keys.of_all(steps)
        example = self.known.get(numbers[-1])
        if example is None:
            return False, None

        # nearly all are called with one picture, and return one
        if len(args) == 1 and is_single(args[0]):
            number = len(self.marks)
            small = self.keys.pictures.known(example, number + self.noise_number)
            if small is not None:
                match = self.match(args[0])
                call = TransformCall(compose, [match], example, "", steps, numbers, "", numbers[-1])
                self.calls.append(call)
                self.events.append((numbers, _relation(match)))
                fresh, pixels, twin, snapshot = small
                self.marks.append(Mark(fresh, pixels, call, 0, None, number, twin, snapshot))
                return True, fresh

        passed = args if len(args) > 1 else args[0]
        outputs = with_values_of(passed, example)
        if outputs is None:
            return False, None

        given = list(pictures_in(args))
        inputs = [self.match(each) for each in given]
        call = TransformCall(compose, inputs, outputs, "", steps, numbers, example=numbers[-1])
        call.takes_all = _takes_all(args, steps)
        self.calls.append(call)
        self.events.append((numbers, *map(_relation, inputs)))
        return True, self._renew(outputs, call)

    def match(self, value: Any) -> Match | None:
        """The mark that a picture shows; None: it shows none."""
        # cheap comparisons come first
        if isinstance(value, Image.Image):
            for mark in reversed(self.marks):
                if mark.is_shown_by(value):
                    return Match(mark, "pil", "HW" if mark.pixels.ndim == 2 else "HWC")
        elif (still := self.find_still(value)) is not None and still.snapshot:
            return Match(still, "tensor", still.snapshot.layout)

        # in cheap visits the same few pictures come again and again
        contents = _contents(value) if self.is_cheap and self.masks is None else None
        if contents is None:
            return find(value, self.marks)
        # the noise of the marks is kept for all visits, so its identity says which one it is
        key = (contents, *[identity(mark.pixels) for mark in self.marks])
        known = self.keys.matches
        if key not in known:
            if len(known) > _MOST:
                known.clear()
            known[key] = find(value, self.marks)
        return replace(same, mark=self.marks[same.mark.number]) if (same := known[key]) else None

    def find_still(self, value: Any) -> Mark | None:
        """The mark whose tensor this is, as it was handed out; None: there is none."""
        for mark in reversed(self.marks):
            if value is mark.value:
                return mark if mark.snapshot is not None and mark.snapshot.holds(value) else None
        return None

    def _describe_strange(self, value: Any) -> str:
        """What a picture that shows no mark is, beside the file that was opened last."""
        if isinstance(value, Image.Image) and value.mode.startswith("I;16"):
            return WIDE
        marks = [mark for mark in self.marks if isinstance(mark.source, Opened)]
        mode = value.mode if isinstance(value, Image.Image) else "RGB"
        if mode not in ("RGB", "L") and marks and marks[-1].source.mode == mode:
            return f"{AS_STORED} {mode}"
        files = [mark.pixels for mark in marks]
        if not files or files[-1].ndim != 3 or files[-1].dtype != np.uint8:
            return ""

        picture, (height, width) = pixels_of(value), files[-1].shape[:2]
        if picture.shape[:2] != (height, width):
            return f"{picture.shape[1]} × {picture.shape[0]} pixels of {width} × {height}"
        # OpenCV's and Pillow's gray differ by rounding
        gray = np.asarray(Image.fromarray(files[-1]).convert("L"), np.float64)
        planes = picture.reshape(height, width, -1)
        is_gray = np.abs(planes - gray[..., None]).max() < 3
        return GRAY.get(planes.shape[2], "other values") if is_gray else "other values"

    def _renew(self, result: Any, call: TransformCall) -> Any:
        """The same structure with noise in place of the pictures, which are marked."""
        # one picture, as in nearly all cheap visits
        if self.is_cheap and self.masks is None and is_single(result):
            return self._mark_small(result, call, 0)

        count, call_number = 0, len(self.calls) - 1
        is_even = len(list(pictures_in(result))) == len(call.inputs)

        def renew(value: Any) -> Any:
            nonlocal count
            if not is_picture(value):
                return value
            if is_stack(value):
                return stack_like([renew(each) for each in value], value)
            match = call.inputs[count] if is_even else None
            if match and match.table and (mask := self._renew_mask(value, call_number, count)):
                fresh, pixels = mask
                self.marks.append(
                    Mark(fresh, pixels, call, count, number=len(self.marks), is_mask=True)
                )
                count += 1
                return fresh

            if self.is_cheap:
                fresh = self._mark_small(value, call, count)
            else:
                self.keys.pictures.note((call.example, count), value)
                fresh = with_noise(value, self.noise)
                # a copy: the user's code may write into what it gets
                pixels = pixels_of(fresh).copy()
                self.marks.append(Mark(fresh, pixels, call, count, number=len(self.marks)))
            count += 1
            return fresh

        return renew(result) if is_picture(result) else map_pictures(renew, result)

    def _mark_small(self, value: Any, call: TransformCall, place: int) -> Any:
        # other noise for each mark, so that no two marks of a visit are equal
        number = len(self.marks)
        fresh, pixels, twin, snapshot = self.keys.pictures.of(
            value, number + self.noise_number, (call.example, place)
        )
        self.marks.append(Mark(fresh, pixels, call, place, None, number, twin, snapshot))
        return fresh

    def _renew_mask(self, value: Any, number: int, place: int) -> tuple[Any, Pixels] | None:
        """A mask of other values in the form of a call's result, and these values (H, W)."""
        assert self.masks is not None
        if self.is_cheap:
            return self.masks.small(number, place, value, len(self.marks))
        return self.masks.fresh(number, place, value, self.noise)


def _absolute(path: Any) -> str:
    """As `os.path.abspath`; the same object where nothing changes, of which there are many."""
    if type(path) is str and path.startswith("/"):
        normal = os.path.normpath(path)
        return path if normal == path else normal
    return os.path.abspath(os.fsdecode(path))


def _relation(match: Match | None) -> Any:
    """A match as a part of what is compared between visits: which mark, and how."""
    return match and (match.mark.number, match.channels, match.scale is None)


def _contents(value: Any) -> Any:
    """What tells a small picture from others; None: it is not small."""
    if isinstance(value, Image.Image):
        # others are as the twin of a mark
        is_gray = value.mode == "L" and value.width * value.height <= _SMALL
        return ("L", value.size, value.tobytes()) if is_gray else None
    if isinstance(value, np.ndarray):
        is_small = value.nbytes <= _SMALL and not value.dtype.hasobject
        return (value.dtype, value.shape, value.tobytes()) if is_small else None

    # NumPy has no bfloat16, and a sparse tensor no bytes
    if (
        value.numel() > _SMALL // 8
        or value.dtype is torch.bfloat16
        or value.layout is not torch.strided
        or value.device.type != "cpu"
    ):
        return None
    array = to_array(value)
    return (value.dtype, array.shape, array.tobytes())


def place_of_user() -> str:
    """File, line and function of the code that called a library; "" if there is none."""
    frame: Any = sys._getframe(1)
    while frame:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name not in (*_LIBRARIES, "dali_pipes"):
            code = frame.f_code
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"
        frame = frame.f_back
    return ""


def _takes_all(passed: Any, steps: list[Any]) -> bool:
    """Whether torchvision's v2 does these steps to all of several pictures.

    Of plain tensors it takes the first one only, and none beside other pictures; arrays it only
    converts. A stack of pictures is one tensor.

    Args:
        passed: the arguments of the call.
    """
    given = list(wholes_in(passed))
    if len(given) < 2:
        return True
    names = [type(step).__name__ for step in steps]
    # what is a plain tensor after a step is one for the next one
    if any(name in ("ToTensor", "PILToTensor", "ToPureTensor") for name in names[:-1]):
        return False
    converts = names[:1] in (["ToImage"], ["ToTensor"])
    return all(
        isinstance(each, Image.Image)
        or type(each).__module__.startswith("torchvision.tv_tensors")
        or (isinstance(each, np.ndarray) and converts)
        for each in given
    )
