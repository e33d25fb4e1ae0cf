"""What comes out of each kind of source: images, labels, sizes, own columns, objects, what is left
out, and the errors of what is refused.
"""

from pathlib import Path

import pytest
from golden import hold_to
from sources import changes, folders, objects, sets, shards, stores, tables
from sources.description import describe

FILE = Path(__file__).with_name("sources.json")
PAGES = (folders, tables, objects, shards, sets, changes)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_RANK", raising=False)  # only the first rank logs


def name_of(page):
    return page.__name__.rpartition(".")[2]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's, as of any program
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sources_give_what_they_gave(page):
    hold(page, page.write())


@pytest.mark.slow
# what the libraries of stores leave to the garbage collector, and what they call by old names
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_sources_behind_urls_give_what_they_gave():
    with stores.serving() as (cases, places):
        hold(stores, cases, places)


def hold(page, cases, places=()):
    places = {str(Path.cwd()): "ROOT", **dict(places)}
    found = {name: describe(open_source, places) for name, open_source in cases.items()}
    hold_to(FILE, found, part=name_of(page))
