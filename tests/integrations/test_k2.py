"""k2's functions beyond what was recorded: large scores, empty symbols, lattices without a path, dtypes, padding, errors."""

from __future__ import annotations

import inspect
import math
import sys
import types

import pytest
import torch

from samplewise import TransducerError
from samplewise.integrations import fast_rnnt, k2
from samplewise.integrations.k2_arguments import RNNT_TYPES

T0 = (("boundary", None), ("rnnt_type", "regular"))
LOSS = (*T0, ("delay_penalty", 0.0), ("reduction", "mean"))
ROWS, LOGITS = ("lm", "am", "symbols", "termination_symbol"), ("logits", "symbols", "termination_symbol")
PRUNED = ("logits", "symbols", "ranges", "termination_symbol")
SCALES = (("lm_only_scale", 0.1), ("am_only_scale", 0.1))
SIGNATURES = {
    "rnnt_loss": (*LOGITS, *LOSS),
    "rnnt_loss_simple": (*ROWS, *LOSS, ("return_grad", False)),
    "rnnt_loss_smoothed": (*ROWS, *SCALES, *LOSS, ("return_grad", False)),
    "rnnt_loss_pruned": (*PRUNED, *LOSS, ("use_hat_loss", False)),
    "get_rnnt_logprobs": (*ROWS, *T0[::-1]),
    "get_rnnt_logprobs_smoothed": (*ROWS, *SCALES, *T0),
    "get_rnnt_logprobs_joint": (*LOGITS, *T0[::-1]),
    "get_rnnt_logprobs_pruned": (*PRUNED, "boundary", T0[1]),
    "get_hat_logprobs_pruned": (*PRUNED, "boundary", T0[1]),
    "get_rnnt_prune_ranges": ("px_grad", "py_grad", "boundary", "s_range"),
    "get_rnnt_prune_ranges_deprecated": ("px_grad", "py_grad", "boundary", "s_range"),
    "do_rnnt_pruning": ("am", "lm", "ranges"),
    "mutual_information_recursion": ("px", "py", ("boundary", None), ("return_grad", False)),
}


def signature_of(function):
    found = inspect.signature(function).parameters.values()
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in found)
    return tuple(p.name if p.default is p.empty else (p.name, p.default) for p in found)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    assert signature_of(getattr(k2, name)) == SIGNATURES[name]


OF_FAST_RNNT = {
    "rnnt_loss": (*LOGITS, *LOSS, ("return_grad", False)),
    "rnnt_loss_pruned": (*PRUNED, *LOSS, ("return_grad", False)),
    "get_rnnt_logprobs_joint": (*LOGITS, *T0),
    "get_rnnt_logprobs_pruned": (*PRUNED, *T0),
}


@pytest.mark.parametrize("name", fast_rnnt.__all__)
def test_signatures_of_fast_rnnt(name):
    """Four differ from k2's."""
    assert signature_of(getattr(fast_rnnt, name)) == {**SIGNATURES, **OF_FAST_RNNT}[name]
    assert (getattr(fast_rnnt, name) is getattr(k2, name)) == (name not in OF_FAST_RNNT)


def test_occupation_probabilities_of_logits():
    """fast_rnnt gives them for every loss; they are those of px and py, and the loss is the same without them."""
    lm, am, symbols, boundary = make()
    logits = am[:, :, None] + lm[:, None]
    ranges = torch.arange(5).expand(2, 7, 5)
    right, wanted = k2.rnnt_loss_simple(lm, am, symbols, 0, boundary, return_grad=True)
    for found, grads in (
        fast_rnnt.rnnt_loss(logits, symbols, 0, boundary, return_grad=True),
        fast_rnnt.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, return_grad=True),
    ):
        torch.testing.assert_close((found, *grads), (right, *wanted), rtol=1e-10, atol=1e-13)
    for found in (
        fast_rnnt.rnnt_loss(logits, symbols, 0, boundary),
        fast_rnnt.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary),
    ):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=0)


def make(B=2, T=7, S=4, C=9, scale=1.0, dtype=torch.float64, seed=0):
    """lm (B, S+1, C), am (B, T, C), symbols (B, S) and boundary (B, 4)."""
    g = torch.Generator().manual_seed(seed)
    lm, am = ((torch.randn(B, n, C, generator=g, dtype=torch.float64) * scale).to(dtype) for n in (S + 1, T))
    symbols = torch.randint(1, C, (B, S), generator=g)
    boundary = torch.tensor([[0, 0, max(S - b, 0), T - b] for b in range(B)])
    return lm, am, symbols, boundary


def by_logits(lm, am, symbols, boundary, **options):
    """The simple loss by way of the 4-D tensor."""
    return k2.rnnt_loss(am.double()[:, :, None] + lm.double()[:, None], symbols, 0, boundary, **options)


def gradients(loss, *leaves):
    leaves = [x.clone().requires_grad_() for x in leaves]
    value = loss(*leaves)
    value = value[0] if isinstance(value, tuple) else value
    weights = torch.linspace(0.5, 2, max(1, value.numel()), dtype=value.dtype).view(value.shape)
    return value.detach(), torch.autograd.grad(value, leaves, weights)


@pytest.mark.parametrize("scale", [1.0, 60.0, 500.0])
def test_large_scores(scale):
    """A matrix product of exponentials underflows for them: fast_rnnt and k2 are off by some ten percent."""
    lm, am, symbols, boundary = make(scale=scale, dtype=torch.float32)
    options = {"reduction": "none"}
    got = gradients(lambda lm, am: k2.rnnt_loss_simple(lm, am, symbols, 0, boundary, **options), lm, am)
    right = gradients(lambda lm, am: by_logits(lm, am, symbols, boundary, **options), lm.double(), am.double())
    torch.testing.assert_close(got[0].double(), right[0], rtol=1e-6, atol=1e-6 * scale)
    for one, two in zip(got[1], right[1], strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5 + 1e-6 * scale)
    smoothed = k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.2, 0.3, boundary, **options)
    exact = k2.rnnt_loss_smoothed(lm.double(), am.double(), symbols, 0, 0.2, 0.3, boundary, **options)
    torch.testing.assert_close(smoothed.double(), exact, rtol=2e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("rnnt_type", RNNT_TYPES)
def test_unpruned_ranges_are_the_exact_loss(rnnt_type):
    """And so are the simple loss, and the recursion over px and py: four ways to one number."""
    lm, am, symbols, boundary = make()
    logits = (am[:, :, None] + lm[:, None]).requires_grad_()
    options = {"boundary": boundary, "rnnt_type": rnnt_type, "delay_penalty": 0.1, "reduction": "none"}
    ranges = torch.arange(5).expand(2, 7, 5)
    right = k2.rnnt_loss(logits, symbols, 0, **options)
    torch.testing.assert_close(k2.rnnt_loss_pruned(logits, symbols, ranges.int(), 0, **options), right, rtol=1e-12, atol=0)
    torch.testing.assert_close(k2.rnnt_loss_simple(lm, am, symbols, 0, **options), right, rtol=1e-12, atol=0)
    torch.testing.assert_close(k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.0, 0.0, **options), right, rtol=1e-12, atol=0)
    px, py = k2.get_rnnt_logprobs_joint(logits, symbols, 0, rnnt_type, boundary)
    late = 0.1 * ((boundary[:, 3].double() - 1)[:, None] / 2 - torch.arange(px.shape[2]))
    scores = k2.mutual_information_recursion((px + late[:, None]).contiguous(), py, boundary)
    torch.testing.assert_close(-scores, right, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(-scores.sum(), logits), torch.autograd.grad(right.sum(), logits), rtol=1e-9, atol=1e-12
    )
    assert bool((k2.rnnt_loss_pruned(logits[:, :, :2], symbols, ranges[:, :, :2], 0, **options) >= right - 1e-9).all())


@pytest.mark.parametrize("rnnt_type", RNNT_TYPES)
def test_begins_are_slices(rnnt_type):
    lm, am, symbols, _ = make(B=1)
    boundary = torch.tensor([[1, 2, 3, 6]])
    logits = am[:, :, None] + lm[:, None]
    options = {"rnnt_type": rnnt_type, "reduction": "none"}
    right = k2.rnnt_loss(logits[:, 2:6, 1:4], symbols[:, 1:3], 0, **options)
    torch.testing.assert_close(k2.rnnt_loss(logits, symbols, 0, boundary.int(), **options), right, rtol=1e-12, atol=0)
    torch.testing.assert_close(k2.rnnt_loss_simple(lm, am, symbols, 0, boundary, **options), right, rtol=1e-12, atol=0)
    symbols[0, 0], symbols[0, 3] = -1, 0  # nobody's
    torch.testing.assert_close(k2.rnnt_loss(logits, symbols, 0, boundary, **options), right, rtol=1e-12, atol=0)


@pytest.mark.parametrize("S", [0, 2])
def test_empty_symbols(S):
    """Of one utterance, or of all."""
    lm, am, symbols, _ = make(S=S)
    boundary = torch.tensor([[0, 0, S, 7], [0, 0, 0, 5]])
    logits, options = am[:, :, None] + lm[:, None], {"boundary": boundary, "reduction": "none"}
    losses = k2.rnnt_loss(logits, symbols, 0, **options)
    torch.testing.assert_close(losses[1], -logits[1, :5, 0].log_softmax(1)[:, 0].sum(), rtol=1e-12, atol=0)
    simple, (px_grad, py_grad) = k2.rnnt_loss_simple(lm, am, symbols, 0, **options, return_grad=True)
    torch.testing.assert_close(simple, losses, rtol=1e-12, atol=0)
    assert px_grad.shape == (2, S, 8) and not bool(px_grad[1].any()) and float(py_grad[1].sum().round()) == 5
    torch.testing.assert_close(k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0, 0, **options), losses, rtol=1e-12, atol=0)
    ranges = k2.get_rnnt_prune_ranges(px_grad, py_grad, boundary, 5)
    assert ranges.shape == (2, 7, S + 1) and not bool(ranges[..., 0].any())
    pruned = k2.rnnt_loss_pruned(logits, symbols, ranges, 0, **options)
    torch.testing.assert_close(pruned, losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rnnt_type", RNNT_TYPES)
def test_fewer_frames_than_symbols(rnnt_type):
    """A path in the regular lattice, none in the others: an infinite loss, zero gradients, and the other utterance's own."""
    lm, am, symbols, _ = make(T=3)
    options = {"rnnt_type": rnnt_type, "reduction": "none"}
    boundary = torch.tensor([[0, 0, 4, 3], [0, 0, 2, 3]])
    for loss in (k2.rnnt_loss_simple, lambda lm, am, *rest, **options: by_logits(lm, am, rest[0], rest[2], **options)):
        losses, grads = gradients(lambda lm, am, loss=loss: loss(lm, am, symbols, 0, boundary, **options), lm, am)
        assert bool(torch.isfinite(losses[0])) == (rnnt_type == "regular") and bool(torch.isfinite(losses[1]))
        assert bool(torch.isfinite(grads[0]).all()) and bool(grads[0][1].any())
        assert bool(grads[0][0].any()) == (rnnt_type == "regular")


def test_no_frames():
    """As in k2: the loss of nothing is 0, and of symbols without frames infinite."""
    lm, am, symbols, _ = make()
    boundary = torch.tensor([[0, 0, 0, 0], [1, 3, 3, 3]])
    for rnnt_type in RNNT_TYPES:
        losses = k2.rnnt_loss(am[:, :, None] + lm[:, None], symbols, 0, boundary, rnnt_type, reduction="none")
        assert losses.tolist() == [0.0, math.inf], rnnt_type


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_and_strides(dtype):
    lm, am, symbols, boundary = make(dtype=dtype)
    wide = lm.double(), am.double()
    strided = lm.transpose(1, 2).contiguous().transpose(1, 2), am.repeat_interleave(2, 2)[..., ::2]
    for name in ("rnnt_loss_simple", "rnnt_loss_smoothed"):
        loss = getattr(k2, name)
        got, grads = gradients(lambda lm, am, loss=loss: loss(lm, am, symbols.int(), 0, boundary=boundary.int()), *strided)
        right, right_grads = gradients(lambda lm, am, loss=loss: loss(lm, am, symbols, 0, boundary=boundary), *wide)
        assert got.dtype == torch.float32 and grads[0].dtype == dtype
        torch.testing.assert_close(got.double(), right, rtol=1e-6, atol=0)
        torch.testing.assert_close(grads[0].double(), right_grads[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    logits = strided[1][:, :, None] + strided[0][:, None]
    right = k2.rnnt_loss(logits.double(), symbols, 0, boundary)
    torch.testing.assert_close(k2.rnnt_loss(logits, symbols.int(), 0, boundary).double(), right, rtol=1e-6, atol=0)
    px, py = k2.get_rnnt_logprobs(*strided, symbols, 0, "regular", boundary)
    scores = k2.mutual_information_recursion(px.transpose(1, 2).contiguous().transpose(1, 2), py)
    assert scores.dtype == px.dtype == torch.float32


def test_padding_that_is_no_number():
    lm, am, symbols, boundary = make()
    right = gradients(lambda lm, am: k2.rnnt_loss_simple(lm, am, symbols, 0, boundary), lm, am)
    smooth = gradients(lambda lm, am: k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.2, 0.0, boundary), lm, am)
    mean = gradients(lambda am: k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.2, 0.3, boundary), am)
    lm_nan, am_nan, symbols = lm.clone(), am.clone(), symbols.clone()
    lm_nan[1, 4:], am_nan[1, 6:], symbols[1, 3:] = math.nan, math.inf, 99
    for got, wanted in (
        (gradients(lambda lm, am: k2.rnnt_loss_simple(lm, am, symbols, 0, boundary), lm_nan, am_nan), right),
        (gradients(lambda lm, am: k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.2, 0.0, boundary), lm_nan, am_nan), smooth),
        (gradients(lambda am: k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.2, 0.3, boundary), am_nan), mean),
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-14)


def test_occupation_probabilities_stay_and_backward_can_be_repeated():
    lm, am, symbols, boundary = make()
    px, py = (x.detach().requires_grad_() for x in k2.get_rnnt_logprobs(lm, am, symbols, 0, boundary=boundary))
    scores, grads = k2.mutual_information_recursion(px, py, boundary, return_grad=True)
    kept = [x.clone() for x in grads]
    assert not any(x.requires_grad for x in grads)
    for _ in range(2):
        found = torch.autograd.grad(scores, (px, py), torch.tensor([2.0, -3.0]).double(), retain_graph=True)
        for x, y in zip(found, kept, strict=True):
            torch.testing.assert_close(x, y * torch.tensor([2.0, -3.0]).double()[:, None, None], rtol=1e-15, atol=0)
    assert all(torch.equal(x, y) for x, y in zip(grads, kept, strict=True))
    with torch.no_grad():
        alone = k2.rnnt_loss_simple(lm, am, symbols, 0, boundary, return_grad=True)[1]
    torch.testing.assert_close(alone, tuple(kept), rtol=1e-12, atol=1e-14)


def test_a_step_of_pruned_training():
    """Ranges from the smoothed loss hold most of the occupation, and what they leave out costs something."""
    lm, am, symbols, boundary = make(T=12, scale=2.0)
    _, grads = k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.25, 0.0, boundary, return_grad=True)
    ranges = k2.get_rnnt_prune_ranges(px_grad=grads[0], py_grad=grads[1], boundary=boundary, s_range=3)
    first = ranges[..., 0]
    assert ranges.shape == (2, 12, 3) and not bool(first[:, 0].any()) and first[:, -1].tolist() == [2, 1]
    assert bool((first.diff(dim=1) >= 0).all()) and bool((first.diff(dim=1) <= 2).all())
    am_pruned, lm_pruned = k2.do_rnnt_pruning(am=am, lm=lm, ranges=ranges)
    assert am_pruned.data_ptr() == am.data_ptr() and torch.equal(lm_pruned[1, 5, 2], lm[1, ranges[1, 5, 2]])
    loss = k2.rnnt_loss_pruned(am_pruned + lm_pruned, symbols, ranges, 0, boundary, reduction="none")
    exact = by_logits(lm, am, symbols, boundary, reduction="none")
    assert bool((loss > exact).all())
    ranges = torch.arange(5).expand(2, 12, 5)
    am_pruned, lm_pruned = k2.do_rnnt_pruning(am, lm, ranges)
    whole = k2.rnnt_loss_pruned(am_pruned + lm_pruned, symbols, ranges, 0, boundary, reduction="none")
    torch.testing.assert_close(whole, exact, rtol=1e-12, atol=0)


def test_autocast_has_no_part():
    lm, am, symbols, boundary = make(dtype=torch.float32)
    right = k2.rnnt_loss_smoothed(lm, am, symbols, 0, boundary=boundary)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(k2.rnnt_loss_smoothed(lm, am, symbols, 0, boundary=boundary), right)


LM, AM, SYMBOLS, BOUNDARY = make()
RIGHT = {"lm": LM, "am": AM, "symbols": SYMBOLS, "termination_symbol": 0, "boundary": BOUNDARY}
OF_LOGITS = {name: RIGHT[name] for name in ("symbols", "termination_symbol", "boundary")} | {"logits": torch.randn(2, 7, 5, 9)}
OF_RANGES = OF_LOGITS | {"logits": torch.randn(2, 7, 2, 9), "ranges": torch.arange(2).expand(2, 7, 2)}


@pytest.mark.parametrize(
    "function, changes, words",
    [
        ("rnnt_loss_simple", {"boundary": torch.tensor([[0, 0, 5, 7], [0, 0, 4, 7]])}, ["boundary[0] is [0, 0, 5, 7]", "0..4"]),
        ("rnnt_loss_simple", {"boundary": torch.tensor([[0, 0, 4, 7], [0, 5, 4, 4]])}, ["boundary[1] is", "behind its end"]),
        ("rnnt_loss_simple", {"boundary": torch.tensor([[0, 0, 4, 8], [0, 0, 4, 7]])}, ["0..7", "am"]),
        ("rnnt_loss_simple", {"boundary": BOUNDARY[:1]}, ["boundary must be (2, 4)", "(1, 4)"]),
        ("rnnt_loss_simple", {"boundary": BOUNDARY.float()}, ["boundary must be", "torch.float32"]),
        ("rnnt_loss_simple", {"lm": LM[:, 1:]}, ["lm has 4 rows", "4 symbols", "5"]),
        ("rnnt_loss_simple", {"lm": LM[..., 1:]}, ["am must be (B, T, C) and lm (B, S+1, C)"]),
        ("rnnt_loss_simple", {"lm": LM.float()}, ["lm is torch.float32", "share one dtype"]),
        ("rnnt_loss_simple", {"am": AM.long()}, ["am is torch.int64"]),
        ("rnnt_loss_simple", {"symbols": SYMBOLS * 0}, ["symbols[0, 0] is 0", "termination_symbol", "0..8 and not 0"]),
        ("rnnt_loss_simple", {"symbols": SYMBOLS * 0, "boundary": None}, ["padding too"]),
        ("rnnt_loss_simple", {"symbols": SYMBOLS * 0 + 9}, ["symbols[0, 0] is 9", "9 classes"]),
        ("rnnt_loss_simple", {"symbols": SYMBOLS.float()}, ["symbols is torch.float32"]),
        ("rnnt_loss_simple", {"termination_symbol": 9}, ["termination_symbol is 9", "9 classes", "0..8"]),
        ("rnnt_loss_simple", {"termination_symbol": 0.5}, ["termination_symbol is 0.5"]),
        ("rnnt_loss_simple", {"rnnt_type": "modifed"}, ["rnnt_type is 'modifed'", "'constrained'"]),
        ("rnnt_loss_simple", {"reduction": "avg"}, ["reduction is 'avg'", "'none', 'mean', 'sum'"]),
        ("rnnt_loss_simple", {"delay_penalty": math.nan}, ["delay_penalty is nan"]),
        ("rnnt_loss_smoothed", {"lm_only_scale": math.inf}, ["lm_only_scale is inf"]),
        ("get_rnnt_logprobs", {"symbols": SYMBOLS - 7}, ["symbols[", "9 classes"]),
        ("rnnt_loss", {"logits": torch.randn(2, 7, 9)}, ["logits must be (B, T, U+1, V)"]),
        ("rnnt_loss", {"logits": torch.randn(2, 7, 4, 9)}, ["logits has 4 rows", "4 symbols"]),
        ("rnnt_loss", {"reduction": "mean_volume"}, ["reduction is 'mean_volume'"]),
        ("rnnt_loss_pruned", {"ranges": torch.arange(3).expand(2, 7, 3)}, ["ranges has 3 numbers", "2"]),
        ("rnnt_loss_pruned", {"ranges": torch.arange(2).expand(2, 6, 2)}, ["ranges must be (2, 7, s_range)", "(2, 6, 2)"]),
        ("rnnt_loss_pruned", {"ranges": torch.arange(4, 6).expand(2, 7, 2)}, ["ranges[0, 0, 1] is 5", "0..4"]),
        ("rnnt_loss_pruned", {"logits": torch.randn(2, 7, 9)}, ["logits must be (B, T, s_range, C)"]),
    ],
)
def test_bad_inputs(function, changes, words):
    given = {"rnnt_loss": OF_LOGITS, "rnnt_loss_pruned": OF_RANGES}.get(function, RIGHT)
    with pytest.raises(TransducerError) as caught:
        getattr(k2, function)(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: k2.mutual_information_recursion(torch.zeros(1, 2, 5), torch.zeros(1, 3, 3)), ["px is (1, 2, 5)", "(1, 3, 3)"]),
        (lambda: k2.mutual_information_recursion(torch.zeros(2, 5), torch.zeros(3, 3)), ["px is (2, 5)"]),
        (lambda: k2.mutual_information_recursion(torch.zeros(1, 2, 3), torch.zeros(1, 3, 3).double()), ["share one dtype"]),
        (
            lambda: k2.mutual_information_recursion(torch.zeros(1, 2, 4), torch.zeros(1, 3, 3), torch.tensor([[0, 0, 3, 3]])),
            ["boundary[0] is [0, 0, 3, 3]", "0..2", "py"],
        ),
        (lambda: k2.get_rnnt_prune_ranges(torch.zeros(1, 2, 5), torch.zeros(1, 3, 3), BOUNDARY[:1], 2), ["px_grad is"]),
        (
            lambda: k2.get_rnnt_prune_ranges(torch.zeros(1, 2, 4), torch.zeros(1, 3, 3), BOUNDARY, 2),
            ["boundary must be (1, 4)"],
        ),
        (lambda: k2.get_rnnt_prune_ranges(torch.zeros(1, 2, 4), torch.zeros(1, 3, 3), BOUNDARY[:1], 0), ["s_range is 0"]),
        (lambda: k2.do_rnnt_pruning(AM, LM[:1], torch.zeros(2, 7, 2).long()), ["am must be (B, T, C) and lm"]),
        (lambda: k2.do_rnnt_pruning(AM, LM, torch.full((2, 7, 2), 5)), ["ranges[0, 0, 0] is 5", "0..4"]),
    ],
)
def test_bad_inputs_of_the_others(call, words):
    with pytest.raises(TransducerError) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("module", [k2, fast_rnnt])
def test_what_else_the_peer_has(module, monkeypatch):
    name = module.__name__.rpartition(".")[2]
    peer = types.ModuleType(name)
    peer.RaggedTensor = object()
    monkeypatch.setitem(sys.modules, name, peer)
    assert module.RaggedTensor is peer.RaggedTensor and not hasattr(module, "RaggedTensors")
    monkeypatch.setitem(sys.modules, name, None)  # not installed
    with pytest.raises(AttributeError, match=f"{name} is not installed"):
        module.RaggedTensor  # noqa: B018
    assert not hasattr(module, "__wrapped__")


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("rule", [k2.get_rnnt_prune_ranges, k2.get_rnnt_prune_ranges_deprecated])
def test_ranges_leave_a_path(rule, modified):
    """Whatever the occupation probabilities say: they begin with 0, go on by few enough, and end with the last number."""
    T, S, width = 9, 6, 3
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        px_grad, py_grad = torch.rand(2, S, T + 1 - modified, generator=g), torch.rand(2, S + 1, T, generator=g)
        boundary = torch.tensor([[0, 0, S, T], [0, 0, 4, 7]])
        ranges = rule(px_grad, py_grad, boundary, width)
        first, steps = ranges[..., 0], ranges[..., 0].diff(dim=1)
        assert ranges.shape == (2, T, width) and torch.equal(ranges, first[..., None] + torch.arange(width))
        assert not bool(first[:, 0].any()) and bool((steps >= 0).all()) and int(steps.max()) <= (1 if modified else width - 1)
        assert int(first[0, -1]) == S + 1 - width and int(first[1, 6]) == 5 - width
        logits, symbols = torch.zeros(2, T, width, 9), torch.ones(2, S).long()
        rnnt_type = "modified" if modified else "regular"
        losses = k2.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, rnnt_type, reduction="none")
        assert bool(torch.isfinite(losses).all())


@pytest.mark.parametrize("hat", [False, True], ids=["plain", "hat"])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_padding_of_pruned_logits_gives_no_gradient(garbage, hat):
    """What lies beside the boundary is never read, and what it is reaches nobody's gradient."""
    torch.manual_seed(2)
    B, T, S, C, R = 2, 6, 4, 7, 3
    symbols = torch.randint(1, C, (B, S))
    boundary = torch.tensor([[0, 0, S, T], [0, 0, 2, 4]])
    ranges = torch.arange(T).div(2, rounding_mode="floor").clamp(max=S + 1 - R)[None, :, None] + torch.arange(R)[None, None]
    ranges = ranges.repeat(B, 1, 1)
    ranges[1] = torch.arange(R)
    clean = torch.randn(B, T, R, C)
    dirty = clean.clone()
    dirty[1, 4:] = garbage
    found = []
    for logits in (clean.requires_grad_(), dirty.requires_grad_()):
        k2.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, reduction="sum", use_hat_loss=hat).backward()
        found.append(logits.grad)
    torch.testing.assert_close(found[1], found[0])
    assert (found[1][1, 4:] == 0).all()
