"""Pictures that the programs of these tests open."""

import pytest
from lazy_programs import make_pictures


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of 20 small JPEGs."""
    return make_pictures(tmp_path_factory.mktemp("pictures"))
