"""The order of the training data: which utterances stand together in which batch, for the whole run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import Sampler

from samplewise.asr.corpus import Corpus
from samplewise.asr.errors import UserError

ORDER = 3  # the stream of random numbers that orders are drawn from, beside those of corpus.py
Pair = tuple[int, int]  # epoch, index


class Batches(Sampler):
    """Batches of (epoch, index) pairs for the whole training; the same for the same seed.

    Every epoch is a new permutation, and the next one begins within the same batch: nothing is left out or taken twice.
    Utterances of some `pool` steps are sorted by length, cut into steps, and the steps shuffled, which saves padding. All
    batches of a step, over all processes, have the same number of utterances, so a mean of their means is the mean over
    the utterances of the step.

    Args:
        corpus: tells how many utterances there are, and how long they are.
        seed: of all permutations.
        steps: optimiser steps.
        batches: of one step, over all processes.
        processes: that the batches of a step are dealt to in turn; those that run at a time are made equally long.
        size: utterances of a batch; with `seconds` the most of them.
        seconds: a batch has as many utterances as fit, the longest of them times their number (None: always `size`).
        pool: steps whose utterances are sorted together; 1: not sorted, which `seconds` does not allow.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        seed: int,
        steps: int,
        batches: int,
        size: int,
        seconds: float | None = None,
        pool: int = 8,
        processes: int = 1,
    ):
        self.corpus = corpus
        self.seed = seed
        self.steps = steps
        self.batches = batches
        self.processes = processes
        self.size = size
        self.seconds = seconds
        self.pool = pool

    def __len__(self) -> int:
        return self.steps * self.batches

    def __iter__(self) -> Iterator[list[Pair]]:
        for step in islice(self._steps(), self.steps):
            size = len(step) // self.batches * self.processes
            for start in range(0, len(step), size):
                yield from self._balanced(step[start : start + size])

    def _balanced(self, pairs: list[Pair]) -> list[list[Pair]]:
        """Equal numbers of utterances for each process, and as equally many seconds as going from the longest to the shortest
        and always giving to the process that has least makes them."""
        if self.processes == 1:
            return [pairs]
        size = len(pairs) // self.processes
        batches: list[list[Pair]] = [[] for _ in range(self.processes)]
        totals = [(0.0, process) for process in range(self.processes)]  # a heap: the least is first
        for pair in sorted(pairs, key=lambda where: self.corpus.seconds(*where), reverse=True):
            total, process = heapq.heappop(totals)
            batches[process].append(pair)
            if len(batches[process]) < size:
                heapq.heappush(totals, (total + self.corpus.seconds(*pair), process))
        return batches

    def _steps(self) -> Iterator[list[Pair]]:
        """The utterances of each step, without end."""
        pending: list[Pair] = []
        seconds = 0.0
        for number, where in enumerate(self._permutations()):
            pending.append(where)
            seconds += self.corpus.seconds(*where) if self.seconds is not None else 0.0
            last = self.seconds is None and number + 1 == len(self) * self.size
            if not last and not self._enough(len(pending), seconds):
                continue
            rng = np.random.default_rng((self.seed, ORDER, 0, number))
            if self.seconds is None:
                yield from self._by_number(pending, rng)
                pending = []
            else:
                steps, pending = self._by_seconds(pending, self.seconds, rng)
                yield from steps
            seconds = sum(self.corpus.seconds(*pair) for pair in pending)

    def _enough(self, utterances: int, seconds: float) -> bool:
        """Whether so many utterances make a pool."""
        step = self.size * self.batches
        if self.seconds is None or utterances >= step * self.pool:
            return utterances >= step * self.pool
        return utterances >= self.batches and seconds >= self.seconds * self.batches * self.pool

    def _permutations(self) -> Iterator[Pair]:
        epoch = 0
        while True:
            rng = np.random.default_rng((self.seed, ORDER, epoch))
            yield from ((epoch, int(index)) for index in rng.permutation(len(self.corpus)))
            epoch += 1

    def _by_number(self, pairs: list[Pair], rng: np.random.Generator) -> list[list[Pair]]:
        """Steps of equal numbers of utterances."""
        if self.pool > 1:
            pairs = sorted(pairs, key=lambda where: self.corpus.seconds(*where))
        step = self.size * self.batches
        steps = [pairs[i : i + step] for i in range(0, len(pairs), step)]
        return [steps[i] for i in rng.permutation(len(steps))] if self.pool > 1 else steps

    def _by_seconds(self, pairs: list[Pair], most: float, rng: np.random.Generator) -> tuple[list[list[Pair]], list[Pair]]:
        """Steps whose batches are as large as `most` seconds with padding allow, and the few utterances left over.

        Steps are multiples of the number of batches. What is left over is drawn, not the longest: that would have to
        wait for ever.
        """
        left = {int(i) for i in rng.permutation(len(pairs))[: len(pairs) % self.batches]}
        kept = [pair for i, pair in enumerate(pairs) if i not in left]
        timed = sorted((self._seconds(pair), pair) for pair in kept)
        steps, end = [], len(timed)
        while end:
            longest = timed[end - 1][0]
            size = min(self.size, max(1, int(most / longest)), end // self.batches)
            steps.append([pair for _, pair in timed[end - size * self.batches : end]])
            end -= size * self.batches
        return [steps[i] for i in rng.permutation(len(steps))], [pairs[i] for i in sorted(left)]

    def _seconds(self, pair: Pair) -> float:
        seconds = self.corpus.seconds(*pair)
        if not 0 < seconds < math.inf:
            raise UserError(
                f"training.batch_seconds needs the length of every utterance, and that of number {pair[1]} is not known: "
                "give every line of the manifest its duration, or leave training.batch_seconds out"
            )
        return seconds
