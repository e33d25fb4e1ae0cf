"""Runs a user's data set and notes what it does: which files it opens, which transforms it calls.

- `visit.py`: what happens in one call of `dataset[index]`;
- `active_visit.py`: the visit of a thread, and the files that Python opens in it;
- `decoding.py`, `nesting.py`: pictures out of files, and in tuples, lists and dicts;
- `keys.py`: numbers that are equal for transforms that do the same, and small pictures;
- `containers.py`: files that hold many pictures, in which the bytes of each are found;
- `openers.py`, `steps.py`: functions and transforms of libraries that tell the visit;
- `marks.py`: pictures that are recognized again by their pixels;
- `made_up.py`: pictures that no data set has, to see what depends on pixels;
- `objects.py`: what an object of the user's program holds;
- `light_copy.py`, `kept.py`, `random_states.py`, `lru_caches.py`: the data set, what it may change
  outside of itself, random states and caches stay as they were;
- `worker_info.py`: a data set that runs as in a worker of a DataLoader.
"""
