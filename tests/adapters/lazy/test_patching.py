"""Functions of libraries are replaced while pictures wait, wherever they are, and put back."""

import importlib
import inspect
import math
import multiprocessing
import pickle
import sys
import threading
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch
from programs.running import in_a_fork
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from dali_pipes.adapters.lazy import patching
from dali_pipes.adapters.lazy.patching import patch_for_good, patched
from dali_pipes.adapters.lazy.steps import step
from dali_pipes.adapters.lazy.steps.step import Method, Step, add, original, replace


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch):
    """Whatever other tests of this process have kept."""
    monkeypatch.setattr(patching, "_something_waits", lambda: False)


SOURCE = '''
def double(value, by=2):
    """Doubles."""
    return value * by

class Base:
    def name(self):
        return "base"

class Thing(Base):
    def __init__(self, size):
        self._size = size

    def name(self):
        return "thing of " + super().name()

    def larger(self, by):
        return Thing(self._size + by)

    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self._size = value
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library that is not imported yet: its name. What a test replaces is forgotten after it."""
    name = f"library_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"user_of_{name}.py").write_text(f"from {name} import double\n")
    monkeypatch.syspath_prepend(tmp_path)
    before, rows, claimed = list(step.PATCHES), dict(step.STEPS), set(step._REPLACED)
    yield name
    step.PATCHES[:] = before
    for table, old in [(step.STEPS, rows), (step._REPLACED, claimed)]:
        table.clear()
        table.update(old)
    for module in [each for each in sys.modules if name in each]:
        del sys.modules[module]


def test_who_imported_a_function_by_its_name_calls_the_new_one_until_the_end(library):
    module = importlib.import_module(library)
    double, about = module.double, inspect.signature(module.double)
    replace(library, "double", lambda function, value, by=2: -function(value, by))
    kept = {"double": double}

    with patched():
        assert (double(3), kept["double"](3, by=4), module.double(3)) == (-6, -12, -6)
        assert inspect.signature(double) == about and double.__doc__ == "Doubles."
        assert inspect.getsource(double).startswith("def double") and module.double is double
    assert double(3) == 6 and inspect.signature(double) == about


def test_a_library_that_is_imported_later_is_met(library):
    replace(library, "double", lambda function, *args: -function(*args))

    with patched():
        assert library not in sys.modules
        user = importlib.import_module(f"user_of_{library}")
        assert user.double(3) == -6
        assert sys.modules[library].__spec__.loader.path.endswith(f"{library}.py")
    assert user.double(3) == 6


def test_methods_and_properties_are_replaced_in_their_class(library):
    module = importlib.import_module(library)
    replace(library, "Thing.name", lambda function, self: "lazy " + function(self))
    replace(library, "Thing.larger", lambda function, self, by: function(self, 10 * by))
    size = module.Thing.size
    replace(library, "Thing.size", Method(lambda was: property(lambda self: 100, was.fset)))
    replace(library, "Thing.color", lambda nothing, self: ("red", nothing))

    thing, name = module.Thing(1), module.Thing.name
    with patched():
        assert thing.name() == "lazy thing of base" and thing.larger(2)._size == 21
        thing.size = 5
        assert (thing._size, thing.size, thing.color()) == (5, 100, ("red", None))
    assert thing.name() == "thing of base" and thing.larger(2).size == 7 and thing.size == 5
    assert module.Thing.name is name and module.Thing.size is size
    assert not hasattr(thing, "color")


def test_functions_of_c_are_replaced_in_every_module(library):
    early, late = ModuleType("early_user"), ModuleType("late_user")
    sys.modules |= {"early_user": early, "late_user": late}
    early.root = true = math.isqrt
    replace("math", "isqrt", lambda function, value: -function(value))

    try:
        with patched():
            late.root = math.isqrt  # as `from math import isqrt` would
            assert (math.isqrt(9), early.root(9), late.root(9), true(9)) == (-3, -3, -3, 3)
            assert pickle.loads(pickle.dumps(math.isqrt)) is math.isqrt
        assert math.isqrt is early.root is late.root is true
    finally:
        del sys.modules["early_user"], sys.modules["late_user"]


def test_they_may_be_entered_again(library):
    module = importlib.import_module(library)
    replace(library, "double", lambda function, *args: -function(*args))

    outer, inner = patched(), patched()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert module.double(3) == -6
    inner.__exit__(None, None, None)
    assert module.double(3) == 6
    with patched():
        assert module.double(3) == -6


def test_threads_may_come_and_go(library):
    module = importlib.import_module(library)
    replace(library, "double", lambda function, value: 1000 + function(value))
    wrong, ends = [], threading.Event()

    def come_and_go():
        for _ in range(20):
            with patched():
                wrong.extend({module.double(3)} - {1006})

    def call():
        while not ends.is_set():
            wrong.extend({module.double(3)} - {6, 1006})

    callers = [threading.Thread(target=call) for _ in range(2)]
    others = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in (*callers, *others):
        thread.start()
    for thread in others:
        thread.join()
    ends.set()
    for thread in callers:
        thread.join()
    assert not wrong and module.double(3) == 6


def test_a_fork_has_them_and_may_enter_though_another_thread_held_the_lock(library):
    module = importlib.import_module(library)
    replace(library, "double", lambda function, *args: -function(*args))
    held, done = threading.Event(), threading.Event()

    def hold():
        with patching._PATCHES.lock:
            held.set()
            done.wait(60)

    def enter():
        with patched():
            return module.double(3)

    with patched():
        assert in_a_fork(lambda: module.double(3)) == -6
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert in_a_fork(enter) == -6
    finally:
        done.set()
        thread.join()


def patch_and_read(path):
    """In a new process: whether a picture waits that the late-imported OpenCV reads."""
    patch_for_good()
    import cv2

    from dali_pipes.adapters.lazy.state import waiting

    with waiting(True):
        waits = cv2.imread(path).waits
        return waits, type(cv2.blur(cv2.imread(path), (3, 3))).__name__


def test_a_spawned_process_meets_opencv_late(tmp_path):
    pytest.importorskip("cv2")
    import PIL.Image

    path = str(tmp_path / "a.png")
    PIL.Image.new("RGB", (8, 6), (1, 2, 3)).save(path)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(patch_and_read, (path,)) == (True, "ndarray")


def test_what_the_program_has_put_there_stays(library, monkeypatch):
    module = importlib.import_module(library)
    replace(library, "double", lambda function, *args: -function(*args))
    monkeypatch.setattr(module, "double", lambda value: "own")

    with patched():
        assert module.double(3) == "own"
    assert module.double(3) == "own"


def test_what_another_version_of_a_library_lacks_is_left_out(library):
    module = importlib.import_module(library)
    replace(library, "triple", lambda function, *args: 0)
    replace(library, "Other.method", lambda function, *args: 0)

    with patched():
        assert not hasattr(module, "triple") and module.double(3) == 6


def test_names_and_places_are_used_once(library):
    add(Step("made step", form=lambda value: None, owner=library, attribute="double", on="tensor"))

    with pytest.raises(ValueError, match="two steps are called made step"):
        add(Step("made step", make=len))
    with pytest.raises(ValueError, match=r"double is replaced by two rows"):
        replace(library, "double", len)


def test_original_is_what_was_there_and_steps_make_with_it(library):
    made = Step("made step", owner=library, attribute="double")
    replace(library, "double", lambda function, *args: None)

    with patched():
        module = importlib.import_module(library)
        assert module.double(3) is None and original(library, "double")(3) == 6
        assert made.make(4, by=3) == 12


COMPILED = {
    "resize": lambda image: F.resize(image, [8, 8]),
    "normalize": lambda image: v2.functional.normalize(image, [0.5] * 3, [0.5] * 3),
    "a new tensor": lambda image: image + torch.tensor([1.0, 2.0]).sum(),
}


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_compiled_is_compiled_as_ever(name):
    """Such as a network that normalizes its images, in a loop whose pictures wait."""
    image, function = torch.rand(3, 16, 16), COMPILED[name]
    expected = function(image)
    for context in (patched, nullcontext, patched):
        torch._dynamo.reset()
        with context():
            compiled = torch.compile(function, backend="eager", fullgraph=True)
            assert torch.equal(compiled(image), expected)
