import subprocess

import moves
import pytest
from moves import compare, main

OLD = '''
"""Words."""
import json
from collections.abc import Iterator

LIMIT = 3


class Reader(Base):
    """Words."""

    size: int = 4

    def read(self, count=1):
        from package.old import parse

        return parse(count)

    def close(self):
        """Words."""


class Writer(Base):
    size: int = 4


@cached
def count(values, *, start=0):
    # words
    return len(values) + start
'''


def changed(*replaced):
    text = OLD
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return differences({"a.py": OLD}, {"a.py": text})


def differences(old, new):
    return compare(old, new), compare(new, old)


def test_code_that_moves_to_other_files_is_the_same():
    head, function = OLD.split("@cached")
    moved = {
        "b/readers.py": head.replace("package.old", "package.new.place").replace("Words", "Other"),
        "c.py": f"import os\n\n@cached{function.replace('# words', '# others')}",
    }
    assert differences({"a.py": OLD}, moved) == ([], [])


def test_a_method_that_moves_to_another_class_is_seen():
    close = '\n    def close(self):\n        """Words."""\n'
    one, other = changed(
        (close, ""), ("    size: int = 4\n\n\n@", f"    size: int = 4\n{close}\n@")
    )
    assert (one, other) == (["Reader.close  (a.py)"], ["Writer.close  (a.py)"])


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("import parse", "import parse_all as parse", "Reader.read"),
        ("@cached\n", "", "count"),
        ("LIMIT = 3", "LIMIT = 4", "LIMIT = 3"),
        ("start=0", "start=1", "count"),
        ("count=1", "count", "Reader.read"),
        ("Writer(Base):\n    size: int", "Writer(Base):\n    size: float", "class Writer"),
        ("class Reader(Base)", "class Reader(Other)", "class Reader"),
        ("def count", "async def count", "count"),
        ("def count", "def count_all", "count"),
    ],
)
def test_a_change_is_seen_and_named(old, new, name):
    only_old, only_new = changed((old, new))
    assert only_old == [f"{name}  (a.py)"] and len(only_new) == 1


def test_a_second_copy_and_one_that_is_lost_are_seen():
    text = "def f():\n    return 1\n"
    assert differences({"a.py": text}, {"a.py": text, "b.py": f"import os\n{text}"}) == (
        [],
        ["f  (b.py)"],
    )
    assert differences({"a.py": text, "b.py": text}, {"b.py": text}) == (["f  (a.py, b.py)"], [])


def test_imports_of_a_module_are_left_out_wherever_they_stand():
    text = "if TYPE_CHECKING:\n    from a import b\n"
    text += "try:\n    import c\nexcept ImportError:\n    c = 0\n"
    assert differences({"a.py": text}, {"a.py": text.replace("import c", "import d as c")}) == (
        [],
        [],
    )
    assert len(compare({"a.py": text}, {"a.py": text.replace("c = 0", "c = 1")})) == 1
    assert len(changed(("import json", "import json\nif DEBUG:\n    import a\n    a.b()"))[1]) == 1


def test_it_reads_folders_and_commits_and_ends_with_a_status(tmp_path, monkeypatch, capsys):
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.setattr(moves, "REPO", repository)

    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=repository, check=True
        )

    git("init", "-q")
    (repository / "a.py").write_text(OLD)
    git("add", "."), git("commit", "-qm", "one")
    git("mv", "a.py", "b.py"), git("commit", "-qm", "two")

    assert main(["HEAD~1", "HEAD"]) == 0
    assert capsys.readouterr().out == "only old: 0, only new: 0\n"

    (repository / "b.py").write_text(OLD.replace("LIMIT = 3", "LIMIT = 4"))
    assert main(["HEAD", str(repository)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "- LIMIT = 3  (b.py)",
        "+ LIMIT = 4  (b.py)",
        "only old: 1, only new: 1",
    ]
    with pytest.raises(SystemExit, match="gone: neither a folder nor a commit"):
        main(["gone", "HEAD"])
