import pytest

from dali_pipes.measure.wording import notes


@pytest.mark.parametrize(
    ("resident", "line"),
    [
        (None, "dali: whether its files had left the page cache is unknown."),
        (0.034, "dali: 3% of its files lay in the page cache when it began."),
    ],
)
def test_a_cold_result_says_what_was_in_the_page_cache(resident, line):
    arm = {"failed": None, "skipped": None, "images_per_s": 100.0, "resident": resident}
    result = {"arms": {"dali": arm}, "planning": [], "workers": {}, "work": {"workload": "cold"}}
    assert notes(result) == [line]
    assert notes(result | {"work": {"workload": "loader"}}) == []
