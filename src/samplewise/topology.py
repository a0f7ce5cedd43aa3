"""What a transducer's lattice is, as data: the softmaxes of a node's scores, the log-probabilities that these give, and the
arcs that leave the node. One definition serves the reference, the kernels, the tile passes, the bounds, the planner and the
search for the best symbols.

| topology | source | arcs of node (t, u) |
|---|---|---|
| `regular` | Graves 2012 (arXiv 1211.3711) | blank to (t+1, u); label to (t, u+1) |
| `modified` | k2, icefall: one symbol a frame | blank to (t+1, u); label to (t+1, u+1) |
| `constrained` | k2 | as modified; a label also pays the blank of (t, u+1) |
| `hat` | arXiv 2003.07705 | as regular; blank by a sigmoid of its own, labels by a softmax without it |
| `multi_blank` | arXiv 2211.03541 | as regular, and blanks of several frames |
| `tdt` | arXiv 2304.06795 | blank to (t+d, u), d > 0, and label to (t+d, u+1), with a softmax over durations d |

A path ends where it reaches (T, U), never beyond; only blank arcs may end it, in `modified` and `constrained` labels too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from samplewise.errors import TransducerError

BLANK, NEXT_LABEL = "blank", "label"  # columns that depend on the call, and on the node


@dataclass(frozen=True)
class Head:
    """A softmax over columns start..stop-1 of the output layer, negative numbers counted from its end, stop None for the end;
    or the sigmoid of one column. `shift` is taken from all of its log-probabilities; with `drop` the blank
    is left out of it."""

    start: int | str
    stop: int | None
    kind: str = "softmax"
    shift: float = 0.0
    drop: bool = False


@dataclass(frozen=True)
class Entry:
    """One float a node: the log-probability of a column of a head, counted from the head's first; or of a sigmoid that it is
    not (`complement`). Those of the first head come first."""

    head: int
    column: int | str
    complement: bool = False


@dataclass(frozen=True)
class Arc:
    """Leaves (t, u) for (t + frames, u + labels) with the sum of its entries at (t, u), and, if it has one `ahead`, of that
    entry at (t, u + 1)."""

    frames: int
    labels: int
    entries: tuple[int, ...]
    ahead: int | None = None


@dataclass(frozen=True)
class Bound:
    """A topology whose columns are numbers of an output layer: heads (start, stop, drop or -1, whether sigmoid, shift), entries
    (head, column or -1 for the next label, whether complement), arcs, and whether a label may end a path."""

    heads: tuple[tuple[int, int, int, bool, float], ...]
    entries: tuple[tuple[int, int, bool], ...]
    arcs: tuple[Arc, ...]
    label_ends: bool

    @property
    def reach(self) -> int:
        """The most frames that an arc goes on."""
        return max(arc.frames for arc in self.arcs)

    def without(self, head: int) -> tuple[list[int], Bound, slice]:
        """The other heads alone: the columns that they need, with these as all that there are, and where their entries are."""
        columns: list[int] = []
        heads = []
        for start, stop, drop, sigmoid, shift in (other for h, other in enumerate(self.heads) if h != head):
            heads.append((len(columns), len(columns) + stop - start, drop, sigmoid, shift))
            columns += range(start, stop)
        number = {h: i for i, h in enumerate(h for h in range(len(self.heads)) if h != head)}
        own = [e for e, entry in enumerate(self.entries) if entry[0] != head]
        entries = tuple((number[self.entries[e][0]], columns.index(self.entries[e][1]), self.entries[e][2]) for e in own)
        return columns, Bound(tuple(heads), entries, (), False), slice(own[0], own[-1] + 1) if own else slice(0, 0)


@dataclass(frozen=True)
class Topology:
    """A lattice's structure. `key` is its text, which `named` reads."""

    name: str
    heads: tuple[Head, ...]
    entries: tuple[Entry, ...]
    arcs: tuple[Arc, ...]
    label_ends: bool = False
    parameters: tuple[tuple[str, Any], ...] = field(default=())
    key: str = field(init=False, compare=False, repr=False)  # made once: torch.compile does not trace JSON

    def __post_init__(self) -> None:
        key = f"{self.name} {json.dumps(dict(self.parameters), allow_nan=False)}" if self.parameters else self.name
        object.__setattr__(self, "key", key)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.parameters if value is not None)})"

    @property
    def extra(self) -> int:
        """Rows of the output layer beyond the classes, which come first: those of durations."""
        return max(0, *(-head.start if isinstance(head.start, int) else 0 for head in self.heads))

    @property
    def reach(self) -> int:
        return max(arc.frames for arc in self.arcs)

    @property
    def emitting(self) -> tuple[int, ...]:
        """Entries that stand for emitting a label, which FastEmit weighs: those of every label arc that no blank arc has."""
        labels = set.intersection(*(set(arc.entries) for arc in self.arcs if arc.labels))
        return tuple(sorted(labels.difference(*(arc.entries for arc in self.arcs if not arc.labels))))

    @property
    def label_entry(self) -> int:
        """The entry of the next label."""
        return next(e for e, entry in enumerate(self.entries) if entry.column == NEXT_LABEL)

    @property
    def label_head(self) -> int:
        """The head over the vocabulary."""
        return self.entries[self.label_entry].head

    def column(self, value: int | str, blank: int) -> int:
        """The class that stands for a column of an entry, -1 for the next label."""
        if value == NEXT_LABEL:
            return -1
        if isinstance(value, str) and value != BLANK:  # a big blank without a class of its own
            number, count = int(value), sum(isinstance(entry.column, str) for entry in self.entries) - 2
            return blank - 1 - number if blank >= count else blank + 1 + number
        return blank if value == BLANK else int(value)

    def blanks(self, blank: int) -> list[int]:
        """Classes that are blanks, of any duration."""
        found = (self.column(entry.column, blank) for entry in self.entries if entry.head == 0 and not entry.complement)
        return [column for column in found if column >= 0]

    def renumbered(self, blank: int, place: Callable[[int], int]) -> Topology:
        """The same over some of the classes, whose places among these are given."""
        if self.name != "multi_blank":
            return self
        classes = tuple(place(column) for column in self.blanks(blank)[1:])
        return multi_blank(**dict(self.parameters) | {"classes": classes})

    def check(self, rows: int, blank: int, given: str = "rows of weight") -> None:
        """That an output layer of so many rows has the columns. `given` is what these are called.

        Raises:
            TransducerError: it has too few, or a big blank is the blank.
        """
        if rows <= self.extra:
            raise TransducerError(
                f"there are {rows} {given}, of which {self} takes {self.extra} for durations: no class is left"
            )
        for column in self.blanks(blank)[1:]:
            if not 0 <= column < rows or column == blank:
                raise TransducerError(
                    f"{self} has a blank of class {column}, beside blank {blank}: it must be another one of 0..{rows - 1}"
                )

    def bind(self, rows: int, blank: int) -> Bound:
        """With the columns of an output layer of so many rows."""
        heads: list[tuple[int, int, int, bool, float]] = []
        for head in self.heads:
            start = blank if head.start == BLANK else int(head.start) % rows
            stop = rows if head.stop is None else head.stop % rows
            stop = start + 1 if head.kind == "sigmoid" else stop
            heads.append((start, stop, blank if head.drop else -1, head.kind == "sigmoid", head.shift))
        entries = []
        for entry in self.entries:
            found = self.column(entry.column, blank)
            within = isinstance(entry.column, int) and entry.head > 0  # a duration, whose head begins elsewhere
            entries.append((entry.head, found + heads[entry.head][0] if within else found, entry.complement))
        return Bound(tuple(heads), tuple(entries), self.arcs, self.label_ends)


TWO_ARCS = (Arc(1, 0, (0,)), Arc(0, 1, (1,)))


def regular() -> Topology:
    """The lattice of Graves 2012: a blank goes on one frame, a label stays in it."""
    return Topology("regular", (Head(0, None),), (Entry(0, BLANK), Entry(0, NEXT_LABEL)), TWO_ARCS)


def modified(label_ends: bool = True) -> Topology:
    """k2's "modified": a label goes on one frame, too, so there is one symbol a frame, and T must be at least U.

    Args:
        label_ends: whether a label may be the last symbol. With False it is a blank, as in optimized_transducer (its
            `one_sym_per_frame`), and T must be more than U.
    """
    entries = (Entry(0, BLANK), Entry(0, NEXT_LABEL))
    parameters = () if label_ends else (("label_ends", False),)
    arcs = (Arc(1, 0, (0,)), Arc(1, 1, (1,)))
    return Topology("modified", (Head(0, None),), entries, arcs, label_ends=bool(label_ends), parameters=parameters)


def constrained() -> Topology:
    """k2's "constrained": as modified, and a label pays the blank of the node after it, in the same frame."""
    entries = (Entry(0, BLANK), Entry(0, NEXT_LABEL))
    return Topology("constrained", (Head(0, None),), entries, (Arc(1, 0, (0,)), Arc(1, 1, (1,), ahead=0)), label_ends=True)


def hat() -> Topology:
    """The hybrid autoregressive transducer: P(blank) = sigmoid(s), P(label k) = (1 - P(blank)) softmax(h without s)_k, where s
    is the score of the blank's column."""
    heads = (Head(BLANK, None, "sigmoid"), Head(0, None, drop=True))
    entries = (Entry(0, BLANK), Entry(0, BLANK, complement=True), Entry(1, NEXT_LABEL))
    return Topology("hat", heads, entries, (Arc(1, 0, (0,)), Arc(0, 1, (1, 2))))


def multi_blank(durations: Sequence[int] = (2, 4, 8), classes: Sequence[int] | None = None, sigma: float = 0.0) -> Topology:
    """Blanks of several frames beside the one of one frame.

    Args:
        durations: frames of each big blank, 2 or more.
        classes: the class of each. By default they lie before the blank, the first next to it, as in NeMo and ESPnet (whose
            blank is the last class): blank - 1, blank - 2, ...; with blank 0 after it: 1, 2, ...
        sigma: taken from every log-probability ("logit under-normalisation").
    """
    durations = _durations(durations, 2)
    if classes is not None:
        if len(classes) != len(durations) or len(set(classes)) != len(classes):
            raise TransducerError(f"classes is {classes!r}; it must have one class for each of durations {durations!r}")
        classes = tuple(int(c) for c in classes)
    parameters = (("durations", durations), ("classes", classes), ("sigma", _sigma(sigma)))
    columns = [str(i) for i in range(len(durations))] if classes is None else list(classes)
    entries = (Entry(0, BLANK), *(Entry(0, c) for c in columns), Entry(0, NEXT_LABEL))
    arcs = (*(Arc(d, 0, (i,)) for i, d in enumerate((1, *durations))), Arc(0, 1, (len(entries) - 1,)))
    return Topology("multi_blank", (Head(0, None, shift=float(sigma)),), entries, arcs, parameters=parameters)


def tdt(durations: Sequence[int] = (0, 1, 2, 3, 4), sigma: float = 0.0) -> Topology:
    """The token-and-duration transducer: a token and, independently, how many frames to go on. The output layer has a row for
    each duration after those of the classes, in their order. A blank of duration 0 is no arc; its probability is lost.

    Args:
        durations: frames, 0 or more, ascending or not.
        sigma: taken from every token's log-probability.
    """
    durations = _durations(durations, 0)
    count = len(durations)
    heads = (Head(0, -count, shift=_sigma(sigma)), Head(-count, None))
    entries = (Entry(0, BLANK), Entry(0, NEXT_LABEL), *(Entry(1, i) for i in range(count)))
    blanks = (Arc(d, 0, (0, 2 + i)) for i, d in enumerate(durations) if d > 0)
    labels = (Arc(d, 1, (1, 2 + i)) for i, d in enumerate(durations))
    parameters = (("durations", durations), ("sigma", float(sigma)))
    return Topology("tdt", heads, entries, (*blanks, *labels), parameters=parameters)


BUILDERS: dict[str, Callable[..., Topology]] = {
    "regular": regular, "modified": modified, "constrained": constrained, "hat": hat, "multi_blank": multi_blank, "tdt": tdt,
}  # fmt: skip


@functools.cache
def named(key: str) -> Topology:
    """The topology of a key, or of a name with the defaults.

    Raises:
        TransducerError: there is none.
    """
    name, _, parameters = key.partition(" ")
    if name not in BUILDERS:
        raise TransducerError(
            f"topology is {key!r}; it must be one of {', '.join(map(repr, BUILDERS))}, or made by samplewise.topology"
        )
    return BUILDERS[name](**json.loads(parameters or "{}"))


def _durations(durations: Sequence[int], least: int) -> tuple[int, ...]:
    try:
        found = tuple(int(d) for d in durations)
    except (TypeError, ValueError):
        raise TransducerError(f"durations is {durations!r}; it must be a sequence of whole numbers") from None
    if not found or min(found) < least or max(found) < 1 or len(set(found)) != len(found) or found != tuple(durations):
        raise TransducerError(
            f"durations is {durations!r}; they must be different whole numbers from {least} on, at least one of them 1 or more"
        )
    return found


def _sigma(sigma: float) -> float:
    try:
        number = float(sigma)
    except (TypeError, ValueError):
        raise TransducerError(f"sigma is {sigma!r}; it must be a number") from None
    if not 0.0 <= number < math.inf:
        raise TransducerError(f"sigma is {sigma}; it must be a number from 0 on")
    return number


DEFAULTS = {name: build() for name, build in BUILDERS.items()}
