"""What tries to make lazy pictures silently wrong: batches are equal, or it is said, or it is loud.

Each trap runs without comparisons of samples, as if nobody looked, and in one later sample only.
"""

import pytest
from programs.breaking import TRAPS
from programs.pictures import make_pictures
from programs.traps import judge

# in the fast tests: one of each kind
QUICK = (
    "tensor_and_alias_from_before",
    "slices_and_views_of_an_array",
    "cache_of_tensors_changed_in_place",
    "old_file_is_overwritten_and_its_time_set_back",
    "broken_file_and_the_next_one",
    "type_of_a_picture_is",
    "type_of_a_tensor_is",
    "pool_of_threads_in_getitem",
    "functions_of_the_library_that_the_program_replaces",
    "batches_of_classes",
    "collate_function_that_mixes_in_workers",
    "workers_get_shards_by_worker_init_fn",
    "kept_and_an_error_while_pictures_wait_containers",
)
# an error that the program alone does not have
LOUD = {
    "cache_of_opened_pictures_whose_files_go": "nobody has their bytes any more",
    "broken_file_where_workers_have_another_program": "what they have is not here",
    "loader_changes_between_epochs": "a lazy loader has no settings",
    "sample_after_sample_of_an_iterator": "an iterator cannot be set back",
    "kept_and_an_error_while_pictures_wait_numbers_of_a_queue": "the same",
    "kept_and_an_error_while_pictures_wait_members_of_a_stream": "the same",
    "kept_and_an_error_while_pictures_wait_shared_count": "other processes may have counted, too",
    "kept_and_an_error_while_pictures_wait_shared_count_without_a_lock": "the same",
}


@pytest.fixture(scope="module", autouse=True)
def small_pictures(tmp_path_factory):
    make_pictures(tmp_path_factory.mktemp("small"))


def check(name, **options):
    outcome = judge(TRAPS[name], **options)
    expected = ["loud"] if name in LOUD else ["equal", "said"]
    assert outcome.kind in expected, f"{outcome.kind}: {outcome.text}"
    return outcome


@pytest.mark.parametrize("name", QUICK)
def test_trap(name):
    check(name, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRAPS.keys() - set(QUICK)))
def test_every_trap(name):
    check(name, check=False)


@pytest.mark.slow
@pytest.mark.few(30)
@pytest.mark.parametrize("name", sorted(name for name, trap in TRAPS.items() if trap.item))
def test_trap_in_a_later_sample(name):
    check(name, later=True)


def test_pictures_wait_in_traps():
    """Else all would be equal for nothing."""
    waited = [judge(TRAPS[name], check=False).waited for name in QUICK[:3]]
    assert sum(waited) > 6, waited
