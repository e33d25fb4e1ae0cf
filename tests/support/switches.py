"""Auto loaders that change what makes their batches, whatever the time that these take."""

from dali_pipes.backends.auto.choosing import Choosing


def switch_every(monkeypatch, batches, leads=True):
    """Lets each auto loader take another choice every so many batches.

    Args:
        leads: whether that is the best one so far, or only tried.
    """

    def add(self, step):
        self.count = getattr(self, "count", 0) + 1
        if self.count % batches == 0:
            there = [each for each in range(len(self._ahead)) if each not in self.why]
            at = there.index(self.current)
            self.current = there[(at + 1) % len(there)]
            self.leader = self.current if leads else self.leader
        return self.current

    monkeypatch.setattr(Choosing, "add", add)
    monkeypatch.setattr(Choosing, "pass_over", lambda self, step: None)


def decide(monkeypatch, choice):
    """Lets each auto loader take this one for good."""

    def add(self, step):
        self.current = self.leader = choice
        self.is_decided = True
        return choice

    monkeypatch.setattr(Choosing, "add", add)
