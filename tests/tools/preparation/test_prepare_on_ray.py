"""engine=ray on two real nodes of Ray on this machine, one of which is killed in the middle."""

import signal
import threading
import time

import pytest
from later import later
from prepared import digests, prepared, result

import dali_pipes as dp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]
ray, cluster_utils = later("ray"), later("ray.cluster_utils", "ray")


@pytest.fixture(scope="module")
def cluster():
    """The head node runs no task; two others run one at a time."""
    handler = signal.getsignal(signal.SIGTERM)
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", made.address)
        # else Ray puts a print of its own among Python's builtins, for good
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")
        yield made, nodes
    ray.shutdown()
    made.shutdown()
    signal.signal(signal.SIGTERM, handler)


def test_a_machine_that_does_not_see_the_images_ends_the_run_by_name(
    cluster, image_folder, tmp_path, monkeypatch
):
    """Its tasks are given a folder that is not there. The test below takes a machine away, so this
    one comes first.
    """
    from dali_pipes.tools.preparation import on_ray

    written = on_ray._write

    def elsewhere(source, encoding, shard):
        return written(source, encoding, shard._replace(aside=shard.aside.parent / "nowhere" / "x"))

    monkeypatch.setattr(on_ray, "_write", elsewhere)
    with pytest.raises(
        dp.DaliPipesError,
        match=(
            r"engine=ray: .* does not see .*nowhere; engine=ray needs folders that all "
            r"machines share"
        ),
    ):
        prepared(image_folder, tmp_path / "out", to="shards", engine="ray")


@pytest.fixture
def own_handler():
    """A handler of SIGTERM, as a program may have one."""

    def handler(*_):
        raise SystemExit

    before = signal.signal(signal.SIGTERM, handler)
    yield handler
    signal.signal(signal.SIGTERM, before)


def test_a_lost_node_loses_nothing(cluster, own_handler, large_folder, tmp_path):
    made, nodes = cluster
    options = {"to": "shards", "resize": 200, "shard_mib": 1}
    shards, alive = tmp_path / "out/train", []

    def kill():
        while len(list(shards.glob("*.tar"))) < 2:
            time.sleep(0.01)
        made.remove_node(nodes[0], allow_graceful=False)
        alive.append(len(list(shards.glob("*.tar"))))

    killing = threading.Thread(target=kill)
    killing.start()
    folder = prepared(large_folder, tmp_path / "out", engine="ray", **options)
    killing.join()
    assert signal.getsignal(signal.SIGTERM) is own_handler
    there = digests(folder)
    assert (
        there == digests(prepared(large_folder, tmp_path / "local", **options))
        and alive[0] < len(there) - 2
    )
    assert result(tmp_path / "out")["images"] == 120
    prepared(large_folder, tmp_path / "out", engine="ray", **options)
    assert digests(folder) == there
