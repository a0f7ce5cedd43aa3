"""Inputs that are unusual and sound: odd sizes, blanks, strides, integer types, and whatever the padding holds."""

import pytest
import torch

import samplewise
from tests.problems import FLOATS, error, make, ours, run, truth, upstream

METHODS = ("batched", "samplewise", "tiled", "guided")
pytestmark = pytest.mark.parametrize("method", METHODS)


def assert_true(problem, method, **options):
    """Loss and gradients of every utterance, with upstream gradients of its own, as the truth has them."""
    options = {"reduction": "none", "upstream": upstream(problem), **options}
    value, gradients = ours(problem, method=method, **options)
    right, right_gradients = truth(problem, **options)
    assert error(value, right) < 1e-12
    for name in gradients:
        assert error(gradients[name], right_gradients[name]) < 1e-12, name


@pytest.mark.parametrize(
    "frames, labels, vocab, dim",
    [
        ((5,), (2,), 7, 4),  # batch of 1
        ((1,), (0,), 3, 2),  # one node
        ((1, 1), (4, 1), 6, 3),  # T = 1
        ((2, 3), (9, 7), 6, 3),  # T < U
        ((6, 4), (0, 0), 5, 3),  # every target empty, targets (2, 0)
        ((6, 4, 5), (3, 0, 1), 5, 3),  # one target empty
        ((4, 3), (2, 2), 2, 3),  # blank and one label
        ((4, 3), (0, 0), 1, 3),  # blank alone: nothing to choose
        ((4, 3), (2, 1), 5, 1),  # D = 1
        ((4, 3), (2, 1), 129, 33),
        ((300, 2), (1, 40), 5, 3),  # long and thin, short and wide
        ((3,) * 17, (1, 2) * 8 + (0,), 5, 3),
    ],
)
def test_sizes(method, frames, labels, vocab, dim):
    assert_true(make(frames, labels, vocab, dim, dtype=torch.float64), method)


@pytest.mark.parametrize("blank", [0, 4, 10, -1, -11, -4])
def test_blank_anywhere(method, blank):
    assert_true(make((6, 4), (3, 2), vocab=11, blank=blank, dtype=torch.float64), method)


@pytest.mark.parametrize("pad", [(3, 0, 0), (0, 2, 0), (0, 0, 4), (2, 3, 1), (1, 0, 5)], ids=str)
def test_wider_than_needed(method, pad):
    """max(lengths) < T, more rows of predictor_out than U + 1, targets wider than any target."""
    problem = make((6, 4, 1), (3, 0, 2), pad=pad, dtype=torch.float64)
    assert_true(problem, method)
    _, gradients = ours(problem, method=method, reduction="none", upstream=upstream(problem))
    _, narrow = ours(make((6, 4, 1), (3, 0, 2), dtype=torch.float64), method=method)
    assert gradients["encoder_out"].shape[1] == narrow["encoder_out"].shape[1] + pad[0]


@pytest.mark.parametrize("targets", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
def test_integer_types(method, targets, lengths):
    problem = make((6, 4, 1), (3, 0, 2), dtype=torch.float64)
    right = ours(problem, method=method)
    mixed = problem.replace(
        targets=problem.targets.to(targets),
        encoder_lengths=problem.encoder_lengths.to(lengths),
        target_lengths=problem.target_lengths.to(torch.int32),
    )
    value, gradients = ours(mixed, method=method)
    assert torch.equal(value, right[0])
    assert all(torch.equal(gradients[name], right[1][name]) for name in gradients)


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def every_second(x):
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def first_columns(x):
    return torch.nn.functional.pad(x, (0, 3), value=float("nan"))[..., : x.shape[-1]]


@pytest.mark.parametrize("strides", [transposed, every_second, first_columns])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_strides(method, strides, reduction):
    problem = make((6, 4, 1), (3, 0, 2), dtype=torch.float64)
    right = ours(problem, method=method, reduction=reduction)
    leaves = {name: getattr(problem, name).clone().requires_grad_() for name in FLOATS}
    inputs = {name: strides(leaf) for name, leaf in leaves.items()}
    assert not inputs["encoder_out"].is_contiguous() and not inputs["weight"].is_contiguous()
    integers = {"targets": problem.targets.t().contiguous().t(), "encoder_lengths": problem.encoder_lengths.repeat(2)[::1][:3]}
    integers["target_lengths"] = torch.stack((problem.target_lengths, problem.target_lengths), 1)[:, 0]
    loss = samplewise.transducer_loss(**inputs, **integers, method=method, reduction=reduction)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), right[0], rtol=1e-13, atol=0)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, right[1][name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_expanded(method, reduction):
    """One utterance seen three times through stride 0: the gradients of its one copy add up."""
    problem = make((6,), (3,), dtype=torch.float64)
    leaves = {name: getattr(problem, name).clone().requires_grad_() for name in FLOATS}
    inputs = {name: leaf.expand(3, -1, -1) if leaf.dim() == 3 else leaf for name, leaf in leaves.items()}
    inputs["bias"] = leaves["bias"].sum().expand(11)
    integers = {name: getattr(problem, name).expand(3, *getattr(problem, name).shape[1:]) for name in ("targets",)}
    integers |= {name: getattr(problem, name).expand(3) for name in ("encoder_lengths", "target_lengths")}
    loss = samplewise.transducer_loss(**inputs, **integers, method=method, reduction=reduction)
    assert loss.shape == ((3,) if reduction == "none" else ())
    loss.sum().backward()
    one = problem.replace(bias=problem.bias.sum().expand(11).clone())
    value, gradients = ours(one, method=method, reduction="sum")
    torch.testing.assert_close(loss.sum().detach(), 3 * value)
    for name in ("encoder_out", "predictor_out", "weight"):
        torch.testing.assert_close(leaves[name].grad, 3 * gradients[name])


def test_inputs_are_left_as_they_were(method):
    problem = make((6, 4, 1), (3, 0, 2), pad=(1, 1, 1))
    copies = {name: x.clone() for name, x in problem.inputs.items()}
    leaves = {name: getattr(problem, name).requires_grad_() for name in FLOATS}
    samplewise.transducer_loss(**problem.inputs, method=method, reduction="none").sum().backward()
    assert all(torch.equal(x, copies[name]) for name, x in problem.inputs.items())
    assert all(leaf.grad is not None for leaf in leaves.values())


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -3e38, 1e30])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_garbage_in_the_padding(method, reduction, activation, garbage):
    """Whatever lies beyond the lengths of encodings and targets has no part in losses and gradients; its own are exactly 0."""
    clean = make((6, 4, 2), (3, 0, 2), pad=(2, 1, 2))
    frame = torch.arange(8)[None] < clean.encoder_lengths[:, None]
    token = torch.arange(5)[None] <= clean.target_lengths[:, None]
    label = torch.arange(5)[None] < clean.target_lengths[:, None]
    dirty = clean.replace(
        encoder_out=clean.encoder_out.masked_fill(~frame[..., None], garbage),
        predictor_out=clean.predictor_out.masked_fill(~token[..., None], garbage),
        targets=clean.targets.masked_fill(~label, -(2**62)),
    )
    options = {"method": method, "reduction": reduction, "activation": activation}
    right, got = ours(clean, **options), ours(dirty, **options)
    assert torch.equal(got[0], right[0])
    for name in FLOATS:
        assert torch.equal(got[1][name], right[1][name]), name
    assert (got[1]["encoder_out"][~frame] == 0).all() and (got[1]["predictor_out"][~token] == 0).all()
    assert (got[1]["encoder_out"][frame] != 0).any(1).all() or activation == "relu"


def test_batch_mates_do_not_matter(method):
    """An utterance alone has the loss and the gradients that it has in a batch."""
    problem = make((6, 4, 9, 1), (3, 0, 2, 2), dtype=torch.float64)
    value, gradients = ours(problem, method=method, reduction="none")
    for b, (t, u) in enumerate(zip(problem.encoder_lengths.tolist(), problem.target_lengths.tolist(), strict=True)):
        alone = problem.replace(
            encoder_out=problem.encoder_out[b : b + 1, :t],
            predictor_out=problem.predictor_out[b : b + 1, : u + 1],
            targets=problem.targets[b : b + 1, :u],
            encoder_lengths=problem.encoder_lengths[b : b + 1],
            target_lengths=problem.target_lengths[b : b + 1],
        )
        one, its = ours(alone, method=method, reduction="none")
        torch.testing.assert_close(one[0], value[b], rtol=1e-13, atol=0)
        torch.testing.assert_close(its["encoder_out"][0], gradients["encoder_out"][b, :t], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(its["predictor_out"][0], gradients["predictor_out"][b, : u + 1], rtol=1e-11, atol=1e-13)


def test_empty_target_costs_its_blanks(method):
    problem = make((5,), (0,), dtype=torch.float64)
    log_probs = (torch.tanh(problem.encoder_out[0] + problem.predictor_out[0]) @ problem.weight.T + problem.bias).log_softmax(1)
    loss = samplewise.transducer_loss(**problem.inputs, method=method)
    assert loss.item() == pytest.approx(-log_probs[:, 0].sum().item(), rel=1e-13)


def test_one_class_costs_nothing(method):
    value, gradients = ours(make((4, 3), (0, 0), vocab=1, dim=3), method=method, reduction="none")
    assert torch.equal(value.abs(), torch.zeros(2))
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients.values())


def test_the_same_twice(method):
    """The same call gives the same bits."""
    problem = make((30, 20, 7), (9, 4, 2), vocab=33, dim=8)
    first, second = (run(samplewise.transducer_loss, problem, method=method, reduction="none") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in FLOATS)
