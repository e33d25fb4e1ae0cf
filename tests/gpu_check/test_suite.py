"""The tests of a made-up checkout, run as those of this one are."""

import psutil
import pytest
from gpu_check.bench import Bench, PartError
from gpu_check.config import GpuCheckConfig
from gpu_check.suite import run_tests

pytestmark = pytest.mark.slow
TESTS = {
    "test_fine.py": """
import os, pytest
pytestmark = pytest.mark.needs_cuda
def test_passes():
    assert os.environ["DALI_PIPES_IMAGES"] == "/images"
    assert os.environ.get("FAIL_WITHOUT_CUDA") == "1"
@pytest.mark.parametrize("number", range(4))
def test_fails_for_one(number): assert number != 2, "two is wrong"
def test_skips(): pytest.skip("no such thing here")
@pytest.mark.alone
def test_alone(): pass
""",
    "test_crash.py": """
import os, pytest, signal
pytestmark = pytest.mark.needs_cuda
def test_before(): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_after(): pass
""",
    "test_other.py": "def test_needs_no_gpu(): assert False",
    "test_missing.py": "import no_such_package  # needs_cuda",
}
INI = (
    '[tool.pytest.ini_options]\ntimeout = 300\naddopts = "-n 2"\nmarkers = ["needs_cuda", '
    '"alone"]\n'
)


@pytest.fixture
def checkout(tmp_path):
    def make(*names, **others):
        (tmp_path / "tests").mkdir()
        (tmp_path / "pyproject.toml").write_text(INI)
        for name in names:
            (tmp_path / "tests" / name).write_text(TESTS[name])
        for name, content in others.items():
            (tmp_path / "tests" / f"{name}.py").write_text(content)
        return tmp_path

    return make


def outcomes(checkout, seconds=90.0):
    details = checkout / "out"
    details.mkdir()
    bench = Bench(GpuCheckConfig(), "m.parquet", "/images", details, 4)
    found = run_tests(bench, checkout, seconds, fail_without_cuda=True)
    return found["counts"], {each["test"]: each for each in found["failed"]}, found


def test_a_test_that_ends_its_process_costs_no_other(checkout):
    counts, failed, found = outcomes(checkout(*TESTS))
    assert counts == {"passed": 7, "failure": 1, "skipped": 1, "error": 2}
    assert "two is wrong" in failed["tests/test_fine.py::test_fails_for_one[2]"]["reason"]
    assert "crashed while running" in failed["tests/test_crash.py::test_crashes"]["reason"]
    assert "no_such_package" in failed["tests/test_missing.py::tests.test_missing"]["reason"]
    assert found["skipped"] == {"no such thing here": 1} and not found["no_time"]


def test_what_does_not_fit_into_the_time_is_counted_and_ended_with_all_that_it_started(checkout):
    slow = (
        "import pytest, subprocess\n@pytest.mark.needs_cuda\n@pytest.mark.parametrize('n', "
        "range(9))\n"
    )
    slow += "def test_n(n): subprocess.run(['sleep', '777.5'], check=True)\n"
    slow += "@pytest.mark.needs_cuda\n@pytest.mark.alone\ndef test_alone(): pass\n"
    counts, failed, found = outcomes(checkout(test_slow=slow), seconds=60.0)
    assert counts["passed"] == 1 and counts["error"] == len(failed)
    assert found["no_time"] == 9 - len(failed) > 0
    assert not [
        each
        for each in psutil.process_iter(["cmdline"])
        if each.info["cmdline"] == ["sleep", "777.5"]
    ]


def test_nothing_to_run(checkout):
    assert outcomes(checkout("test_other.py", test_none="x = 1  # needs_cuda"))[:2] == ({}, {})


def test_a_checkout_that_pytest_cannot_read(checkout):
    folder = checkout(*TESTS)
    (folder / "pyproject.toml").write_text("[")
    with pytest.raises(PartError, match=r"(?s)pytest ended with status 4: .*pyproject\.toml"):
        outcomes(folder)
