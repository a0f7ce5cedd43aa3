"""`rnnt_loss` of packed logits, (sum_b T_b (U_b + 1), V): the numbers of padded ones, and no padded copy."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise import topology as topologies
from samplewise.kernels import backend
from samplewise.ops.logits import rnnt, rnnt_gradient
from tests.conftest import BACKENDS
from tests.ops.test_logits import REDUCTIONS, run
from tests.ops.test_logits_topologies import READ, blank_of, make, normalised, upstream_of
from tests.test_reference_topologies import TOPOLOGIES

FRAMES, LABELS = (6, 1, 4, 5), (2, 0, 3, 0)


def pack(padded, frames, labels):
    """The rows (sum_b T_b (U_b + 1), V) that are not padding."""
    lengths = zip(frames.tolist(), labels.tolist(), strict=True)
    return torch.cat([padded[b, :t, : u + 1].flatten(0, 1) for b, (t, u) in enumerate(lengths)])


def both(topology, dtype=torch.float64, frames=FRAMES, labels=LABELS, fused=True):
    """The arguments with padded logits, and with packed ones."""
    logits, *integers = make(topology, dtype, frames, labels)
    if not fused:
        logits = normalised(logits.double(), topology).to(dtype)
    return (logits, *integers), (pack(logits, *integers[1:]), *integers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("topology", "fused"), [(t, True) for t in TOPOLOGIES] + [(t, False) for t in READ], ids=lambda x: str(x)
)
def test_the_same_as_padded(topology, fused, dtype):
    """To the last digit, in every reduction, the utterances being the same."""
    padded, packed = both(topology, dtype, fused=fused)
    reduction = REDUCTIONS[TOPOLOGIES.index(topology) % len(REDUCTIONS)]
    upstream = upstream_of(len(FRAMES)) if reduction == "none" else torch.tensor(0.7)
    options = {
        "topology": topology, "blank": blank_of(topology), "fused_log_softmax": fused, "reduction": reduction,
        "fastemit_lambda": 0.3, "delay_penalty": 0.1, "upstream": upstream,
    }  # fmt: skip
    value, gradient = run(samplewise.rnnt_loss, *padded, **options)
    got, of_rows = run(samplewise.rnnt_loss, *packed, **options)
    assert got.dtype == value.dtype and of_rows.dtype == dtype and of_rows.shape == packed[0].shape
    assert torch.equal(got, value)
    assert torch.equal(of_rows, pack(gradient, *padded[2:]))
    assert (of_rows != 0).any() or not torch.isfinite(value).any()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("topology", [topologies.regular(), topologies.hat()], ids=str)
def test_on_every_backend(topology, name):
    padded, packed = both(topology)
    options = {"topology": topology, "blank": 2, "reduction": "none", "upstream": upstream_of(len(FRAMES))}
    with backend.use(name):
        value, gradient = run(samplewise.rnnt_loss, *padded, **options)
        got, of_rows = run(samplewise.rnnt_loss, *packed, **options)
    torch.testing.assert_close(got, value, rtol=1e-13, atol=0)
    torch.testing.assert_close(of_rows, pack(gradient, *padded[2:]), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("fused", [True, False])
def test_clamp(fused):
    padded, packed = both(topologies.regular(), fused=fused)
    options = {"blank": 2, "fused_log_softmax": fused, "clamp": 0.05, "reduction": "none"}
    options["upstream"] = upstream_of(len(FRAMES))
    _, gradient = run(samplewise.rnnt_loss, *padded, **options)
    _, of_rows = run(samplewise.rnnt_loss, *packed, **options)
    assert torch.equal(of_rows, pack(gradient, *padded[2:]))
    _, plain = run(samplewise.rnnt_loss, *packed, **{**options, "clamp": -1})
    assert not torch.equal(of_rows, plain)


def test_strides():
    """A slice of more columns, and of every other row."""
    _, (rows, *integers) = both(topologies.regular())
    right = run(samplewise.rnnt_loss, rows, *integers, blank=2)
    for leaf, view in (
        ((wide := torch.cat((rows, rows), 1).requires_grad_()), wide[:, : rows.shape[1]]),
        ((long := rows.repeat_interleave(2, 0).requires_grad_()), long[::2]),
    ):
        assert not view.is_contiguous()
        loss = samplewise.rnnt_loss(view, *integers, blank=2)
        loss.backward()
        got = leaf.grad[:, : rows.shape[1]] if leaf.shape[1] > rows.shape[1] else leaf.grad[::2]
        assert torch.equal(loss, right[0]) and torch.equal(got, right[1])


def test_the_guilty_utterance_alone():
    _, (rows, *integers) = both(topologies.regular())
    options = {"blank": 2, "reduction": "none"}
    right = run(samplewise.rnnt_loss, rows, *integers, **options)
    dirty = rows.clone()
    dirty[18:19] = float("nan")  # the only row of the second utterance
    losses, gradient = run(samplewise.rnnt_loss, dirty, *integers, **options)
    others = torch.arange(4) != 1
    assert not torch.isfinite(losses[1]) and torch.equal(losses[others], right[0][others])
    assert (gradient[18] == 0).all()
    gradient[18] = right[1][18]
    assert torch.equal(gradient, right[1])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"logits": torch.zeros(39, 7)}, ["39 rows", "logit_lengths[b] * (target_lengths[b] + 1)", "is 40"]),
        ({"logits": torch.zeros(41, 7)}, ["41 rows", "is 40"]),
        ({"logits": torch.zeros(4, 10, 7)}, ["logits", "packed", "(4, 10, 7)"]),
        ({"logits": torch.zeros(0, 7)}, ["logits", "(0, 7)"]),
        ({"logit_lengths": torch.tensor([6, 1, 0, 5])}, ["logit_lengths[2] is 0", "40 rows"]),
        ({"logit_lengths": torch.tensor([6, 1, 41, 5])}, ["logit_lengths[2] is 41", "40 rows", "1..40"]),
        ({"target_lengths": torch.tensor([2, 0, 5, 0])}, ["target_lengths[2] is 5", "4 labels"]),
        ({"targets": torch.full((4, 4), 2)}, ["targets[0, 0] is 2", "blank"]),
        ({"targets": torch.zeros(3, 4, dtype=torch.int64)}, ["logit_lengths", "4 utterances", "has 3"]),
        ({"targets": torch.zeros((), dtype=torch.int64)}, ["targets", "(B, U)"]),
        ({"targets": [[1]]}, ["targets", "list"]),
        ({"blank": 7}, ["blank is 7", "7 classes"]),
    ],
    ids="-".join,
)
def test_bad_inputs(changes, words):
    _, packed = both(topologies.regular())
    given = dict(zip(("logits", "targets", "logit_lengths", "target_lengths"), packed, strict=True))
    with pytest.raises(TransducerError) as caught:
        samplewise.rnnt_loss(**{**given, "blank": 2, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("fused", [True, False])
def test_opcheck(fused):
    _, (rows, *integers) = both(topologies.tdt((0, 1)), frames=(3, 2), labels=(1, 0), fused=fused)
    arguments = (*integers, 2, 0.1, fused, 0.3, topologies.tdt((0, 1)).key, True, "keep")
    torch.library.opcheck(rnnt, (rows.requires_grad_(), *arguments))
    _, *state = rnnt(rows.detach(), *arguments)
    upstream = torch.ones(2, dtype=torch.float64)
    torch.library.opcheck(
        rnnt_gradient, (rows.detach(), *integers, *state, upstream, 2, 0.1, fused, topologies.tdt((0, 1)).key)
    )


def test_compile():
    torch._dynamo.reset()

    def loss(rows, *integers):
        return samplewise.rnnt_loss(rows * 2, *integers, blank=2)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for sizes in ((FRAMES, LABELS), ((3, 9), (2, 1))):
        _, packed = both(topologies.regular(), frames=sizes[0], labels=sizes[1])
        torch.testing.assert_close(run(compiled, *packed), run(loss, *packed))


def test_gradcheck():
    _, (rows, *integers) = both(topologies.regular(), frames=(3, 2), labels=(2, 1))
    loss = functools.partial(samplewise.rnnt_loss, blank=2, reduction="none")
    assert torch.autograd.gradcheck(lambda x: loss(x, *integers), (rows.requires_grad_(),))


PEAK = """
import gc, torch, samplewise

def high_water():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def step(frames, labels, classes):
    frames, labels = torch.tensor(frames), torch.tensor(labels)
    rows = torch.zeros(int((frames * (labels + 1)).sum()), classes, requires_grad=True)
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    before = high_water()
    samplewise.rnnt_loss(rows, torch.ones(len(frames), int(labels.max())).long(), frames, labels, blank=0).backward()
    return (high_water() - before) / (4 * rows.numel())

torch.set_num_threads(1)
step([3, 2], [1, 1], 500)
print(step([300] + [5] * 7, [40] + [5] * 7, 500))
"""


@pytest.mark.slow
def test_no_padded_copy():
    """The gradient alone, in a fresh process, above the rows: of a long utterance and short ones, which padded would be nearly
    8 times as much."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks are read from Linux's /proc")
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", PEAK], env=environment, capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.3
