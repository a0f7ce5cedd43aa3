"""`joint_loss`: any joint network, one utterance at a time, with the gradients that autograd gives on the whole."""

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.reference import reduce, reference_loss_from_logits
from tests.problems import error, make, truth, upstream

REDUCTIONS = ("none", "sum", "mean", "mean_volume", "mean_target")
INTEGERS = ("targets", "encoder_lengths", "target_lengths")


class Joint(nn.Module):
    """A product of projections, a gate, dropout, two layers: nothing that `transducer_loss` could do."""

    def __init__(self, dim=6, hidden=5, vocab=11, dropout=0.0):
        super().__init__()
        self.left, self.right = nn.Linear(dim, hidden), nn.Linear(dim, hidden, bias=False)
        self.gate = nn.Parameter(torch.ones(hidden))
        self.norm, self.dropout = nn.LayerNorm(hidden), nn.Dropout(dropout)
        self.output = nn.Linear(hidden, vocab)

    def forward(self, encoder_out, predictor_out):
        z = self.left(encoder_out) * torch.sigmoid(self.right(predictor_out)) * self.gate
        return self.output(self.dropout(self.norm(torch.tanh(z))))


def by_utterance(joint, encoder_out, predictor_out, targets, encoder_lengths, target_lengths, *, blank=0, reduction="mean"):
    """The same by autograd, the joint called on one utterance after the other as `joint_loss` does, the graph of all kept."""
    losses = []
    for b, (t, u) in enumerate(zip(encoder_lengths.tolist(), target_lengths.tolist(), strict=True)):
        logits = joint(encoder_out[b : b + 1, :t, None], predictor_out[b : b + 1, None, : u + 1])
        part = targets[b : b + 1], encoder_lengths[b : b + 1], target_lengths[b : b + 1]
        losses.append(reference_loss_from_logits(logits, *part, blank=blank, reduction="none"))
    return reduce(torch.cat(losses), target_lengths, reduction)


def run(loss, joint, problem, *, wanted=("encoder_out", "predictor_out"), up=None, seed=5, **options):
    """The loss, gradients by encodings and by the joint's parameters, from the same random numbers each time."""
    torch.manual_seed(seed)
    joint.zero_grad()
    encodings = [problem.inputs[name].detach().clone() for name in ("encoder_out", "predictor_out")]
    for name, x in zip(("encoder_out", "predictor_out"), encodings, strict=True):
        x.requires_grad_(name in wanted)
    value = loss(joint, *encodings, *(problem.inputs[name] for name in INTEGERS), blank=problem.blank, **options)
    value.backward(torch.ones_like(value) if up is None else up.to(value))
    found = dict(zip(("encoder_out", "predictor_out"), (x.grad for x in encodings), strict=True))
    found |= {name: parameter.grad for name, parameter in joint.named_parameters()}
    return value.detach(), {name: gradient for name, gradient in found.items() if gradient is not None}


def assert_same(got, right, tolerance=1e-11):
    assert error(got[0], right[0]) <= tolerance
    assert got[1].keys() == right[1].keys()
    for name in right[1]:
        assert error(got[1][name], right[1][name]) <= tolerance, name


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("blank", [0, 10, -2])
def test_against_autograd(reduction, blank):
    problem = make((6, 4, 1, 3), (3, 0, 2, 5), blank=blank, pad=(1, 2, 1), dtype=torch.float64)
    joint = Joint().double()
    options = {"reduction": reduction, "up": upstream(problem) if reduction == "none" else torch.tensor(-0.7)}
    assert_same(run(samplewise.joint_loss, joint, problem, **options), run(by_utterance, joint, problem, **options))


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("training", [True, False])
def test_dropout(reduction, training):
    """The gradient is that of the masks that the loss had, though "none" runs the joint again in its backward; and random
    numbers drawn afterwards are as if nothing had been run twice."""
    problem = make((6, 4, 3), (3, 0, 2), dtype=torch.float64)
    joint = Joint(dropout=0.5).double().train(training)
    options = {"reduction": reduction, "up": upstream(problem) if reduction == "none" else None}
    right = run(by_utterance, joint, problem, **options)
    after = torch.rand(3)
    got = run(samplewise.joint_loss, joint, problem, **options)
    assert torch.equal(torch.rand(3), after)
    assert_same(got, right)
    other = run(by_utterance, joint, problem, seed=6, **options)
    assert training == (error(other[0], right[0]) > 1e-3)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_random_numbers_between_loss_and_backward(reduction):
    """What is drawn after the loss does not change its backward, nor the other way round."""
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    joint = Joint(dropout=0.5).double()
    right = run(by_utterance, joint, problem, reduction=reduction)[1]["output.weight"]
    joint.zero_grad()
    torch.manual_seed(5)
    loss = samplewise.joint_loss(joint, **{n: x for n, x in problem.inputs.items() if n not in ("weight", "bias")},
                                 reduction=reduction)  # fmt: skip
    first = torch.rand(2)
    state = torch.get_rng_state()
    loss.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert error(joint.output.weight.grad, right) < 1e-11
    assert not torch.equal(first, torch.rand(2))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("wanted", [(), ("encoder_out",), ("predictor_out",)], ids=str)
def test_gradients_only_where_asked(wanted, reduction):
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    joint = Joint().double()
    for name in ("gate", "left.weight"):
        joint.get_parameter(name).requires_grad_(False)
    options = {"reduction": reduction, "wanted": wanted, "up": upstream(problem) if reduction == "none" else None}
    got = run(samplewise.joint_loss, joint, problem, **options)
    assert_same(got, run(by_utterance, joint, problem, **options))
    assert "gate" not in got[1] and set(wanted) <= got[1].keys()


def test_a_frozen_joint():
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    joint = Joint().double().requires_grad_(False)
    got = run(samplewise.joint_loss, joint, problem, wanted=("predictor_out",))
    assert_same(got, run(by_utterance, joint, problem, wanted=("predictor_out",)))
    assert set(got[1]) == {"predictor_out"}


def test_without_gradient():
    problem = make((6, 4), (3, 2))
    inputs = {name: x for name, x in problem.inputs.items() if name not in ("weight", "bias")}
    with torch.no_grad():
        loss = samplewise.joint_loss(Joint(), **inputs)
    assert not loss.requires_grad
    assert torch.isfinite(loss)


def test_a_parameter_that_is_not_used():
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    joint = Joint().double()
    joint.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    _, gradients = run(samplewise.joint_loss, joint, problem)
    assert "idle" not in gradients or (gradients["idle"] == 0).all()


def test_tied_parameters():
    """One tensor under two names, inside the joint and outside of it."""
    problem = make((6, 4), (3, 2), vocab=6, dtype=torch.float64)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, encoder_out, predictor_out):
            return self.second(torch.tanh(self.first(encoder_out) + predictor_out))

    joint = Tied().double()
    assert_same(run(samplewise.joint_loss, joint, problem), run(by_utterance, joint, problem))


class Counting(Joint):
    """Counts its calls and keeps a running mean, in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))

    def forward(self, encoder_out, predictor_out):
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * self.left(encoder_out).detach().mean((0, 1, 2))
        return super().forward(encoder_out, predictor_out) + self.mean.mean()


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_buffers(reduction):
    """Buffers take part and are updated once an utterance, however often the joint is run; gradients are those of the loss that
    was returned."""
    problem = make((6, 4, 3), (3, 0, 2), dtype=torch.float64)
    results = []
    for loss in (samplewise.joint_loss, by_utterance):
        torch.manual_seed(0)
        joint = Counting().double()
        results.append(run(loss, joint, problem, reduction=reduction))
        assert joint.calls == 3, f"{joint.calls} updates for 3 utterances"
        results[-1][1]["mean"] = joint.mean
    assert_same(*results)


def test_a_guilty_utterance():
    problem = make((6, 4, 3), (3, 1, 2), dtype=torch.float64)
    broken = problem.replace(encoder_out=problem.encoder_out.clone())
    broken.encoder_out[1, 0, 0] = float("nan")
    joint = Joint().double()
    for reduction in ("none", "sum"):
        without = torch.tensor([1.0, 0.0, 1.0])
        right = run(by_utterance, joint, problem, reduction="none", up=without)
        value, gradients = run(samplewise.joint_loss, joint, broken, reduction=reduction)
        assert not torch.isfinite(value).all()
        for name, gradient in gradients.items():
            assert error(gradient, right[1][name]) < 1e-11, name
        zeroed, _ = run(samplewise.joint_loss, joint, broken, reduction=reduction, on_nonfinite="zero")
        assert error(zeroed.sum(), right[0][[0, 2]].sum()) < 1e-12
        with pytest.raises(TransducerError, match=r"1 of 3 losses .*utterance 1: nan"):
            run(samplewise.joint_loss, joint, broken, reduction=reduction, on_nonfinite="raise")


@pytest.mark.parametrize("garbage", [float("nan"), 1e30])
def test_padding_has_no_part(garbage):
    clean = make((6, 4, 2), (3, 0, 2), pad=(2, 1, 0))
    frame = torch.arange(8)[None] < clean.encoder_lengths[:, None]
    token = torch.arange(5)[None] <= clean.target_lengths[:, None]
    dirty = clean.replace(
        encoder_out=clean.encoder_out.masked_fill(~frame[..., None], garbage),
        predictor_out=clean.predictor_out.masked_fill(~token[..., None], garbage),
    )
    joint = Joint()
    for reduction in ("none", "sum"):
        right, got = (run(samplewise.joint_loss, joint, p, reduction=reduction) for p in (clean, dirty))
        assert torch.equal(got[0], right[0])
        assert all(torch.equal(got[1][name], right[1][name]) for name in right[1])
        assert (got[1]["encoder_out"][~frame] == 0).all()


def test_is_transducer_loss_where_both_apply():
    problem = make((6, 4, 1), (3, 0, 2), dtype=torch.float64)

    class Additive(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(problem.weight), nn.Parameter(problem.bias)

        def forward(self, encoder_out, predictor_out):
            return nn.functional.linear(torch.tanh(encoder_out + predictor_out), self.weight, self.bias)

    up = upstream(problem)
    assert_same(run(samplewise.joint_loss, Additive(), problem, reduction="none", up=up),
                truth(problem, reduction="none", upstream=up))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autocast(reduction, dtype):
    """The joint runs under the caller's autocast, in the backward too; parameters keep float32 gradients."""
    problem = make((12, 9), (4, 2), vocab=11)
    joint = Joint()
    right = run(by_utterance, joint, problem, reduction=reduction)
    results = []
    for loss in (samplewise.joint_loss, by_utterance):

        def under_autocast(*inputs, loss=loss, **options):
            with torch.autocast("cpu", dtype):
                return loss(*inputs, **options)

        results.append(run(under_autocast, joint, problem, reduction=reduction))
    got, usual = results
    assert got[0].dtype == torch.float32
    for name, gradient in got[1].items():
        assert gradient.dtype == torch.float32
        bound = 3 * error(usual[1][name], right[1][name]) + torch.finfo(dtype).eps
        assert error(gradient, right[1][name]) <= bound, name


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"encoder_out": torch.zeros(6, 6)}, ["encoder_out", "(6, 6)"]),
        ({"predictor_out": torch.zeros(3, 4, 6)}, ["predictor_out", "3", "2"]),
        ({"targets": torch.full((2, 3), 11)}, ["targets[0, 0] is 11", "11 classes"]),
        ({"targets": torch.zeros(2, 3, dtype=torch.int64)}, ["targets[0, 0] is 0", "blank"]),
        ({"encoder_lengths": torch.tensor([6, 7])}, ["encoder_lengths[1] is 7", "6 frames"]),
        ({"encoder_lengths": torch.tensor([0, 4])}, ["encoder_lengths[0] is 0"]),
        ({"target_lengths": torch.tensor([3, 4])}, ["target_lengths[1] is 4"]),
        ({"joint": lambda e, p: torch.zeros(1, 6, 4)}, ["joint gave (1, 6, 4) for utterance 0", "(1, 6, 4, V)"]),
        ({"joint": lambda e, p: (e, p)}, ["joint gave tuple for utterance 0"]),
        ({"joint": lambda e, p: torch.zeros(1, 6, 3, 11)}, ["joint gave (1, 6, 3, 11)", "(1, 6, 4, V)"]),
        ({"blank": 11}, ["blank is 11", "11 classes"]),
        ({"reduction": "median"}, ["reduction", "median"]),
        ({"on_nonfinite": "ignore"}, ["on_nonfinite", "ignore"]),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_bad_inputs(changes, words):
    problem = make((6, 4), (3, 2))
    given = {name: x for name, x in problem.inputs.items() if name not in ("weight", "bias")}

    class Wrapped(nn.Module):
        def forward(self, encoder_out, predictor_out):
            return changes["joint"](encoder_out, predictor_out)

    given["joint"] = Wrapped() if "joint" in changes else Joint()
    with pytest.raises(TransducerError) as caught:
        samplewise.joint_loss(**{**given, **{name: x for name, x in changes.items() if name != "joint"}})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of what the compiler looks at
@pytest.mark.parametrize("whole", [True, False], ids=["the call", "the joint"])
def test_beside_the_compiler(whole):
    """A compiled step runs it as it is; a compiled joint is a joint."""
    problem = make((9, 4), (3, 2), vocab=11, dim=6)
    joint = Joint()

    def step(joint, *inputs):
        return 2 * samplewise.joint_loss(joint, *inputs)

    inputs = [problem.inputs[name] for name in ("encoder_out", "predictor_out", *INTEGERS)]
    right = step(joint, *inputs)
    right.backward()
    gradient = joint.output.weight.grad.clone()
    joint.zero_grad()
    torch._dynamo.reset()
    if whole:
        loss = torch.compile(step, backend="aot_eager")(joint, *inputs)
    else:
        loss = step(torch.compile(joint, backend="aot_eager"), *inputs)
    loss.backward()
    torch.testing.assert_close(loss, right)
    torch.testing.assert_close(joint.output.weight.grad, gradient)
