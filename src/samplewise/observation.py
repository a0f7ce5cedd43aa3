"""What the losses did: which method ran, where the occupancy was, what bound was proved, and what memory was planned.

The passes tell it (`calling`, `planned`, `report_group`); they pay nothing where nobody listens. Who listens hears all threads
of the process, for autograd may run a backward in a thread of its own. Numbers that a GPU holds stay there until somebody
reads them, so that recording makes nobody wait.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_observers: list[Observation] = []  # that listen now
_lock = threading.Lock()
_thread = threading.local()  # .call: the one that this thread is in


class GroupReport:
    """What became of one group of utterances.

    Attributes:
        method: that computed the group, "tiled", "guided", "samplewise" or "batched".
        first, stop: its utterances, first..stop-1 of the batch.
        nodes: of their lattices, without padding.
        visited_nodes: that were looked at, whose emissions or bounds were made: all, unless a corridor left the others out.
        exact_nodes: whose emissions came from the whole softmax.
        active_nodes: whose gradients were made; None where no gradient was asked for.
        rounds: in which the exact nodes were found; 0 where all were exact from the start.
        bound: proved: no more than this is the share of an utterance's probability that paths outside the exact nodes have, and
            with it the error of its loss (in nats) and of every posterior. The largest of the group; 0.0 where all nodes are
            exact.
    """

    def __init__(
        self, method: str, first: int, stop: int, nodes: int, exact_nodes: int | Tensor, active_nodes: int | Tensor | None,
        rounds: int, bound: float | Tensor, visited_nodes: int | None = None,
    ) -> None:  # fmt: skip
        self.method, self.first, self.stop, self.nodes, self.rounds = method, first, stop, nodes, rounds
        self.visited_nodes = nodes if visited_nodes is None else visited_nodes
        self._exact_nodes, self._active_nodes, self._bound = exact_nodes, active_nodes, bound

    @property
    def exact_nodes(self) -> int:
        self._exact_nodes = int(self._exact_nodes)
        return self._exact_nodes

    @property
    def active_nodes(self) -> int | None:
        if self._active_nodes is not None:
            self._active_nodes = int(self._active_nodes)
        return self._active_nodes

    @property
    def bound(self) -> float:
        self._bound = float(self._bound)
        return self._bound

    @property
    def exact_share(self) -> float:
        """exact_nodes / nodes."""
        return self.exact_nodes / self.nodes

    @property
    def active_share(self) -> float | None:
        """active_nodes / nodes."""
        return None if self.active_nodes is None else self.active_nodes / self.nodes

    def __repr__(self) -> str:
        return (
            f"GroupReport(method={self.method!r}, first={self.first}, stop={self.stop}, nodes={self.nodes}, "
            f"visited_nodes={self.visited_nodes}, "
            f"exact_nodes={self.exact_nodes}, active_nodes={self.active_nodes}, rounds={self.rounds}, bound={self.bound:.1e})"
        )


class _Groups:
    """Figures over all groups."""

    groups: list[GroupReport]

    @property
    def methods(self) -> Counter[str]:
        """Groups that each method computed."""
        return Counter(group.method for group in self.groups)

    @property
    def nodes(self) -> int:
        return sum(group.nodes for group in self.groups)

    @property
    def visited_share(self) -> float | None:
        """Share of all nodes that were looked at, exactly or by bounds; None where there was no call."""
        return sum(group.visited_nodes for group in self.groups) / self.nodes if self.groups else None

    @property
    def exact_share(self) -> float | None:
        """Share of all nodes whose emissions came from the whole softmax; None where there was no call."""
        return sum(group.exact_nodes for group in self.groups) / self.nodes if self.groups else None

    @property
    def active_share(self) -> float | None:
        """Share of the nodes whose gradients were made, among those of calls that made any; None where none did."""
        counts = [(group.active_nodes, group.nodes) for group in self.groups if group.active_nodes is not None]
        return sum(active for active, _ in counts) / sum(nodes for _, nodes in counts) if counts else None

    @property
    def rounds(self) -> int:
        """The most that a group took."""
        return max((group.rounds for group in self.groups), default=0)

    @property
    def bound(self) -> float:
        """The largest bound of a group."""
        return max((group.bound for group in self.groups), default=0.0)

    def _figures(self) -> str:
        if not self.groups:
            return "nothing computed"
        visited = "" if self.visited_share == 1 else f"{self.visited_share:.1%} visited, "
        ran = ", ".join(f"{method} {count}" for method, count in self.methods.items())
        active = "no gradients" if self.active_share is None else f"{self.active_share:.1%} active"
        return (
            f"{_counted(len(self.groups), 'group')} ({ran}), {self.nodes} nodes: {visited}{self.exact_share:.1%} exact, "
            f"{active}, at most {self.bound:.2g} of the probability outside, {_counted(self.rounds, 'round')}"
        )


class Call(_Groups):
    """One call of a loss. The backward of reduction "none" computes once more, and is a call of its own.

    Attributes:
        method: that was asked for, "auto" for instance; those of the groups are the ones that ran.
        groups: of utterances, in order. With classes sampled for each utterance every utterance is a group.
        workspace: planned bytes, the most that the call may take beyond inputs, outputs and gradients.
    """

    def __init__(self, method: str) -> None:
        self.method, self.workspace = method, 0
        self.groups: list[GroupReport] = []
        self._offset = 0  # of the part's utterances in the batch

    def __str__(self) -> str:
        return f"{self.method}: {self._figures()}, workspace {self.workspace / 2**20:.1f} MiB"

    def __repr__(self) -> str:
        return f"Call(method={self.method!r}, groups={self.groups!r}, workspace={self.workspace})"


class Observation(_Groups, Sequence[Call]):
    """The calls that were seen, in the order in which they ended, and figures over all their groups. `print` shows them."""

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self._calls = list(calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index):
        return Observation(self._calls[index]) if isinstance(index, slice) else self._calls[index]

    @property
    def groups(self) -> list[GroupReport]:  # type: ignore[override]
        """Of all calls."""
        return [group for call in self._calls for group in call.groups]

    @property
    def workspace(self) -> int:
        """The largest that was planned, bytes."""
        return max((call.workspace for call in self._calls), default=0)

    def summary(self) -> str:
        """One line over all calls."""
        return f"{_counted(len(self), 'call')}, {self._figures()}, workspace {self.workspace / 2**20:.1f} MiB"

    def __str__(self) -> str:
        calls = [str(call) for call in self._calls]
        return calls[0] if len(calls) == 1 else "\n".join([*calls, self.summary()])

    def __repr__(self) -> str:
        return f"<Observation of {self.summary()}>"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def observe() -> Iterator[Observation]:
    """A context that collects what every `transducer_loss` inside it did, `Joiner.loss` and `TransducerLoss` included.

    Seen are the calls that begin while the context is open, in any thread, backwards and compiled functions included; contexts
    may lie within each other, and each sees all. `rnnt_loss` and `joint_loss`, which are given logits, have nothing to tell.
    Reading a figure waits for the device if it is a GPU; collecting does not.

    Returns:
        An `Observation`: a sequence of `Call`s, each with its `groups` of utterances, and `active_share`, `exact_share`,
        `bound`, `rounds`, `methods` and `workspace` over all of them.

    >>> import torch, samplewise
    >>> with samplewise.observe() as seen:
    ...     loss = samplewise.transducer_loss(
    ...         torch.randn(1, 9, 4), torch.randn(1, 3, 4), torch.randn(7, 4), None, torch.tensor([[1, 2]]),
    ...         torch.tensor([9]), torch.tensor([2]), method="tiled")
    >>> len(seen), seen[0].method, seen.methods["tiled"], seen.exact_share, seen.bound
    (1, 'tiled', 1, 1.0, 0.0)
    """
    seen = Observation()
    with _lock:
        _observers.append(seen)
    try:
        yield seen
    finally:
        with _lock:
            _observers[:] = [other for other in _observers if other is not seen]


# --- for the passes -------------------------------------------------------------------------------------------------------


@contextmanager
def calling(method: str) -> Iterator[None]:
    """Around a call that asks for `method`. Observers get it when it has come to its end."""
    with _lock:
        listening = tuple(_observers)
    if not listening:
        yield
        return
    before = getattr(_thread, "call", None)
    _thread.call = call = Call(method)
    try:
        yield
    finally:
        _thread.call = before
    for seen in listening:
        seen._calls.append(call)


def planned(workspace: int, first: int = 0) -> None:
    """The workspace (bytes) of the groups that follow, whose utterance 0 is utterance `first` of the batch."""
    call = getattr(_thread, "call", None)
    if call is not None:
        call.workspace, call._offset = max(call.workspace, workspace), first


def report_group(
    method: str, first: int, stop: int, nodes: int, *, exact: int | Tensor | None = None, active: int | Tensor | None = None,
    rounds: int = 0, bound: float | Tensor = 0.0, visited: int | None = None,
) -> None:  # fmt: skip
    """What a group did; see `GroupReport`.

    exact and active: numbers of nodes, or masks of them; exact None: all of them. bound: one number, or one an utterance.
    Tensors may be changed afterwards.
    """
    call = getattr(_thread, "call", None)
    if call is None:
        return
    exact_nodes = nodes if exact is None else _count(exact)
    active_nodes = None if active is None else _count(active)
    bound = bound.detach().amax() if isinstance(bound, Tensor) else bound
    first, stop = first + call._offset, stop + call._offset
    call.groups.append(GroupReport(method, first, stop, nodes, exact_nodes, active_nodes, rounds, bound, visited))


def _count(nodes: int | Tensor) -> int | Tensor:
    """A number that keeps no larger tensor alive."""
    if not isinstance(nodes, Tensor):
        return nodes
    return nodes.sum() if nodes.dtype == torch.bool else nodes.detach().clone()
