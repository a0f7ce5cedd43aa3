"""A lattice in lanes: sixteen frames side by side, each one node behind the one above it, so that no lane waits for another.

Lane i works on frames i, i + 16, i + 32, ... one after the other; at step s it is at column s - i of its own, which is node
(16 (c // period) + i, c % period) of the utterance. So a step is an anti-diagonal of sixteen frames, lane i gets what comes
down from what lane i - 1 did a step before, and lane 0 what lane 15 did when it was here: that is kept, one number a column, in
the *stream*. `period` is U + 1, but at least 16, so that lane 15 has always been here.

A probability is m 2^e (`math.split64`), two float64, which costs two multiplications and no logarithm where two of them are
added, and loses nothing however far apart they are. Every CHUNK steps the m are brought back to 1 .. 2.

Steps run in segments, whose records lie in a scratch that the first cache holds. The record of a step:

| field | numbers | |
|---|---|---|
| SM, SE | 4 + 16 | alpha times blank of this step, m and e, after what comes to lanes 0, 4, 8 and 12 of the next |
| MM, ME | 16 | alpha times label of this step: what comes along to the next column |
| BM, BE | 16 + 4 | beta of this step, followed by what lies below lanes 3, 7, 11 and 15 of the step before |
| PB, KB, PL, KL | 16 each | blank and label emissions, m and e, where alpha will be; then posteriors (PB, PL) |

Lane i is at place 4 (i % 4) + i // 4 of its field: what comes from the lane above is then four places before, a vector that is
loaded as it was stored, but for every fourth lane; theirs are the four numbers more of SM, SE, BM and BE.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from samplewise.kernels.numba import math as fast

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": {"contract"}}

LANES, VECTOR = 16, 4
CHUNK = 16  # steps between two renormalisations: m stays within 2^-50 and 2^50
SM, SE, MM, ME, BM, BE = 0, 20, 40, 56, 72, 92
PB, KB, PL, KL = SM + VECTOR, SE + VECTOR, MM, ME
RECORD = 120  # numbers: 112, and some more so that records do not fall on the same lines of a cache


@njit(**OPTIONS)
def place(lane):
    return VECTOR * (lane % (LANES // VECTOR)) + lane // (LANES // VECTOR)


@njit(**OPTIONS)
def fill(work, at, first, stop, blank, label):
    for n in range(first, stop):
        work[(n + 1) * RECORD + PB + at] = blank
        work[(n + 1) * RECORD + PL + at] = label


@njit(**OPTIONS)
def gather(work, lp_blank, lp_label, start, stride, labels, frames, period, first, count):
    """Emissions of steps first .. first + count - 1. Beside the lattice there are none, but below the last frame, as far as its
    strip reaches, what comes down goes on down, unchanged."""
    strips = (frames + LANES - 1) // LANES
    for lane in range(LANES):
        at, n = place(lane), 0
        strip, u = (first - lane) // period, (first - lane) % period
        while n < count:
            t = strip * LANES + lane
            stop = min(count, n + (labels + 1 if u <= labels else period) - u)
            if strip < 0 or strip >= strips or u > labels:
                fill(work, at, n, stop, -np.inf, -np.inf)
            elif t >= frames:
                fill(work, at, n, stop, 0.0, -np.inf)
            else:
                node = start + t * stride + u
                blank, label = lp_blank[node : node + stop - n], lp_label[node : node + stop - n]
                lanes = work[(n + 1) * RECORD + at :]
                for i in range(stop - n):
                    lanes[i * RECORD + PB] = blank[i]
                    lanes[i * RECORD + PL] = label[i]
                if u + stop - n > labels:
                    work[stop * RECORD + PL + at] = -np.inf
            u += stop - n
            n = stop
            if u == period:
                u, strip = 0, strip + 1


@njit(**OPTIONS)
def scatter(work, gamma_blank, gamma_label, both, start, stride, labels, frames, period, first, count):
    """Posteriors from the records to the nodes."""
    strips = (frames + LANES - 1) // LANES
    for lane in range(LANES):
        at, n = place(lane), 0
        strip, u = (first - lane) // period, (first - lane) % period
        while n < count:
            t = strip * LANES + lane
            stop = min(count, n + (labels + 1 if u <= labels else period) - u)
            if 0 <= strip < strips and t < frames and u <= labels:
                node = start + t * stride + u
                lanes = work[(n + 1) * RECORD + at :]
                blank = gamma_blank[node : node + stop - n]
                for i in range(stop - n):
                    blank[i] = lanes[i * RECORD + PB]
                if both:
                    label = gamma_label[node : node + stop - n]
                    for i in range(stop - n):
                        label[i] = lanes[i * RECORD + PL]
            u += stop - n
            n = stop
            if u == period:
                u, strip = 0, strip + 1


@njit(**OPTIONS)
def split(work, count):
    for n in range(1, count + 1):
        o = n * RECORD
        for i in range(LANES):
            work[o + PB + i], work[o + KB + i] = fast.split64(work[o + PB + i])
        for i in range(LANES):
            work[o + PL + i], work[o + KL + i] = fast.split64(work[o + PL + i])


@njit(**OPTIONS)
def renormalise(record, m, e, count):
    for i in range(count):
        d = fast.exponent64(record[m + i])
        record[m + i] *= fast.power64(-d)
        record[e + i] += d


@njit(**OPTIONS)
def alphas(work, stream_m, stream_e, period, first, count, write):
    """Alpha of the segment's steps from the record before them, in place of their emissions; what leaves lane 15 goes into the
    stream."""
    for n in range(count):
        o = n * RECORD
        for i in range(LANES):
            down, along = work[o + SE + i], work[o + ME + i]
            e = down if down > along else along
            m = work[o + SM + i] * fast.power64(down - e) + work[o + MM + i] * fast.power64(along - e)
            work[o + RECORD + SM + VECTOR + i] = m * work[o + RECORD + PB + i]
            work[o + RECORD + SE + VECTOR + i] = e + work[o + RECORD + KB + i]
            work[o + RECORD + MM + i] = m * work[o + RECORD + PL + i]
            work[o + RECORD + ME + i] = e + work[o + RECORD + KL + i]
        if n % CHUNK == CHUNK - 1:
            renormalise(work, o + RECORD + SM + VECTOR, o + RECORD + SE + VECTOR, LANES)
            renormalise(work, o + RECORD + MM, o + RECORD + ME, LANES)
        for i in range(VECTOR - 1):
            work[o + RECORD + SM + 1 + i] = work[o + RECORD + SM + LANES + i]
            work[o + RECORD + SE + 1 + i] = work[o + RECORD + SE + LANES + i]
        c = first + n
        if write and c >= LANES - 1:
            stream_m[c + 1 - LANES + period] = work[o + RECORD + SM + VECTOR + LANES - 1]
            stream_e[c + 1 - LANES + period] = work[o + RECORD + SE + VECTOR + LANES - 1]
        work[o + RECORD + SM], work[o + RECORD + SE] = stream_m[c + 1], stream_e[c + 1]


@njit(**OPTIONS)
def betas(work, stream_m, stream_e, period, first, count, stop):
    """Beta of the segment's steps from the record after them; that of lane 0 goes into the stream as far as column `stop`."""
    for back in range(count):
        n = count - 1 - back
        o = (n + 1) * RECORD
        for i in range(LANES):
            down = work[o + KB + i] + work[o + RECORD + BE + VECTOR + i]
            along = work[o + KL + i] + work[o + RECORD + BE + i]
            e = down if down > along else along
            m_down = work[o + PB + i] * work[o + RECORD + BM + VECTOR + i]
            m_along = work[o + PL + i] * work[o + RECORD + BM + i]
            work[o + BM + i] = m_down * fast.power64(down - e) + m_along * fast.power64(along - e)
            work[o + BE + i] = e
        if n % CHUNK == 0:
            renormalise(work, o + BM, o + BE, LANES)
        for i in range(VECTOR - 1):
            work[o + BM + LANES + i] = work[o + BM + 1 + i]
            work[o + BE + LANES + i] = work[o + BE + 1 + i]
        c = first + n
        if c < stop:
            stream_m[c], stream_e[c] = work[o + BM], work[o + BE]
        end = c - LANES + period
        work[o + BM + LANES + VECTOR - 1], work[o + BE + LANES + VECTOR - 1] = stream_m[end], stream_e[end]


@njit(**OPTIONS)
def posteriors(work, count, total_m, total_e, weight, smallest, both):
    """Shares of all paths that take an arc, times the weight, from alpha and beta of the segment, in place of alpha."""
    inverse = 1.0 / total_m
    for n in range(1, count + 1):
        o = n * RECORD
        for i in range(LANES):
            d = work[o + SE + VECTOR + i] + (work[o + RECORD + BE + VECTOR + i] - total_e)
            g = (
                work[o + SM + VECTOR + i]
                * work[o + RECORD + BM + VECTOR + i]
                * inverse
                * fast.power64(d if d < fast.FARTHEST else fast.FARTHEST)
            )
            g = g if g < 1.0 else 1.0
            work[o + PB + i] = g * weight if g > smallest else 0.0
        for i in range(LANES):
            d = work[o + ME + i] + (work[o + RECORD + BE + i] - total_e)
            g = work[o + MM + i] * work[o + RECORD + BM + i] * inverse * fast.power64(d if d < fast.FARTHEST else fast.FARTHEST)
            g = g if g < 1.0 else 1.0
            work[o + PL + i] = g * weight if g > smallest else 0.0
        if not both:
            for i in range(LANES):
                work[o + PB + i] += work[o + PL + i]
