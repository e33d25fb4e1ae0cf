"""What from_torch sees of the tests' own modules, and how many pictures it makes up."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="session")
def caches_of_modules():
    """The collector lists no objects that tests/conftest.py has frozen, so the functions with an
    `lru_cache` among them are kept in a list.
    """
    from dali_pipes.adapters.from_torch import recorder

    gc.unfreeze()
    caches = recorder.find_caches()
    gc.freeze()

    find = recorder.find_caches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "find_caches", lambda: [*caches, *find()])
        yield


@pytest.fixture
def few_made_up(monkeypatch):
    """One picture with made-up pixels, one of another mode: for what shows without the others."""
    from dali_pipes.adapters.from_torch import trace, tracer

    monkeypatch.setattr(trace, "MADE_UP", trace.MADE_UP[:1])
    monkeypatch.setattr(tracer, "OTHER_MODES", tracer.OTHER_MODES[:1])
