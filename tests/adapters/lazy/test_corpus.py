"""Programs as their authors write them: equal batches with lazy pictures, whoever makes them."""

import pytest
from programs.breaking import CONFIGS
from programs.corpus import PROGRAMS
from programs.pictures import make_pictures
from programs.traps import MEAN

QUICK = sorted(name for name, program in PROGRAMS.items() if program.quick)
LOADERS = sorted(name for name, program in PROGRAMS.items() if not program.wraps)


@pytest.fixture(scope="module", autouse=True)
def small_pictures(tmp_path_factory):
    make_pictures(tmp_path_factory.mktemp("small"))


def check(name, workers=0, **options):
    program = PROGRAMS[name]
    for library in program.missing:
        pytest.skip(f"without {library}")
    found = program.compare(workers, **options)
    assert not found.difference, f"{found.difference}\n{found.new.trace}"
    return found


@pytest.mark.parametrize("name", QUICK)
def test_program(name):
    assert check(name, check=False).new.waited > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_every_program_with_workers(name):
    check(name, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "dali"])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program_by_a_backend(name, backend):
    found = check(name, config=CONFIGS[backend], check=False)
    assert found.mean < MEAN, f"pixels differ by {found.mean} of 255 on average"
