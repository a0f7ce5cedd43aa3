"""`forward_piece` and `backward_piece` of every backend: an utterance in pieces of frames is the whole one."""

import math

import pytest
import torch

from samplewise.kernels.layout import packed_table
from tests.kernels.test_lattice import CPU, INF, NAN, emissions, run


def in_pieces(kernels, blank, label, frames, labels, rows, weight=1.0, both=True, in_place=False):
    """Loss and posteriors, pieces of so many frames at a time, each with arrays of its own."""
    width = labels + 1
    cuts = [(first, min(first + rows, frames)) for first in range(0, frames, rows)]
    above, enters = torch.full((width,), -INF, dtype=torch.float64), []
    above[0] = 0.0
    below = torch.full((width,), -INF, dtype=torch.float64)
    below[labels] = 0.0

    def piece(first, stop):
        part = slice(first * width, stop * width)
        return blank[part].clone(), label[part].clone(), packed_table((stop - first,), (labels,), 0, 0, 0, CPU)[0]

    for first, stop in cuts:
        enters.append(above.clone())
        kernels.forward_piece(*piece(first, stop), above)
    loss, gammas = -above[labels], []
    for (first, stop), entering in zip(reversed(cuts), reversed(enters), strict=True):
        lp_blank, lp_label, table = piece(first, stop)
        out = (lp_blank, lp_label) if in_place else (torch.full_like(lp_blank, NAN), torch.full_like(lp_label, NAN))
        kept = entering.clone()
        kernels.backward_piece(lp_blank, lp_label, table, entering, below, loss, weight, out[0], out[1] if both else None)
        torch.testing.assert_close(entering, kept, rtol=0, atol=0, equal_nan=True)
        gammas.insert(0, out)
    if math.isfinite(loss):
        assert -below[0].item() == pytest.approx(loss.item(), rel=1e-12)
    return loss, *(torch.cat(parts) for parts in zip(*gammas, strict=True))


@pytest.mark.parametrize("frames, labels", [(1, 0), (5, 2), (50, 6), (41, 40)])
@pytest.mark.parametrize("rows", [1, 7, 16, 40, 100])
@pytest.mark.parametrize("in_place", [False, True])
def test_pieces_are_the_whole(kernels, frames, labels, rows, in_place):
    if rows == 1 and frames > 5 and kernels.__name__.endswith("triton"):
        pytest.skip("its interpreter takes long")
    blank, label, table = emissions((frames,), (labels,))
    whole = run(kernels, blank, label, table, torch.tensor([-1.5], dtype=torch.float64))
    loss, *gammas = in_pieces(kernels, blank, label, frames, labels, rows, -1.5, in_place=in_place)
    assert loss.item() == pytest.approx(whole[0].item(), rel=1e-13)
    for gamma, truth in zip(gammas, whole[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=1e-10, atol=1e-12)


def test_float32_emissions(kernels):
    blank, label, table = emissions((60,), (9,), torch.float32)
    whole = run(kernels, blank, label, table)
    loss, *gammas = in_pieces(kernels, blank, label, 60, 9, 20)
    assert loss.item() == pytest.approx(whole[0].item(), rel=1e-13)
    for gamma, truth in zip(gammas, whole[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=1e-6, atol=1e-9)


def test_occupancy_of_pieces(kernels):
    """Without a place for label arcs both posteriors are added."""
    blank, label, table = emissions((30,), (9,))
    _, by_blank, by_label = run(kernels, blank, label, table)
    _, occupancy, _ = in_pieces(kernels, blank, label, 30, 9, 11, both=False)
    torch.testing.assert_close(occupancy, by_blank + by_label, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [NAN, -INF])
def test_pieces_without_a_path(kernels, value):
    """A frame that no path leaves, or NaN: no loss, no occupancy."""
    blank, label, _ = emissions((20,), (3,))
    blank.view(20, 4)[12] = value
    loss, by_blank, by_label = in_pieces(kernels, blank, label, 20, 3, 8)
    assert loss.isnan() if math.isnan(value) else loss == INF
    assert (by_blank == 0).all() and (by_label == 0).all()
