import numpy as np
import pytest

from dali_pipes.plan.draws import BatchDraws, Draws, Kind, permute, philox4x32

# Random123's known answers (kat_vectors, philox 4x32 10)
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0xA4093822 | 0x299F31D0 << 32,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    assert tuple(map(int, philox4x32(counter, key))) == expected


def test_counters_broadcast_like_arrays():
    ids, draws = np.arange(5)[:, None], np.arange(3)
    together = philox4x32((ids, 7, draws, 0), 9)
    assert together.shape == (4, 5, 3)
    assert together[:, 4, 2].tolist() == philox4x32((4, 7, 2, 0), 9).tolist()


def test_a_draw_depends_on_its_key_alone():
    ids = np.array([3, 999_999, 12])
    all_of_them = Draws(5, 2, ids).uniform(np.arange(4))
    assert np.array_equal(Draws(5, 2, ids[1:2]).uniform(2)[:, 0], all_of_them[:, 1, 2])
    assert np.array_equal(Draws(5, 2, ids).uniform(3, ids < 100), all_of_them[:, ids < 100, 3])
    for other in (Draws(6, 2, ids), Draws(5, 3, ids), Draws(5, 2, ids + 1)):
        assert not np.isclose(other.uniform(np.arange(4)), all_of_them).any()


def test_every_kind_of_random_number_has_counters_of_its_own():
    """Ids and places beyond 32 bits too, and each view."""
    ids, far = np.array([3, 9]), np.array([3, 9]) + 2**32
    drawn = [
        Draws(5, 2, *numbers).uniform(np.arange(3))
        for numbers in (
            (ids,),
            (far,),
            (ids, Kind.PLACE),
            (far, Kind.PLACE),
            (ids, Kind.SAMPLE, 1),
            (ids, Kind.SAMPLE, 2),
        )
    ]
    assert len(np.unique(drawn)) == np.size(drawn)
    assert np.array_equal(
        Draws(5, 2, np.array([3, 2**32 + 9])).uniform(0)[:, 1], Draws(5, 2, far).uniform(0)[:, 1]
    )
    batches = [BatchDraws(5, 2, place).uniform(np.arange(3)) for place in (3, 3 + 2**32)]
    assert not np.isin(batches[0], batches[1]).any() and not np.isin(batches, drawn).any()


def test_random_numbers_are_those_of_the_first_version():
    """Written down once: whatever changes them changes every run."""
    assert Draws(7, 3, np.array([5, 2**40 + 5])).uniform(1)[0].tolist() == DRAWN
    assert Draws(7, 3, np.array([5]), Kind.PLACE, 2).uniform(1)[0].tolist() == BY_PLACE
    assert permute(1000, np.arange(8), 7, Kind.IMAGES, 3).tolist() == ORDER
    assert permute(10**9, np.arange(3), 7, Kind.MEMBERS, 2**40, 5).tolist() == FAR_ORDER
    assert permute(1000, np.arange(4), 7, Kind.SHARDS, 3).tolist() == SHARDS
    assert permute(1000, np.arange(4), 7, Kind.SHARD_WINDOW, 3, 2).tolist() == IN_WINDOW


DRAWN = [0.5256563646253198, 0.8839373860973865]
BY_PLACE = [0.7922014673240483]
ORDER = [425, 646, 538, 125, 818, 479, 97, 157]
FAR_ORDER = [91221691, 284291244, 215344240]
SHARDS = [575, 559, 88, 876]
IN_WINDOW = [491, 42, 418, 349]
