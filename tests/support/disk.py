"""How much a folder of copies holds, watched while others fill it."""

import contextlib
import threading

from dali_pipes.data.shards import copies


class Disk:
    """The most that the copies in a folder ever had, as seen every few milliseconds."""

    def __init__(self, folder):
        self.folder, self.most, self._stop = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._stop.wait(0.002):
            self.most = max(self.most, size_of(self.folder))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *what):
        self._stop.set()
        self._thread.join()


def size_of(folder):
    """With the lock under which copies are begun and removed, so that none is counted that has gone
    when another is counted.
    """
    if not (folder / "folder.lock").exists():
        return 0
    with copies._locked(folder / "folder.lock"):
        found = {}
        for path in folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found[stat.st_ino] = stat.st_size  # one that is renamed meanwhile is seen twice
        return sum(found.values())
