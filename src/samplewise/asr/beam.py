"""Beam search over label sequences, frame by frame, for every topology.

Time-synchronous decoding of transducers (Saon, Tüske, Audhkhasi, ICASSP 2020, section 2.2): a label sequence's score is the
sum over its alignments that the search has seen, so a label whose frame is uncertain counts with the mass of all its frames.
Where symbols go on several frames (big blanks, arXiv 2211.03541; TDT, arXiv 2304.06795), sequences wait at the frames that
they have reached, and equal ones at one frame are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.asr.model import Transducer
from samplewise.asr.predictor import State

Labels = tuple[int, ...]


class Decoded(list[list[int]]):
    """The labels of each utterance, and beside them, of each:

    Attributes:
        capped: in how many of its frames as many labels were emitted as one frame may: where the bound was reached, more may
            have been said.
        steps: how often the joint was asked for it.
        frames: encoder frames.
    """

    def __init__(self, labels: Iterable[list[int]], capped: list[int], steps: list[int], frames: list[int]):
        super().__init__(labels)
        self.capped, self.steps, self.frames = capped, steps, frames


class Hypothesis(NamedTuple):
    """A label sequence: its log-probability up to a frame, the row of `Rows` that its predictor stands in, and the frames in
    which it took all the labels that one frame may have."""

    score: float
    row: int
    capped: int = 0


Beam = dict[Labels, Hypothesis]
Waiting = dict[int, Beam]  # by the frame that they have reached, or the number of frames to it
Ends = list[tuple[int, Labels, Hypothesis]]  # of utterances, at one frame


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
    search = Search(model, beam, max_symbols, last)
    likeliest = [next(iter(best(hypotheses, 1).items())) for hypotheses in search.run(encoder_out)]
    return Decoded([list(labels) for labels, _ in likeliest], [one.capped for _, one in likeliest], search.steps, last)


class Search:
    """One search through a batch, whose utterances have `last` encoder frames.

    Attributes:
        steps: how often the joint was asked for each utterance.
    """

    def __init__(self, model: Transducer, beam: int, max_symbols: int, last: list[int]):
        self.model, self.moves = model, model.moves
        self.beam, self.max_symbols, self.last = beam, max_symbols, last
        self.rows = Rows(*model.predictor.start(len(last)))
        self.steps = [0] * len(last)

    def run(self, encoder_out: Tensor) -> list[Beam]:
        """What has reached the end of each utterance, encodings (B, T, E)."""
        waiting: list[Waiting] = [{0: {(): Hypothesis(0.0, row)}} for row in range(len(self.last))]
        for frame in range(max(self.last, default=0)):
            kept = {b: found.pop(frame) for b, found in enumerate(waiting) if frame < self.last[b] and frame in found}
            if not kept:
                continue
            left = {b: {reached - frame: beam for reached, beam in waiting[b].items()} for b in kept}
            self.one_frame(encoder_out[:, frame], frame, kept, left)
            for b, found in left.items():
                waiting[b] = {frame + frames: beam for frames, beam in found.items()}
                if frame + 1 in waiting[b]:  # no more will come there
                    waiting[b][frame + 1] = best(waiting[b][frame + 1], self.beam)
            self.rows = renumber([beam for found in waiting for beam in found.values()], self.rows)
        return [found[length] for found, length in zip(waiting, self.last, strict=True)]

    def one_frame(self, encoded: Tensor, frame: int, kept: dict[int, Beam], left: dict[int, Waiting]) -> None:
        """Leave a frame, encoded (B, E), after no labels, after one, ..., after `max_symbols`.

        Args:
            kept: what is at the frame, by utterance.
            left: takes what leaves it, by utterance and by how many frames on, perhaps more than `beam` sequences; may hold
                what has come there from frames before.
        """
        staying = kept
        for emitted in range(self.max_symbols + 1):
            ends = [(b, labels, one) for b, hypotheses in staying.items() for labels, one in hypotheses.items()]
            if not ends:
                break
            symbols, durations = self.look(encoded, ends)
            self.leave(frame, ends, symbols, durations, left, capped=emitted == self.max_symbols)
            if emitted == self.max_symbols:
                break
            staying = self.emit(encoded, frame, ends, symbols, durations, left)

    def look(self, encoded: Tensor, ends: Ends) -> tuple[Tensor, list[list[float]]]:
        """Log-probabilities of the symbols (R, V), and of the durations where there are such, for R ends."""
        for b, _, _ in ends:
            self.steps[b] += 1
        predicted = self.rows.predicted[torch.tensor([one.row for _, _, one in ends], device=encoded.device)]  # (R, P)
        at = torch.tensor([b for b, _, _ in ends], device=encoded.device)
        scores = self.model.joiner(encoded[at].unsqueeze(1), predicted.unsqueeze(1)).reshape(len(ends), -1)  # (R, V + extra)
        symbols, durations = self.model.joiner.log_probs(scores)
        return symbols, [] if durations is None else durations.tolist()

    def leave(
        self, frame: int, ends: Ends, symbols: Tensor, durations: list[list[float]], left: dict[int, Waiting], *, capped: bool
    ) -> None:  # fmt: skip
        """By blanks, each with every number of frames that it may go on."""
        for blank, moves in self.moves.blanks.items():
            of_blank = symbols[:, blank].tolist()
            for frames, duration in moves:
                for r, (b, labels, one) in enumerate(ends):
                    if frame + frames <= self.last[b]:
                        score = one.score + of_blank[r] + (0.0 if duration is None else durations[r][duration])
                        arrive(left[b].setdefault(frames, {}), labels, one._replace(score=score, capped=one.capped + capped))

    def emit(
        self, encoded: Tensor, frame: int, ends: Ends, symbols: Tensor, durations: list[list[float]], left: dict[int, Waiting]
    ) -> dict[int, Beam]:  # fmt: skip
        """The best sequences with one more label that stay in the frame; those that go on with it are put where they arrive.
        All are better than the worst that would be kept without them."""
        symbols[:, list(self.moves.blanks)] = -math.inf
        scores, classes = symbols.topk(min(self.beam, symbols.shape[1] - len(self.moves.blanks)), dim=-1)  # (R, K)
        longer: dict[tuple[int, int], Beam] = {}  # by utterance and frames
        for r, ((b, labels, one), values, chosen) in enumerate(zip(ends, scores.tolist(), classes.tolist(), strict=True)):
            for frames, duration in self.moves.labels:
                if not self.may_land(b, frame + frames):
                    continue
                so_far = one.score if duration is None else one.score + durations[r][duration]
                more = longer.setdefault((b, frames), {})
                for value, label in zip(values, chosen, strict=True):
                    extended = (*labels, label)
                    more[extended] = one._replace(score=so_far + value)
        for (b, frames), more in longer.items():
            least = worst(left[b], frames, self.beam)
            longer[b, frames] = {labels: one for labels, one in best(more, self.beam).items() if one.score > least}
        penalties = self.advance(encoded, longer)
        staying: dict[int, Beam] = {}
        for (b, frames), more in longer.items():
            if frames == 0:
                staying[b] = more
                continue
            for labels, one in more.items():
                score = one.score + penalties.get((b, labels), 0.0)
                arrive(left[b].setdefault(frames, {}), labels, one._replace(score=score))
        return staying

    def may_land(self, b: int, reached: int) -> bool:
        """Whether a label may bring an utterance to a frame."""
        return reached < self.last[b] or (reached == self.last[b] and self.moves.label_ends)

    def advance(self, encoded: Tensor, longer: dict[tuple[int, int], Beam]) -> dict[tuple[int, Labels], float]:
        """Give all sequences with a new label rows of their own, one to those that differ in frames alone; what the label pays
        beside its own log-probability, where it pays something."""
        parents = {(b, labels): one.row for (b, _), more in longer.items() for labels, one in more.items()}
        if not parents:
            return {}
        first = len(self.rows.predicted)
        added = torch.tensor([labels[-1] for _, labels in parents], device=encoded.device)
        advanced = self.model.predictor.step(added, self.rows.take(list(parents.values())).state)
        self.rows = self.rows.extend(Rows(*advanced))
        row = {key: first + number for number, key in enumerate(parents)}
        for (b, _), more in longer.items():
            for labels, one in more.items():
                more[labels] = one._replace(row=row[b, labels])
        if not self.moves.ahead:
            return {}
        symbols, _ = self.look(encoded, [(b, labels, Hypothesis(0.0, row[b, labels])) for b, labels in parents])
        return dict(zip(parents, symbols[:, self.model.joiner.blank].tolist(), strict=True))


def arrive(there: Beam, labels: Labels, one: Hypothesis) -> None:
    """One more way to the same labels at the same frame."""
    before = there.get(labels)
    if before is not None:  # the likelier alignment tells where the bound was reached
        likelier = max(before, one, key=lambda way: way.score)
        one = likelier._replace(score=log_add(before.score, one.score), row=one.row)
    there[labels] = one


def worst(left: Waiting, frames: int, beam: int) -> float:
    """The score of the last of the `beam` sequences that would be kept so many frames on, of those that have left the frame;
    for what stays (0) of the best of each, wherever it went. Without limit where there are fewer."""
    scores: dict[Labels, float] = {}
    for reached, there in left.items():
        if frames in (0, reached):
            for labels, one in there.items():
                scores[labels] = max(one.score, scores.get(labels, -math.inf))
    ordered = sorted(scores.values(), reverse=True)
    return ordered[beam - 1] if len(ordered) >= beam else -math.inf


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
