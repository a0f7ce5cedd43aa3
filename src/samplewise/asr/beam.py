"""Beam search over label sequences, frame by frame.

Time-synchronous decoding of transducers (Saon, Tüske, Audhkhasi, ICASSP 2020, section 2.2): a label sequence's score is the
sum over its alignments that the search has seen, so a label whose frame is uncertain counts with the mass of all its frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.asr.model import Transducer
from samplewise.asr.predictor import State
from samplewise.asr.tokenizer import BLANK

Labels = tuple[int, ...]


class Decoded(list[list[int]]):
    """The labels of each utterance, and in `capped` in how many of its frames as many were emitted as one frame may: where the
    bound was reached, more may have been said."""

    def __init__(self, labels: Iterable[list[int]], capped: list[int]):
        super().__init__(labels)
        self.capped = capped


class Hypothesis(NamedTuple):
    """A label sequence: its log-probability up to a frame, the row of `Rows` that its predictor stands in, and the frames in
    which it took all the labels that one frame may have."""

    score: float
    row: int
    capped: int = 0


Beam = dict[Labels, Hypothesis]


class Rows(NamedTuple):
    """Predictor outputs (R, P) and states, tensors (N, R, width), of R label sequences."""

    predicted: Tensor
    state: State

    def take(self, index: list[int]) -> Rows:
        chosen = torch.tensor(index, dtype=torch.long, device=self.predicted.device)
        return Rows(self.predicted[chosen], tuple(part[:, chosen] for part in self.state))

    def extend(self, more: Rows) -> Rows:
        state = tuple(torch.cat(parts, dim=1) for parts in zip(self.state, more.state, strict=True))
        return Rows(torch.cat([self.predicted, more.predicted]), state)


@torch.no_grad()
def beam_search(model: Transducer, features: Tensor, lengths: Tensor, beam: int, max_symbols: int = 5) -> Decoded:
    """The likeliest label sequence of each utterance among those that were kept, all utterances side by side.

    Args:
        model: in evaluation mode.
        features: (B, F, M).
        lengths: (B,) feature frames.
        beam: label sequences of an utterance kept from frame to frame.
        max_symbols: bound on the labels of one encoder frame.

    Returns:
        The labels of each utterance.
    """
    encoder_out, encoder_lengths = model.encoder(features, lengths)  # (B, T, E)
    last = encoder_lengths.tolist()
    rows = Rows(*model.predictor.start(len(last)))
    kept: list[Beam] = [{(): Hypothesis(0.0, row)} for row in range(len(last))]
    for frame in range(max(last, default=0)):
        active = [utterance for utterance, length in enumerate(last) if frame < length]
        found, rows = one_frame(model, encoder_out[:, frame], {b: kept[b] for b in active}, rows, beam, max_symbols)
        for utterance, hypotheses in found.items():
            kept[utterance] = best(hypotheses, beam)
        rows = renumber(kept, rows)
    likeliest = [next(iter(best(hypotheses, 1).items())) for hypotheses in kept]
    return Decoded([list(labels) for labels, _ in likeliest], [one.capped for _, one in likeliest])


def one_frame(
    model: Transducer, encoded: Tensor, kept: dict[int, Beam], rows: Rows, beam: int, max_symbols: int
) -> tuple[dict[int, Beam], Rows]:
    """Leave a frame, encoded (B, E), by blank after no labels, after one, ..., after `max_symbols`.

    Returns:
        What left it, by utterance, more than `beam` sequences perhaps; the rows that these stand in.
    """
    left: dict[int, Beam] = {utterance: {} for utterance in kept}
    staying = kept
    for emitted in range(max_symbols + 1):
        ends = [(b, labels, one) for b, hypotheses in staying.items() for labels, one in hypotheses.items()]
        if not ends:
            break
        predicted = rows.predicted[torch.tensor([one.row for _, _, one in ends], device=encoded.device)]  # (R, P)
        at = torch.tensor([b for b, _, _ in ends], device=encoded.device)
        logits = model.joiner(encoded[at].unsqueeze(1), predicted.unsqueeze(1)).reshape(len(ends), -1)  # (R, V)
        log_probs = logits.float().log_softmax(dim=-1)
        for (b, labels, one), blank in zip(ends, log_probs[:, BLANK].tolist(), strict=True):
            before = left[b].get(labels)
            score = one.score + blank
            leaves = one._replace(score=score, capped=one.capped + (emitted == max_symbols))
            if before is not None:  # the likelier alignment tells where the bound was reached
                leaves = max(before, leaves, key=lambda way: way.score)._replace(
                    score=log_add(before.score, score), row=one.row
                )
            left[b][labels] = leaves
        if emitted == max_symbols:
            break
        staying, rows = emit(model, ends, log_probs, left, rows, beam)
    return left, rows


def emit(
    model: Transducer,
    ends: list[tuple[int, Labels, Hypothesis]],
    log_probs: Tensor,
    left: dict[int, Beam],
    rows: Rows,
    beam: int,
) -> tuple[dict[int, Beam], Rows]:
    """The best sequences with one more label, of those that are better than the worst that would be kept without them."""
    log_probs[:, BLANK] = -math.inf
    scores, classes = log_probs.topk(min(beam, log_probs.shape[1] - 1), dim=-1)  # (R, K)
    longer: dict[int, Beam] = {}
    for (b, labels, one), values, chosen in zip(ends, scores.tolist(), classes.tolist(), strict=True):
        more = longer.setdefault(b, {})
        for value, label in zip(values, chosen, strict=True):
            extended = (*labels, label)
            more[extended] = one._replace(score=one.score + value)
    staying: dict[int, Beam] = {}
    for b, more in longer.items():
        scores_left = sorted((one.score for one in left[b].values()), reverse=True)
        least = scores_left[beam - 1] if len(scores_left) >= beam else -math.inf
        staying[b] = {labels: one for labels, one in best(more, beam).items() if one.score > least}
    flat = [(b, labels, one) for b, hypotheses in staying.items() for labels, one in hypotheses.items()]
    if not flat:
        return {}, rows
    parents = rows.take([one.row for _, _, one in flat])
    added = torch.tensor([labels[-1] for _, labels, _ in flat], device=log_probs.device)
    first = len(rows.predicted)
    for row, (b, labels, one) in enumerate(flat, first):
        staying[b][labels] = one._replace(row=row)
    return staying, rows.extend(Rows(*model.predictor.step(added, parents.state)))


def best(hypotheses: Beam, beam: int) -> Beam:
    """The `beam` likeliest."""
    ordered = sorted(hypotheses.items(), key=lambda item: item[1].score, reverse=True)
    return dict(ordered[:beam])


def renumber(kept: list[Beam], rows: Rows) -> Rows:
    """Only the rows that hypotheses stand in; their numbers are changed to these."""
    used: list[int] = []
    for hypotheses in kept:
        for labels, one in hypotheses.items():
            hypotheses[labels] = one._replace(row=len(used))
            used.append(one.row)
    return rows.take(used)


def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
