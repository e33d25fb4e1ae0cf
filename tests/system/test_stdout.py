import json
import sys

import pytest

from dali_pipes.system.stdout import print_json


@pytest.mark.parametrize("terminal", [False, True])
def test_a_result_is_a_line_of_json_where_no_person_reads(monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    print_json({"path": "é.jpg"})
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == ([] if terminal else [{"path": "é.jpg"}])
