"""A lattice of which each frame has an interval of nodes, and the others do not exist: no path goes through them.

The recursions are those of `lattice.py`, node by node: frames have few nodes here. One utterance a thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, kernel, use_threads
from samplewise.kernels.numba.diagonals import OPTIONS

CHUNK = 16  # nodes along a frame between two renormalisations


def band_lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, base: Tensor, low: Tensor, high: Tensor, weights: Tensor,
    losses: Tensor, gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 of the paths inside and, unless None, the arc posteriors times the utterance's weight.

    base, low and high (R,) int64 are those of frames, those of all utterances one after the other: node u of a frame, low <= u
    < high, lies at base + u in lp_blank, lp_label (N,) and in the posteriors, which may be the emissions themselves. Only
    LABELS and FRAMES of the table are read. Without gamma_label, gamma_blank gets the sum of both. It takes 48 bytes a node of
    the utterances that run at the same time.
    """
    blank = lp_blank if gamma_blank is None else gamma_blank
    with LOCK:
        use_threads()
        _band_lattice(
            array(lp_blank), array(lp_label), array(utterances), array(base), array(low), array(high), array(weights),
            array(losses), array(blank), array(blank if gamma_label is None else gamma_label), gamma_blank is not None,
            gamma_label is not None,
        )  # fmt: skip


@njit(**OPTIONS)
def _add(m1, e1, m2, e2):
    e = e1 if e1 > e2 else e2
    return m1 * fast.power64(e1 - e) + m2 * fast.power64(e2 - e), e


@njit(**OPTIONS)
def _share(m, e, weight):
    g = m * fast.power64(e if e < fast.FARTHEST else fast.FARTHEST)
    g = g if g < 1.0 else 1.0
    return g * weight if g > 1e-37 else 0.0


@njit(**OPTIONS)
def _emissions(lp_blank, lp_label, base, low, high, labels):
    """m and e of blank and of label by node, one frame after the other, (4, n)."""
    n = 0
    for r in range(low.size):
        n += high[r] - low[r]
    out = np.empty((4, n))
    m_blank, e_blank, m_label, e_label = out[0], out[1], out[2], out[3]
    n = 0
    for r in range(low.size):
        for u in range(low[r], high[r]):
            m_blank[n] = lp_blank[base[r] + u]
            m_label[n] = lp_label[base[r] + u] if u < labels and u + 1 < high[r] else -np.inf
            n += 1
    for i in range(n):
        m_blank[i], e_blank[i] = fast.split64(m_blank[i])
    for i in range(n):
        m_label[i], e_label[i] = fast.split64(m_label[i])
    return out


@njit(**OPTIONS)
def _alphas(emissions, low, high, labels, out):
    """m and e of alpha by node into out (2, n); returns those of the likelihood."""
    m_blank, e_blank, m_label, e_label = emissions[0], emissions[1], emissions[2], emissions[3]
    m_out, e_out = out[0], out[1]
    n, first, stop, begin = 0, 0, 0, 0  # the nodes first <= u < stop of the frame above are those from `begin` on
    for r in range(low.size):
        start, m_along, e_along = n, 1.0, fast.NOTHING
        for u in range(low[r], high[r]):
            m, e = 1.0, fast.NOTHING
            if r == 0:
                e = 0.0 if u == 0 else fast.NOTHING
            elif first <= u < stop:
                above = begin + u - first
                m, e = m_out[above] * m_blank[above], e_out[above] + e_blank[above]
            m, e = _add(m, e, m_along, e_along)
            d = fast.exponent64(m)
            m_out[n], e_out[n] = m * fast.power64(-d), e + d
            if (n - start) % CHUNK == CHUNK - 1:
                m, e = m_out[n], e_out[n]
            m_along, e_along = m * m_label[n], e + e_label[n]
            n += 1
        first, stop, begin = low[r], high[r], start
    if first <= labels < stop:
        end = begin + labels - first
        return m_out[end] * m_blank[end], e_out[end] + e_blank[end]
    return 1.0, fast.NOTHING


@njit(**OPTIONS)
def _betas(emissions, alpha, base, low, high, labels, total_m, total_e, weight, gamma_blank, gamma_label, both):
    """Beta from the last node to the first, and the posteriors on the way."""
    m_blank, e_blank, m_label, e_label = emissions[0], emissions[1], emissions[2], emissions[3]
    m_beta, e_beta = np.ones(labels + 1), np.full(labels + 1, fast.NOTHING)
    e_beta[labels] = 0.0
    n, first, stop, inverse = alpha.shape[1], labels, labels + 1, 1.0 / total_m
    for r in range(low.size - 1, -1, -1):
        m, e = 1.0, fast.NOTHING
        for u in range(high[r] - 1, low[r] - 1, -1):
            n -= 1
            m_down, e_down = 1.0, fast.NOTHING
            if first <= u < stop:
                m_down, e_down = m_beta[u] * m_blank[n], e_beta[u] + e_blank[n]
            m_along, e_along = m * m_label[n], e + e_label[n]
            m, e = _add(m_down, e_down, m_along, e_along)
            d = fast.exponent64(m)
            m_beta[u], e_beta[u] = m * fast.power64(-d), e + d
            if (high[r] - u) % CHUNK == 0:
                m, e = m_beta[u], e_beta[u]
            reach_m, reach_e = alpha[0, n] * inverse, alpha[1, n] - total_e
            by_blank = _share(reach_m * m_down, reach_e + e_down, weight)
            by_label = _share(reach_m * m_along, reach_e + e_along, weight)
            at = base[r] + u
            if both:
                gamma_blank[at], gamma_label[at] = by_blank, by_label
            else:
                gamma_blank[at] = by_blank + by_label
        first, stop = low[r], high[r]


@kernel(fastmath={"contract"})
def _band_lattice(lp_blank, lp_label, utterances, base, low, high, weights, losses, gamma_blank, gamma_label, want, both):
    rows = np.zeros(utterances.shape[0] + 1, dtype=np.int64)
    for g in range(utterances.shape[0]):
        rows[g + 1] = rows[g] + utterances[g, 3]
    for g in prange(utterances.shape[0]):
        labels = utterances[g, 2]
        at, bottom, top = base[rows[g] : rows[g + 1]], low[rows[g] : rows[g + 1]], high[rows[g] : rows[g + 1]]
        emissions = _emissions(lp_blank, lp_label, at, bottom, top, labels)
        alpha = np.empty((2, emissions.shape[1]))
        m, e = _alphas(emissions, bottom, top, labels, alpha)
        losses[g] = -fast.joined64(m, e)
        if want and np.isfinite(losses[g]) and weights[g] != 0.0:
            _betas(emissions, alpha, at, bottom, top, labels, m, e, weights[g], gamma_blank, gamma_label, both)
        elif want:
            for r in range(at.size):
                for u in range(bottom[r], top[r]):
                    gamma_blank[at[r] + u] = s.type_of(gamma_blank[0], 0.0)
                    gamma_label[at[r] + u] = s.type_of(gamma_label[0], 0.0)
