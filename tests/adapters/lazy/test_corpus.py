"""Programs as their authors write them: equal batches with lazy pictures, whoever makes them."""

# each registers its own
import programs.array_programs
import programs.group_programs
import programs.pillow_programs
import programs.store_programs  # noqa: F401
import pytest
from programs.comparing import compare
from programs.corpus import PROGRAMS
from programs.pictures import make_pictures

import dali_pipes as dp

MEAN = 1.0  # of 255: how far the pixels of a backend may be from the program's, on average
QUICK = sorted(name for name, program in PROGRAMS.items() if program.quick)
BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
}

every_program = pytest.mark.parametrize("name", sorted(PROGRAMS))
every_loader = pytest.mark.parametrize(
    "name", sorted(name for name, program in PROGRAMS.items() if not program.wraps)
)


@pytest.fixture(scope="module", autouse=True)
def small_pictures(tmp_path_factory):
    make_pictures(tmp_path_factory.mktemp("small"))


def check(name, workers=0, config=None, **options):
    program = PROGRAMS[name]
    for library in program.missing:
        pytest.skip(f"without {library}")
    found = compare(program, workers, config, **options)
    assert not found.difference, f"{found.difference}\n{found.new.trace}"
    return found


@pytest.mark.parametrize("name", QUICK)
def test_program(name):
    assert check(name, check=False).new.waited > 0


@pytest.mark.slow
@every_loader
def test_every_program_with_workers(name):
    check(name, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@every_program
def test_program_by_a_backend(name, backend):
    found = check(name, config=BACKENDS[backend], check=False)
    assert found.mean < MEAN, f"pixels differ by {found.mean} of 255 on average"
