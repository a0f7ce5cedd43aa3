"""`bounds` of every backend: what the formula says, from sums over classes in float64, and never below the truth."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from samplewise.checks import ACTIVATIONS
from samplewise.kernels import eager
from samplewise.kernels.layout import packed_table
from samplewise.reference import activation_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Case:
    """Utterances side by side with NaN between them, and some of their frames as stretches with some classes each."""

    frames: list[int]
    labels: list[int]
    encoder_rows: Tensor
    predictor_rows: Tensor
    activation: str
    targets: Tensor
    weight: Tensor
    bias: Tensor
    stretches: Tensor  # (Q, 3)
    classes: Tensor  # (Q, S+1)
    slack: Tensor  # (Q,)

    @property
    def padding(self) -> tuple[int, int]:
        """Rows of an utterance in encoder_rows and predictor_rows."""
        return len(self.encoder_rows) // len(self.frames), len(self.predictor_rows) // len(self.frames)

    def run(self, kernels, **changed) -> tuple[Tensor, Tensor]:
        """Both bounds (N,), which hold 7.0 before. Sums of rows are made in float64."""
        counts = ~torch.isneginf(self.bias)
        others = counts.repeat(len(self.stretches), 1).scatter_(1, self.classes, False).double()  # (Q, V)
        weight, bias, real = self.weight.double(), torch.where(counts, self.bias, 0.0).double(), self.bias.dtype
        given = {
            "rows": torch.cat((weight[self.classes], (others @ weight)[:, None]), 1).to(real),
            "row_bias": torch.cat((self.bias[self.classes], (others @ bias)[:, None].to(real)), 1),
            "rest": others.sum(1).to(real),
        } | changed  # fmt: skip
        table, nodes = packed_table(self.frames, self.labels, *self.padding, self.padding[1] - 1, torch.device("cpu"))
        outputs = torch.full((2, nodes), 7.0, dtype=real)
        kernels.bounds(
            self.encoder_rows, self.predictor_rows, self.activation, table, self.targets, self.weight, self.bias,
            self.stretches, self.classes, *given.values(), self.slack, *outputs,
        )  # fmt: skip
        return outputs[0], outputs[1]

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """(2, N) bounds and (2, N) log-probabilities, of blank and label, class by class in float64; (N,) which stretch has the
        node, -1 if none."""
        found, truth, where = [], [], []
        for g, (frames, labels) in enumerate(zip(self.frames, self.labels, strict=True)):
            first, token = g * self.padding[0], g * self.padding[1]
            x = self.encoder_rows[first : first + frames, None].double()
            x = x + self.predictor_rows[token : token + labels + 1].double()
            h = activation_of(self.activation)(x) @ self.weight.double().t() + self.bias.double()  # (T, U+1, V)
            stretch = torch.full((frames, labels + 1), -1)
            for q, (of, begin, stop) in enumerate(self.stretches.tolist()):
                stretch[begin:stop] = torch.where(torch.tensor(of == g), q, stretch[begin:stop])
            target = token - g  # of g padded rows of labels, which are one shorter
            for t in range(frames):
                for u in range(labels + 1):
                    own = int(self.targets[target + u]) if u < labels else None
                    pair, exact = self.at_node(h[t, u], int(stretch[t, u]), own)
                    found.append(pair)
                    truth.append(exact)
            where.append(stretch.flatten())
        return (*(torch.tensor(x, dtype=torch.float64).view(-1, 2).t() for x in (found, truth)), torch.cat(where))

    def at_node(self, h: Tensor, q: int, own: int | None) -> tuple[tuple[float, float], tuple[float, float]]:
        blank = int(self.classes[0, 0])
        exact = h.log_softmax(0)
        chosen = set(self.classes[q].tolist()) | ({own} if own is not None else set())
        known = torch.tensor([v in chosen for v in range(len(h))])
        rest = h[~known & ~torch.isneginf(self.bias)]
        total = h[known].exp().sum()
        if len(rest):
            total = total + len(rest) * rest.mean().exp()
        level, slack = total.log(), float(self.slack[q])
        none = own is None
        bound = min(float(h[blank] - level) + slack, 0.0), -INF if none else min(float(h[own] - level) + slack, 0.0)
        return bound, (float(exact[blank]), -INF if none else float(exact[own]))


def case_of(seed: int, dtype: torch.dtype, activation: str, vocab: int | None = None, chosen: int | None = None) -> Case:
    """Any of many kinds: few classes or many, masked ones, twins, peaked scores, own labels among the classes or not."""
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    V, D, G = vocab or draw.choice((3, 4, 17, 65, 200)), draw.choice((1, 7, 33, 70)), draw.randint(1, 3)
    frames = [draw.choice((1, draw.randint(2, 14))) for _ in range(G)]
    labels = [draw.choice((0, draw.randint(1, 4), draw.randint(5, 20))) for _ in range(G)]
    T, U = max(frames) + draw.randint(0, 2), max(labels) + draw.randint(0, 2)
    rows = [torch.full((G, n, D), NAN) for n in (T, U + 1)]
    for padded, counts in ((rows[0], frames), (rows[1], [u + 1 for u in labels])):
        for b, count in enumerate(counts):
            padded[b, :count] = torch.randn(count, D, generator=g)
    weight = torch.randn(V, D, generator=g) * draw.choice((0.1, 1.0, 4.0)) / D**0.5
    bias = torch.randn(V, generator=g) * draw.choice((0.0, 1.0, 3.0))
    weight[V // 2 :] = weight[V // 2 : V // 2 + 1] if draw.random() < 0.2 else weight[V // 2 :]
    blank = draw.randrange(V)
    if draw.random() < 0.5:
        masked = torch.rand(V, generator=g) < draw.choice((0.1, 0.6))
        masked[blank] = False
        bias[masked] = -INF
    targets = torch.randint(V, (G * U,), generator=g)
    stretches = []
    for b, count in enumerate(frames):
        step = draw.randint(1, count)
        stretches += [(b, t, min(t + step, count)) for t in range(0, count, step)]
    left_out = draw.randrange(len(stretches)) if len(stretches) > 1 else len(stretches)  # nobody asks for the bounds of one
    stretches = [x for q, x in enumerate(stretches) if q != left_out]
    others = torch.tensor([v for v in range(V) if v != blank])
    S = min(V - 1, chosen or draw.choice((2, 6)))
    classes = [torch.cat((torch.tensor([blank]), others[torch.randperm(V - 1, generator=g)[:S]])) for _ in stretches]
    return Case(
        frames, labels, rows[0].flatten(0, 1).to(dtype), rows[1].flatten(0, 1).to(dtype), activation, targets, weight.to(dtype),
        bias.to(real), torch.tensor(stretches), torch.stack(classes), torch.rand(len(stretches), generator=g).to(real) / 10,
    )  # fmt: skip


def check(kernels, case: Case) -> tuple[Tensor, Tensor]:
    """What the formula says, no less than the truth, and nothing where nobody asked. Returns bounds and truth where asked."""
    got = torch.stack(case.run(kernels)).double()
    expected, truth, stretch = case.expected()
    asked = stretch >= 0
    assert (got[:, ~asked] == 7.0).all(), "a node of no stretch was written"
    scale = float(case.weight.double().norm(dim=1).max()) * (case.weight.shape[1] ** 0.5 + 3) + 8
    atol = 64 * scale * torch.finfo(case.bias.dtype).eps
    torch.testing.assert_close(got[:, asked], expected[:, asked], rtol=atol, atol=atol)
    assert (got[:, asked] >= truth[:, asked]).all() and (got[:, asked] <= 0.0).all()
    return got[:, asked], truth[:, asked]


@EVERY_DTYPE
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bounds(kernels, activation, dtype):
    check(kernels, case_of(11, dtype, activation))


@pytest.mark.parametrize("seed", range(100, 130))
def test_many_kinds(kernels, seed):
    check(kernels, case_of(seed, torch.float32, ("tanh", "relu", "identity")[seed % 3]))


@pytest.mark.parametrize("frames, labels", [([1], [0]), ([700], [0]), ([2], [600]), ([1, 3, 1], [0, 2, 1])], ids=str)
def test_sizes(kernels, frames, labels):
    """One node; a stretch of more nodes than the usual ones have; more labels; the last of several utterances alone."""
    case, (T, U) = case_of(3, torch.float32, "tanh", vocab=17), (max(frames), max(labels))
    dim, last = case.weight.shape[1], len(frames) - 1
    case = replace(
        case, frames=frames, labels=labels, encoder_rows=torch.randn(len(frames) * T, dim),
        predictor_rows=torch.randn(len(frames) * (U + 1), dim), targets=torch.randint(17, (len(frames) * U,)),
        stretches=torch.tensor([[last, 0, frames[last]]]), classes=case.classes[:1], slack=case.slack[:1],
    )  # fmt: skip
    check(kernels, case)


@EVERY_DTYPE
@pytest.mark.parametrize("vocab, seed", [(3, 21), (4, 22), (7, 23)])
def test_where_no_class_is_left_it_is_exact(kernels, vocab, seed, dtype):
    case = case_of(seed, dtype, "tanh", vocab=vocab, chosen=vocab - 1)
    bounds, truth = check(kernels, replace(case, slack=torch.full_like(case.slack, 1e-4)))
    close = {"rtol": 1e-4, "atol": 3e-5} if dtype != torch.float64 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(bounds, (truth + 1e-4).clamp(max=0), **close)


def test_one_class_left(kernels):
    """Nothing is estimated then, whether it is the node's own label or not."""
    case = case_of(24, torch.float64, "tanh", vocab=6, chosen=4)
    case = replace(case, bias=case.bias.nan_to_num(neginf=0.5), slack=torch.zeros_like(case.slack))
    _, truth, stretch = case.expected()
    bounds = torch.stack(case.run(kernels))
    torch.testing.assert_close(bounds[:, stretch >= 0], truth[:, stretch >= 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", [31, 32, 33, 34])
def test_as_the_eager_kernel(kernels, seed):
    """Also where scores are so large that the sum is one of them alone."""
    case = case_of(seed, torch.float32, "tanh")
    case = replace(case, weight=case.weight * 300)
    for got, right in zip(case.run(kernels), case.run(eager), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=0.05)


def small(activation: str = "tanh") -> Case:
    """5 frames in two stretches, 3 labels: the second is none of the classes of the first stretch, nor of the second's."""
    case = case_of(41, torch.float32, activation, vocab=17, chosen=6)
    return replace(
        case, frames=[5], labels=[3], encoder_rows=torch.randn(5, 33), predictor_rows=torch.randn(4, 33),
        targets=torch.tensor([3, 5, 3]), weight=torch.randn(17, 33), bias=torch.randn(17),
        stretches=torch.tensor([[0, 0, 2], [0, 2, 5]]), slack=torch.zeros(2),
        classes=torch.tensor([[0, 1, 2, 3, 4, 6, 7], [0, 1, 2, 4, 6, 7, 8]]),
    )  # fmt: skip


def spoil(case: Case, place: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Put NaN somewhere. Returns which nodes (5, 4) it reaches, and changed arguments of the kernel."""
    nodes, changed = torch.zeros(5, 4, dtype=torch.bool), {}
    if place == "encoder":
        case.encoder_rows[1, 32] = NAN
        nodes[1] = True
    elif place == "predictor":
        case.predictor_rows[2, 0] = NAN
        nodes[:, 2] = True
    elif place == "label":
        case.weight[5, 7] = NAN
        changed = {"rows": torch.randn(2, 8, 33), "row_bias": torch.randn(2, 8), "rest": torch.tensor([10.0, 10.0])}
        nodes[:, 1] = True
    elif place == "bias":
        case.bias[5] = NAN
        changed = {"rows": torch.randn(2, 8, 33), "row_bias": torch.randn(2, 8), "rest": torch.tensor([10.0, 10.0])}
        nodes[:, 1] = True
    else:
        rows = torch.randn(2, 8, 33)
        rows[1, {"blank": 0, "class": 3, "others": 7}[place], 9] = NAN
        changed = {"rows": rows, "row_bias": torch.randn(2, 8), "rest": torch.tensor([10.0, 10.0])}
        nodes[2:] = True
    return nodes, changed


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("place", ["encoder", "predictor", "label", "bias", "blank", "class", "others"])
def test_nan_stays_nan_where_it_belongs(kernels, place, activation):
    """0 or less, it would be taken for a bound."""
    case = small(activation)
    nodes, changed = spoil(case, place)
    for got in case.run(kernels, **changed):
        assert torch.equal(got.view(5, 4).isnan(), nodes)


def test_infinite_encodings(kernels):
    """Where the activation tames them they are numbers like others, elsewhere their nodes have no bound."""
    case = small()
    case.encoder_rows[1, 0], case.predictor_rows[2, 5] = INF, -INF
    check(kernels, case)
    blank, label = replace(case, activation="identity").run(kernels)
    touched = torch.zeros(5, 4, dtype=torch.bool)
    touched[1], touched[:, 2] = True, True
    assert torch.equal(blank.view(5, 4).isnan(), touched) and torch.equal(label.view(5, 4).isnan(), touched)


def test_no_stretch(kernels):
    case = small()
    case = replace(case, stretches=case.stretches[:0], classes=case.classes[:0], slack=case.slack[:0])
    assert all((got == 7.0).all() for got in case.run(kernels))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_from_exponentials(activation, dtype):
    """The CPU's kernel makes tanh and sigmoid from tables; the bounds are the same but for these 2e-7."""
    numba = pytest.importorskip("samplewise.kernels.numba")
    for seed in range(50, 56):
        case = case_of(seed, dtype, activation)
        table, _ = packed_table(case.frames, case.labels, *case.padding, case.padding[1] - 1, torch.device("cpu"))
        made = numba.exponentials(case.encoder_rows, case.predictor_rows, table, activation)
        assert made is not None
        tables = replace(case, encoder_rows=made[0], predictor_rows=made[1], activation=f"{activation} of exponentials")
        for got, right in zip(tables.run(numba), case.run(numba), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6 * float(case.weight.float().abs().sum(1).max()) + 1e-5)
