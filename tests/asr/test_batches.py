"""The order of the training data: every utterance once an epoch, like lengths together, equal batches within a step."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest

from samplewise.asr.batches import Batches
from samplewise.asr.errors import UserError


class Varied:
    """Twenty utterances whose length is their index."""

    def __len__(self):
        return 20

    def seconds(self, epoch, index):
        return float(index)


class Speech:
    """Three hundred utterances of half a second to twenty seconds."""

    def __init__(self):
        self.lengths = np.random.default_rng(0).uniform(0.5, 20.0, size=300)

    def __len__(self):
        return len(self.lengths)

    def seconds(self, epoch, index):
        return float(self.lengths[index])


def numbered(steps: int = 15, seed: int = 1, pool: int = 3, batches: int = 1) -> Batches:
    return Batches(Varied(), seed=seed, steps=steps, batches=batches, size=4 // batches, pool=pool)


def timed(steps: int, batches: int = 1, seconds: float = 60.0, size: int = 100, seed: int = 1) -> list[list]:
    """The batches of each step."""
    found = list(Batches(Speech(), seed=seed, steps=steps, batches=batches, size=size, seconds=seconds, pool=4))
    assert len(found) == steps * batches
    return [found[i : i + batches] for i in range(0, len(found), batches)]


@pytest.mark.parametrize("pool", [1, 3, 50])
@pytest.mark.parametrize("steps", [15, 13, 1])
def test_every_utterance_comes_once_an_epoch(pool, steps):
    found = list(numbered(steps, pool=pool))
    assert len(found) == len(numbered(steps)) == steps
    pairs = list(chain(*found))
    assert len(set(pairs)) == len(pairs) == 4 * steps
    counts = Counter(epoch for epoch, _ in pairs)
    assert counts == {epoch: min(20, len(pairs) - 20 * epoch) for epoch in range(-(-len(pairs) // 20))}


def test_the_order_is_the_same_for_the_same_seed_only():
    assert list(numbered()) == list(numbered())
    assert list(numbered()) != list(numbered(seed=2))
    assert timed(20) == timed(20) and timed(20) != timed(20, seed=2)


def test_every_epoch_has_an_order_of_its_own():
    pairs = list(chain(*numbered(pool=1)))
    orders = [[index for at, index in pairs if at == epoch] for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_two_processes_take_the_utterances_of_one():
    alone, shared = list(numbered(batches=1)), list(numbered(batches=2))
    assert [sorted(batch) for batch in alone] == [sorted(shared[i] + shared[i + 1]) for i in range(0, len(shared), 2)]


def test_groups_of_like_length_stand_together():
    def spread(batches) -> float:
        return float(np.mean([max(i for _, i in batch) - min(i for _, i in batch) for batch in batches]))

    batches = list(numbered(pool=5))
    assert spread(batches) < 0.5 * spread(list(numbered(pool=1)))
    firsts = [batch[0][1] for batch in batches[:5]]
    assert firsts != sorted(firsts), "batches must not come in order of length"


@pytest.mark.parametrize("batches", [1, 3])
def test_batches_by_seconds_are_full_but_not_more(batches):
    corpus = Speech()
    for step in timed(40, batches):
        sizes = {len(batch) for batch in step}
        assert len(sizes) == 1, "all batches of a step have the same number of utterances"
        longest = max(corpus.seconds(*pair) for batch in step for pair in batch)
        assert sizes.pop() * longest <= 60
    padded = [max(corpus.seconds(*p) for p in batch) * len(batch) for step in timed(40, batches) for batch in step]
    spoken = [corpus.seconds(*p) for step in timed(40, batches) for batch in step for p in batch]
    assert np.mean(padded) > 40, "most of the seconds are used"
    assert sum(spoken) > 0.8 * sum(padded), "and most of them are speech"


@pytest.mark.parametrize("batches", [1, 3, 7])
def test_batches_by_seconds_leave_nothing_out_and_take_nothing_twice(batches):
    pairs = list(chain(*chain(*timed(600 // batches, batches))))
    assert len(set(pairs)) == len(pairs)
    epochs = max(epoch for epoch, _ in pairs)
    assert epochs >= 3
    whole = {(epoch, index) for epoch in range(epochs - 2) for index in range(300)}
    assert whole <= set(pairs)


def test_the_number_of_utterances_is_bounded_and_an_overlong_one_goes_alone():
    assert max(len(batch) for step in timed(60, size=5) for batch in step) == 5
    assert all(len(batch) == 1 for step in timed(60, seconds=0.1) for batch in step)


def test_steps_by_seconds_come_in_no_order_of_length():
    longest = [max(Speech().seconds(*pair) for pair in chain(*step)) for step in timed(30)]
    falls = sum(after < before for before, after in pairwise(longest))
    assert 8 <= falls <= 21, "of 29; sorted steps rise at the end of each pool alone"


def shared(processes: int, accumulate: int = 1, pool: int = 4, **options) -> list[list[list[tuple[int, int]]]]:
    """The batches that run at a time on so many processes."""
    given = {"seed": 1, "steps": 30, "batches": processes * accumulate, "size": 4, "pool": pool, **options}
    found = list(Batches(Speech(), processes=processes, **given))
    return [found[i : i + processes] for i in range(0, len(found), processes)]


@pytest.mark.parametrize("options", [{}, {"pool": 1}, {"accumulate": 2}, {"seconds": 60.0, "size": 100}])
def test_processes_get_equally_many_seconds(options):
    corpus = Speech()

    def waiting(groups) -> float:
        """Seconds of the busiest process, all steps together, over what they would be if all had the same."""
        seconds = [[sum(corpus.seconds(*pair) for pair in batch) for batch in batches] for batches in groups]
        return sum(map(max, seconds)) / sum(map(np.mean, seconds))

    balanced = shared(8, **options)
    assert all(len({len(batch) for batch in batches}) == 1 for batches in balanced)
    plain = {"batches": 8 * options.get("accumulate", 1), "size": 4, "pool": 4, **options}
    plain.pop("accumulate", None)
    before = list(Batches(corpus, seed=1, steps=30, **plain))
    found = waiting(balanced), waiting([before[i : i + 8] for i in range(0, len(before), 8)])
    assert found[0] < 1.08 and found[0] - 1 < (found[1] - 1) / 2, found
    assert sorted(chain(*before)) == sorted(chain(*chain(*balanced))), "the utterances are those of the same steps"
    longest = [max(corpus.seconds(*pair) for pair in batch) * len(batch) for batches in balanced for batch in batches]
    assert "seconds" not in options or max(longest) <= 60


def test_accumulated_batches_stay_of_like_length():
    """Only what runs at the same time is balanced: the batches that follow each other keep their little padding."""
    steps = list(Batches(Speech(), seed=1, steps=9, batches=4, size=5, pool=4))
    assert steps == list(Batches(Speech(), seed=1, steps=9, batches=4, size=5, pool=4, processes=1))
    corpus = Speech()
    for step in range(9):
        first, second = (
            [corpus.seconds(*pair) for pair in chain(*batches)]
            for batches in shared(2, accumulate=2, size=5)[2 * step : 2 * step + 2]
        )
        assert max(first) <= min(second)


def test_unknown_lengths_are_told():
    with pytest.raises(UserError, match=r"training\.batch_seconds needs the length"):
        list(Batches(Varied(), seed=1, steps=9, batches=1, size=4, seconds=9.0))


def test_a_longer_run_begins_as_a_shorter_one_did():
    """Whose steps were whole pools; with batches by seconds any will do."""
    assert list(numbered(steps=6)) == list(numbered(steps=30))[:6]
    assert timed(steps=7) == timed(steps=20)[:7]
