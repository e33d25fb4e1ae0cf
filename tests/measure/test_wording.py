from dali_pipes.measure.wording import control_line


def test_the_control_says_how_large_a_difference_must_be():
    itself = {
        "images_per_s": {"estimate": 0.99, "low": 0.98, "high": 0.9999},
        "cpu_s_per_1000_images": {"estimate": 1, "low": 0.9, "high": 1.1},
    }
    line = control_line(itself | {"holds": False}, "torch")
    assert line.startswith(
        "Control, torch against itself: images/s 0.99 [0.98, 1.00], CPU time 1.00 [0.90, "
        "1.10]: not equal in images/s"
    )
    assert line.endswith(
        "Differences are claimed in images/s beyond a factor of 1.02 and in CPU time beyond a "
        "factor of 1.11."
    )
    assert "in images/s beyond a factor of 1.04" in control_line(
        itself | {"holds": False}, "torch", restarts=False
    )
