"""What a result says of where it comes from."""

import nvidia.dali

from dali_pipes.system.provenance import DALI, provenance


def test_the_dali_that_runs_is_named_whatever_its_cuda():
    versions = provenance({}, [])["versions"]
    assert [versions[name] for name in DALI if versions[name]] == [nvidia.dali.__version__]
