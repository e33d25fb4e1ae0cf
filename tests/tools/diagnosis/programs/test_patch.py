"""What a fix changes in a program's text, and when nothing is said."""

import ast

import pytest

from dali_pipes.tools.diagnosis.programs.patch import patch_of

OPTIONS = {"num_workers": 4, "persistent_workers": True}
CHANGED = {
    "DataLoader(data, 8)": "DataLoader(data, 8, num_workers=4, persistent_workers=True)",
    "DataLoader(data, batch_size=8, num_workers=2)": (
        "DataLoader(data, batch_size=8, num_workers=4, persistent_workers=True)"
    ),
    "torch.utils.data.DataLoader(data, 8, True, None, None, 0)": (
        "torch.utils.data.DataLoader(data, 8, True, None, None, 4, persistent_workers=True)"
    ),
    "DataLoader(\n    data,  # ä, ö\n    num_workers=args.workers,\n)": (
        "DataLoader(\n    data,  # ä, ö\n    num_workers=4, persistent_workers=True,\n)"
    ),
    "DataLoader(('ß'), collate_fn=(lambda x: f(x)))": (
        "DataLoader(('ß'), collate_fn=(lambda x: f(x)), num_workers=4, persistent_workers=True)"
    ),
}


@pytest.fixture
def patched(tmp_path):
    def patch(text, options, line=None):
        file = tmp_path / "train.py"
        file.write_text(text)
        lines = text.splitlines()
        for each in patch_of(file, options, line).splitlines()[2:]:
            if each[0] == "@":
                first, count = ([*map(int, each.split()[1][1:].split(",")), 1])[:2]
                lines[first - 1 : first - 1 + count] = []
                at = first - 1
            elif each[0] == "+":
                lines.insert(at, each[1:])
                at += 1
        return "\n".join(lines)

    return patch


@pytest.mark.parametrize("call", CHANGED)
def test_the_options_are_written_into_the_call(patched, call):
    after = patched(f"import torch\nloader = {call}\nprint(1)\n", OPTIONS)
    assert after == f"import torch\nloader = {CHANGED[call]}\nprint(1)"
    ast.parse(after)


def test_an_option_that_goes_is_set_to_what_it_is_without(patched):
    call = "loader = DataLoader(data, num_workers=8, persistent_workers=True, prefetch_factor=4)"
    after = patched(
        call,
        {"num_workers": 0, "persistent_workers": None, "prefetch_factor": None, "timeout": None},
    )
    assert after == (
        "loader = DataLoader(data, num_workers=0, persistent_workers=False, prefetch_factor=None)"
    )


def test_the_call_at_the_line_is_changed_and_where_it_is_not_known_nothing_is_said(patched):
    two = "train = DataLoader(data)\ntest = DataLoader(data)"
    assert (
        patched(two, {"num_workers": 1}, line=2)
        == "train = DataLoader(data)\ntest = DataLoader(data, num_workers=1)"
    )
    for text, line in [
        (two, None),
        ("loader = DataLoader(data, **options)", 1),
        ("loader = make_loader(data)", 1),
        ("DataLoader(", 1),
    ]:
        assert patched(text, {"num_workers": 1}, line) == text
