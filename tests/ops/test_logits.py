"""`rnnt_loss`: the loss of logits that exist, with torchaudio's contract."""

import copy
import inspect

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.ops.logits import rnnt, rnnt_gradient
from samplewise.reference import reference_loss_from_logits
from tests.problems import FLOOR, assert_close, error
from tests.problems import upstream as random_upstream

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("none", "sum", "mean", "mean_volume", "mean_target")
NAN, INF = float("nan"), float("inf")


def make(
    frames=(7, 4, 1, 5), labels=(3, 0, 2, 6), vocab=11, *, blank=-1, dtype=torch.float32, scale=1.5, pad=(0, 0, 0), seed=0
):
    """Logits (B, T, U+1, V), targets and both lengths."""
    g = torch.Generator().manual_seed(seed)
    T, U = max(frames) + pad[0], max(labels)
    logits = (torch.randn(len(frames), T, U + 1 + pad[1], vocab, generator=g) * scale).to(dtype)
    ids = torch.tensor([v for v in range(vocab) if v != blank % vocab] or [0])
    targets = ids[torch.randint(len(ids), (len(frames), U + pad[2]), generator=g)]
    return logits, targets, torch.tensor(frames), torch.tensor(labels)


def run(loss, logits, *integers, upstream=None, **options):
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, *integers, **options)
    value.backward(torch.ones_like(value) if upstream is None else upstream.to(value))
    return value.detach(), logits.grad


def ours(problem, **options):
    return run(samplewise.rnnt_loss, *problem, **options)


def truth(problem, blank=-1, dtype=torch.float64, **options):
    wide = problem[0].to(dtype if dtype == torch.float64 else problem[0].dtype)
    return run(reference_loss_from_logits, wide, *problem[1:], blank=blank, dtype=dtype, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("fused", [True, False])
def test_against_the_truth(fused, reduction, dtype):
    problem = make(dtype=dtype)
    if not fused:
        problem = (problem[0].float().log_softmax(3).to(dtype), *problem[1:])
    options = {"reduction": reduction, "fused_log_softmax": fused}
    options["upstream"] = torch.linspace(-1, 2, 4).double() + 0.1 if reduction == "none" else torch.tensor(0.7).double()
    value, gradient = ours(problem, **options)
    right, right_gradient = truth(problem, **options)
    usual, usual_gradient = truth(problem, dtype=torch.promote_types(dtype, torch.float32), **options)
    floor = FLOOR[dtype] * torch.finfo(dtype).eps
    assert value.dtype == torch.promote_types(dtype, torch.float32) and gradient.dtype == dtype
    assert_close("loss", value, right, 2 * error(usual, right) + min(floor, 1e-6))
    assert_close("logits", gradient, right_gradient, 3 * error(usual_gradient, right_gradient) + floor)


def test_signature_is_that_of_torchaudio():
    parameters = inspect.signature(samplewise.rnnt_loss).parameters
    names = ("logits", "targets", "logit_lengths", "target_lengths", "blank", "clamp", "reduction", "fused_log_softmax")
    assert tuple(parameters)[: len(names)] == names
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in list(parameters.values())[len(names) :])
    assert [parameters[name].default for name in names[4:]] == [-1, -1, "mean", True]


@pytest.mark.parametrize("blank", [0, 5, 10, -1, -11])
def test_blank(blank):
    problem = make(blank=blank)
    value, gradient = ours(problem, blank=blank, reduction="none")
    right, right_gradient = truth(problem, blank=blank, reduction="none")
    assert error(value, right) < 1e-6 and error(gradient, right_gradient) < 1e-5


@pytest.mark.parametrize("pad", [(0, 0, 0), (2, 0, 3), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("garbage", [NAN, INF, 1e38])
def test_padding_has_no_part(pad, integers, garbage):
    problem = make(pad=pad)
    logits, targets, frames, labels = problem
    t, u = torch.arange(logits.shape[1]), torch.arange(logits.shape[2])
    inside = (t[None, :, None] < frames[:, None, None]) & (u[None, None] <= labels[:, None, None])
    beyond = torch.arange(targets.shape[1])[None] >= labels[:, None]
    dirty = logits.masked_fill(~inside[..., None], garbage), targets.masked_fill(beyond, -9), frames, labels
    dirty = (dirty[0], *(x.to(integers) for x in dirty[1:]))
    for reduction in ("none", "sum"):
        value, gradient = ours(dirty, reduction=reduction)
        right, right_gradient = ours(problem, reduction=reduction)
        assert torch.equal(value, right) and torch.equal(gradient, right_gradient)
        assert (gradient[~inside] == 0).all() and (gradient[inside] != 0).any(1).all()


@pytest.mark.parametrize("clamp", [1e-3, 0.05, 0.3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("fused", [True, False])
def test_clamp(fused, reduction, clamp):
    """It bounds each utterance's gradient before the reduction's weight and before the upstream gradient."""
    problem = make(dtype=torch.float64)
    if not fused:
        problem = (problem[0].log_softmax(3), *problem[1:])
    _, plain = ours(problem, reduction="none", fused_log_softmax=fused)
    up = torch.tensor([2.0, -0.5, 1.0, 3.0] if reduction == "none" else [-3.0] * 4, dtype=torch.float64)
    _, got = ours(
        problem, reduction=reduction, clamp=clamp, fused_log_softmax=fused, upstream=up if reduction == "none" else up[0]
    )
    lengths = problem[3].double()
    weights = {
        "none": up, "sum": up, "mean": up / 4, "mean_volume": up / lengths.sum(), "mean_target": up / 4 / lengths.clamp(min=1),
    }[reduction]  # fmt: skip
    torch.testing.assert_close(got, plain.clamp(-clamp, clamp) * weights[:, None, None, None], rtol=1e-12, atol=1e-14)
    assert (plain.abs() > clamp).any()


@pytest.mark.parametrize("clamp", [0, 0.0, -1, -0.5])
def test_no_clamp(clamp):
    problem = make()
    assert torch.equal(ours(problem, clamp=clamp)[1], ours(problem)[1])


def test_log_probabilities_get_gradients_at_blank_and_label_alone():
    problem = make(vocab=9)
    logits, targets, frames, labels = problem
    _, gradient = ours((logits.log_softmax(3), targets, frames, labels), fused_log_softmax=False, reduction="sum")
    allowed = torch.zeros_like(gradient, dtype=torch.bool)
    allowed[..., -1] = True
    for b in range(4):
        for u in range(int(labels[b])):
            allowed[b, :, u, targets[b, u]] = True
    assert (gradient[~allowed] == 0).all() and (gradient[allowed] != 0).any()
    assert (gradient <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_normalised_logits_have_the_same_loss(dtype):
    problem = make(dtype=dtype)
    normalised = (problem[0].log_softmax(3), *problem[1:])
    one, two = ours(problem, reduction="none")[0], ours(normalised, reduction="none")[0]
    torch.testing.assert_close(one, two, rtol=10 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("shift", [1e5, -1e5])
def test_a_constant_on_a_row_changes_nothing(shift):
    problem = make(dtype=torch.float64)
    value, gradient = ours((problem[0] + shift, *problem[1:]))
    right, right_gradient = ours(problem)
    torch.testing.assert_close(value, right, rtol=1e-9, atol=0)
    torch.testing.assert_close(gradient, right_gradient, rtol=1e-8, atol=1e-9)


def test_label_strings_have_at_most_probability_one():
    """Losses of all strings of up to three labels under one predictor-free joint: probabilities, not just numbers."""
    frames, vocab = 3, 3
    row = torch.randn(1, frames, 1, vocab, dtype=torch.float64) + torch.tensor([2.0, 0.0, 0.0])
    total = 0.0
    for length in range(12):
        strings = (
            torch.cartesian_prod(*[torch.tensor([1, 2])] * length).view(-1, length) if length else torch.zeros(1, 0).long()
        )
        count = len(strings)
        logits = row.expand(count, frames, length + 1, vocab)
        lengths = torch.full((count,), frames), torch.full((count,), length)
        total += samplewise.rnnt_loss(logits, strings, *lengths, blank=0, reduction="none").neg().exp().sum().item()
    assert 0.95 < total <= 1.0 + 1e-12


@pytest.mark.parametrize("strides", ["expanded", "transposed", "sliced"])
def test_strides(strides):
    problem = make(dtype=torch.float64)
    logits = problem[0]
    leaf = logits.clone().requires_grad_()
    if strides == "expanded":
        leaf = logits[:, :, :, :1].clone().requires_grad_()
        view = leaf.expand_as(logits)
    elif strides == "transposed":
        view = leaf.transpose(0, 3).contiguous().transpose(0, 3)
    else:
        view = torch.cat((leaf, leaf), 3)[..., : logits.shape[3]]
    assert not view.is_contiguous()
    samplewise.rnnt_loss(view, *problem[1:]).backward()
    dense = (view.detach().contiguous(), *problem[1:])
    _, right = truth(dense)
    got = leaf.grad
    torch.testing.assert_close(got, right.sum(3, keepdim=True) if strides == "expanded" else right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("fused", [True, False])
def test_the_guilty_utterance_alone(value, fused):
    clean = make()
    if not fused:
        clean = (clean[0].log_softmax(3), *clean[1:])
    logits = clean[0].clone()
    logits[2, 0, 1, :] = value
    dirty = (logits, *clean[1:])
    value_, gradient = ours(dirty, reduction="none", fused_log_softmax=fused)
    right, right_gradient = ours(clean, reduction="none", fused_log_softmax=fused)
    others = torch.tensor([0, 1, 3])
    assert not torch.isfinite(value_[2])
    assert torch.equal(value_[others], right[others]) and torch.equal(gradient[others], right_gradient[others])
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"logits": torch.zeros(4, 7, 7)}, ["logits", "(B, T, U+1, V)", "(4, 7, 7)"]),
        ({"logits": torch.zeros(4, 7, 7, 11, dtype=torch.int64)}, ["logits", "int64"]),
        ({"logits": torch.zeros(4, 7, 6, 11)}, ["target_lengths[3] is 6", "7 rows of logits", "6"]),
        ({"logits": torch.zeros(4, 7, 7, 0)}, ["logits"]),
        ({"targets": torch.zeros(3, 6, dtype=torch.int64)}, ["targets", "3", "4"]),
        ({"targets": torch.full((4, 6), 10)}, ["targets[0, 0] is 10", "blank"]),
        ({"targets": torch.full((4, 6), 11)}, ["targets[0, 0] is 11", "11 classes"]),
        ({"targets": torch.full((4, 6), -1)}, ["targets[0, 0] is -1"]),
        ({"logit_lengths": torch.tensor([7, 4, 0, 5])}, ["logit_lengths[2] is 0"]),
        ({"logit_lengths": torch.tensor([7, 4, 8, 5])}, ["logit_lengths[2] is 8", "7 frames"]),
        ({"logit_lengths": torch.tensor([7.0, 4, 1, 5])}, ["logit_lengths", "float32"]),
        ({"target_lengths": torch.tensor([3, 0, 7, 6])}, ["target_lengths[2] is 7", "6 labels"]),
        ({"blank": 11}, ["blank is 11", "11 classes"]),
        ({"reduction": "average"}, ["reduction", "average"]),
    ],
    ids=str,
)
def test_bad_inputs(changes, words):
    given = dict(zip(("logits", "targets", "logit_lengths", "target_lengths"), make(), strict=True))
    with pytest.raises(TransducerError) as caught:
        samplewise.rnnt_loss(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clamp", [-1.0, 0.1])
def test_opcheck(fused, clamp):
    logits, *integers = make((4, 3), (2, 1), vocab=5, dtype=torch.float64)
    logits = logits.log_softmax(3).requires_grad_()
    torch.library.opcheck(rnnt, (logits, *integers, 4, clamp, fused, 0.3, "regular", True, "keep"))
    _, *state = rnnt(logits.detach(), *integers, 4, clamp, fused, 0.3, "regular", True, "keep")
    arguments = (logits.detach(), *integers, *state, torch.ones(2, dtype=torch.float64), 4, clamp, fused, "regular")
    torch.library.opcheck(rnnt_gradient, arguments)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_compile(reduction):
    torch._dynamo.reset()
    problem = make()

    def loss(logits, *integers):
        return samplewise.rnnt_loss(logits * 2, *integers, reduction=reduction)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for changed in (problem, make((3, 9), (2, 1))):
        got, right = run(compiled, *changed), run(loss, *changed)
        torch.testing.assert_close(got, right)


def test_logits_are_left_as_they_were():
    problem = make()
    kept = copy.deepcopy(problem)
    ours(problem)
    assert all(torch.equal(a, b) for a, b in zip(problem, kept, strict=True))


def test_without_gradient():
    problem = make()
    assert not samplewise.rnnt_loss(*problem).requires_grad
    with torch.no_grad():
        assert not samplewise.rnnt_loss(problem[0].requires_grad_(), *problem[1:]).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scaled_losses_in_half_precision(dtype):
    """Gradients are rounded after the upstream gradient, so loss scaling keeps the small ones."""
    problem = make((20,), (6,), vocab=400, dtype=dtype)
    for factor in (1.0, 2.0**14):
        _, gradient = ours(problem, reduction="sum", upstream=torch.tensor(factor))
        _, right = truth(problem, reduction="sum", upstream=torch.tensor(factor))
        assert_close("logits", gradient, right, torch.finfo(dtype).eps)
    small = (right.abs() > 2.0**-20) & (right.abs() / 2.0**14 < 2.0**-25)
    assert small.any() and (gradient[small] != 0).all()


def test_more_rows_than_a_kernel_is_given(monkeypatch):
    problem = make(dtype=torch.float64)
    right = ours(problem, reduction="none", upstream=random_upstream_of(problem))
    monkeypatch.setattr("samplewise.ops.logits.ROWS", 5)
    got = ours(problem, reduction="none", upstream=random_upstream_of(problem))
    assert torch.equal(got[0], right[0]) and torch.equal(got[1], right[1])


def random_upstream_of(problem):
    return torch.rand(len(problem[2]), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5


def test_agrees_with_transducer_loss():
    from tests.problems import make as make_encodings

    p = make_encodings((6, 4), (3, 2), dtype=torch.float64)
    logits = torch.tanh(p.encoder_out[:, :, None] + p.predictor_out[:, None]) @ p.weight.T + p.bias
    up = random_upstream(p)
    integers = (p.targets, p.encoder_lengths, p.target_lengths)
    one = samplewise.rnnt_loss(logits, *integers, blank=0, reduction="none")
    two = samplewise.transducer_loss(**p.inputs, reduction="none")
    torch.testing.assert_close((one * up).sum(), (two * up).sum(), rtol=1e-13, atol=0)
