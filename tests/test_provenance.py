"""What a result says of where it comes from."""

import nvidia.dali

from dali_pipes.provenance import DALI, provenance


def test_the_dali_that_runs_is_named_whatever_its_cuda(manifest):
    versions = provenance(manifest, [])["versions"]
    assert [versions[name] for name in DALI if versions[name]] == [nvidia.dali.__version__]
