"""Which nodes a tile holds, and which nodes carry the occupancy.

Every element of dL/dh at a node is at most the node's occupancy in size, so leaving out nodes whose occupancies sum to s moves
no element of d_bias by more than s, and none of d_weight by more than s max|z|.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

BINS = 0x7F81  # the upper 16 bits of a float32 up to infinity: bins 0.8% wide


def locate(node: Tensor, utterances: Tensor, targets: Tensor, frame: Tensor, token: Tensor, label: Tensor) -> None:
    """Rows of the encodings, and the next label, of the ascending nodes `node` (R,); all outputs (R,) int64.

    targets is the flat (B U,) tensor of label columns; label is -1 where none is left.
    """
    with LOCK:
        use_threads()
        _locate(array(node), array(utterances), array(targets), array(frame), array(token), array(label))


def select(gamma_blank: Tensor, gamma_label: Tensor, utterances: Tensor, losses: Tensor, tolerance: float) -> Tensor:
    """The ascending nodes (A,) int64 that carry all but `tolerance` of each utterance's occupancy, as few as possible.

    tolerance 0 keeps every node of every utterance with a finite loss.
    """
    with LOCK:
        use_threads()
        gb, gl, table = array(gamma_blank), array(gamma_label), array(utterances)
        cut = np.empty(len(table))
        count = np.empty(len(table), dtype=np.int64)
        _cuts(gb, gl, table, array(losses), tolerance, cut, count)
        stop = np.cumsum(count)
        out = torch.empty(int(stop[-1]), dtype=torch.int64)
        _fill(gb, gl, table, cut, stop - count, array(out))
    return out


@kernel()
def _locate(node, utterances, targets, frame, token, label):
    parts = max(1, node.size // 256)
    for part in prange(parts):
        first, stop = node.size * part // parts, node.size * (part + 1) // parts
        g = np.searchsorted(utterances[:, 0], node[first], side="right") - 1
        for r in range(first, stop):
            while g + 1 < utterances.shape[0] and node[r] >= utterances[g + 1, 0]:
                g += 1
            at = node[r] - utterances[g, 0]
            t, u = at // utterances[g, 1], at % utterances[g, 1]
            frame[r] = utterances[g, 4] + t
            token[r] = utterances[g, 5] + u
            label[r] = targets[utterances[g, 6] + u] if u < utterances[g, 2] else -1


@njit(nogil=True)
def _cut(gb, gl, tolerance):
    """The smallest occupancy that must stay, and how many nodes have at least that."""
    mass = np.zeros(BINS)
    tally = np.zeros(BINS, dtype=np.int64)
    total = 0.0
    for n in range(gb.size):
        occupancy = abs(gb[n] + gl[n])
        bin = np.float32(occupancy).view(np.int32) >> 16
        mass[bin] += occupancy
        tally[bin] += 1
        total += occupancy
    allowed, dropped, edge, kept = tolerance * total, 0.0, 0, gb.size
    while edge < BINS - 1 and dropped + mass[edge] <= allowed:
        dropped += mass[edge]
        kept -= tally[edge]
        edge += 1
    inside = np.empty(tally[edge])
    i = 0
    for n in range(gb.size):
        occupancy = abs(gb[n] + gl[n])
        if np.float32(occupancy).view(np.int32) >> 16 == edge:
            inside[i] = occupancy
            i += 1
    inside.sort()
    for i in range(inside.size):
        if dropped + inside[i] > allowed:
            ties = np.searchsorted(inside, inside[i])
            return inside[i], kept - ties
        dropped += inside[i]
    if inside.size == 0:  # no occupancy at all
        return np.inf, 0
    # The bin's sum in another order was within the allowance after all: its largest node stays, which errs on the safe side.
    return inside[-1], kept - np.searchsorted(inside, inside[-1])


@kernel()
def _cuts(gb, gl, utterances, losses, tolerance, cut, count):
    for g in prange(utterances.shape[0]):
        start, stop = utterances[g, 0], utterances[g, 0] + utterances[g, 3] * utterances[g, 1]
        if not np.isfinite(losses[g]):
            cut[g], count[g] = np.inf, 0
        elif tolerance <= 0.0:
            cut[g], count[g] = 0.0, stop - start
        else:
            cut[g], count[g] = _cut(gb[start:stop], gl[start:stop], tolerance)


@kernel()
def _fill(gb, gl, utterances, cut, first, out):
    for g in prange(utterances.shape[0]):
        i = first[g]
        if np.isfinite(cut[g]):
            for n in range(utterances[g, 0], utterances[g, 0] + utterances[g, 3] * utterances[g, 1]):
                if abs(gb[n] + gl[n]) >= cut[g]:
                    out[i] = n
                    i += 1
