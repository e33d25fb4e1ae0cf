"""Simulated trainings: a model that takes some time for each batch, and loaders of given speeds.

A world has a number of cores, a model on them or on a GPU, and some loaders, each with its CPU
work, its queue, bursts, a start, and what it takes from the GPU. `World.train` returns when each
step ended.
"""

import math

import numpy as np

from dali_pipes.backends.auto.choosing import Choosing, StepTime


class World:
    def __init__(self, seed):
        drawn = np.random.default_rng(seed)
        count = self.count = int(drawn.integers(2, 5))
        self.cores, is_on_gpu = int(drawn.choice([2, 4, 8, 16])), drawn.random() < 0.6
        self.model = 10 ** drawn.uniform(-1.7, 0)  # seconds of a step without a loader
        self.noise, self.drift = drawn.uniform(0.01, 0.15), drawn.uniform(0, 0.05)
        self.epoch = int(10 ** drawn.uniform(2.7, 4))

        work = self.model * self.cores * np.exp(drawn.normal(-0.3, 0.8, count))  # of a CPU
        on_gpu = (drawn.random(count) < 0.4) & is_on_gpu
        self.takes_device = set(np.flatnonzero(on_gpu).tolist())
        self.period = work / self.cores * np.where(on_gpu, drawn.uniform(0.3, 1.2, count), 1)
        work = work * np.where(on_gpu, 0.2, 1)
        self.cpu = work + self.model * (0.05 if is_on_gpu else self.cores)
        # a loader takes a part of the GPU, or of the cores that the model needs
        slows = 1 + np.where(on_gpu, drawn.uniform(0, 0.1, count), 0)
        self.step = self.model * slows
        if not is_on_gpu:
            self.step = np.maximum(self.step, self.cpu / self.cores)
        self.queue, self.burst = drawn.integers(2, 8, count), drawn.choice([1, 1, 2, 4], count)
        self.ahead = (self.queue * self.burst).tolist()
        self.start = drawn.uniform(0, 1, count)

    def choosing(self):
        return Choosing(self.ahead, self.cores, self.epoch, self.takes_device)

    def train(self, steps, choosing=None, choice=0):
        """When each step ended, in seconds; with one loader, or with those that are chosen."""
        random, now, ends, took = np.random.default_rng(1), 0.0, [], 0.0
        known = set()
        loader, under_way = _Loader(self, choice, now, random, known), []
        for step in range(steps):
            is_own = not under_way
            ready, whose = loader.make() if is_own else under_way.pop(0)
            waited = max(0.0, ready - now)
            now += waited
            if is_own:
                loader.taken.append(now)
            if choosing:
                found = StepTime(took + waited, waited, self.cpu[whose])
                if not is_own:
                    choosing.pass_over(found)
                elif (chosen := choosing.add(found)) != whose:
                    under_way = [loader.make() for _ in range(self.ahead[whose])]
                    loader = _Loader(self, chosen, now, random, known)
            slow = 1 + self.drift * math.sin(step / 300)
            took = self.step[whose] * slow * np.exp(random.normal(0, self.noise))
            now += took
            ends.append(now)
        return np.array(ends)

    def rates(self, steps=1500):
        """Steps a second with each loader alone, without its start."""
        ends = [self.train(steps, choice=choice) for choice in range(self.count)]
        return np.array([(steps - 300) / (each[-1] - each[299]) for each in ends])


class _Loader:
    def __init__(self, world, choice, now, random, known):
        self._world, self.choice, self._random = world, choice, random
        # its workers stay when another one has a turn
        self._made_at = now + world.start[choice] * (0.2 if choice in known else 1)
        known.add(choice)
        self._count, self.taken = 0, []

    def make(self):
        """When the next batch is ready, and whose it is."""
        world, choice = self._world, self.choice
        if self._count % world.burst[choice] == 0:
            freed = self._count - world.ahead[choice]
            if 0 <= freed < len(self.taken):
                self._made_at = max(self._made_at, self.taken[freed])
            noise = np.exp(self._random.normal(0, world.noise))
            self._made_at += world.period[choice] * world.burst[choice] * noise
        self._count += 1
        return self._made_at, choice
