"""After a scan with verify="full" all CPU loaders decode what it finds usable."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from built_files import saved
from odd_inputs import BACKENDS, inserted, jpeg

import dali_pipes as dp
from dali_pipes.data.image_files.decoders import find_refusal

REFUSED = {
    "DALI": inserted(20, b"\0"),
    "torchvision": inserted(4000, b"\xff\xfe\xff\xff"),
    "Pillow": inserted(4000, b"\xff\xd8"),
}


def mutated(number: int) -> bytes:
    """A JPEG with a few other bytes, in its header, in its scan, or a marker in its scan."""
    draw = random.Random(number)
    content = bytearray(jpeg())
    scan = content.find(b"\xff\xda") + 14
    if number % 3 == 0:
        for _ in range(draw.choice([1, 2, 5])):
            content[draw.randrange(2, scan)] = draw.randrange(256)
    elif number % 3 == 1:
        for _ in range(draw.choice([1, 2, 10])):
            content[draw.randrange(scan, len(content))] = draw.randrange(256)
    else:
        place = draw.randrange(scan, len(content) - 2)
        content[place : place + 2] = bytes(
            [0xFF, draw.choice([0xD0, 0xD8, 0xD9, 0xC0, 0xC4, 0xDA, 0xE1, 0xFE])]
        )
    return bytes(content)


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutated")
    (root / "a").mkdir()
    for name, content in REFUSED.items():
        (root / f"a/{name}.jpg").write_bytes(content)
    for number in range(90):
        (root / f"a/{number}.jpg").write_bytes(mutated(number))
    return dp.Manifest.scan(root, verify="full", progress=False)


@pytest.mark.parametrize("loader", BACKENDS)
def test_every_loader_decodes_what_is_usable(scanned, loader):
    assert len(scanned) > 20
    transform = dp.EvalTransform(size=32, resize=40)
    with dp.build_loader(
        scanned, BACKENDS[loader], transform=transform, batch_size=16, max_bad_fraction=1
    ) as batches:
        assert sum(len(batch) for batch in batches) == len(scanned)


@pytest.mark.parametrize("decoder", REFUSED)
def test_the_decoder_that_refuses_is_named(scanned, decoder):
    problems = {name.rsplit("/", 1)[-1]: problem for name, problem in scanned.problems}
    assert problems[f"{decoder}.jpg"].startswith(f"cannot be decoded by {decoder} (")


@pytest.mark.slow
def test_a_full_scan_in_processes_after_one_in_this_process(scanned, tmp_path):
    """In another process, where none was before: forked workers must not touch the decoders of the
    first scan.
    """
    (tmp_path / "few/a").mkdir(parents=True)
    (tmp_path / "few/a/x.jpg").write_bytes(jpeg())
    program = (
        "import sys; from dali_pipes import Manifest as M; [M.scan(f, verify='full', "
        "progress=False) for f in sys.argv[1:]]"
    )
    subprocess.run(
        [sys.executable, "-c", program, tmp_path / "few", scanned.root], check=True, timeout=100
    )


def test_a_header_scan_takes_them_all(scanned):
    assert len(dp.Manifest.scan(scanned.root, progress=False)) >= len(scanned) + len(REFUSED)


def test_threads_do_not_get_the_pixels_of_one_another():
    """A scan of a store asks from many threads; of one file in eight DALI's pipeline is built
    anew.
    """
    files = [saved("PNG", height=20 + number, width=30) for number in range(7)] + [
        saved("PNG")[:200]
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda at: find_refusal(files[at % 8], 20 + at % 8, 30, "PNG"), range(160))
        )
    assert not any(why for at, why in enumerate(found) if at % 8 < 7)
    assert all("cannot be decoded" in why for why in found[7::8])
