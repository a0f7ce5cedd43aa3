"""The loss in the settings that a program may have: threads, default dtypes, deterministic algorithms, inference mode."""

import concurrent.futures
import itertools

import pytest
import torch

import samplewise
from tests.problems import FLOATS, error, make, ours, truth, upstream

METHODS = ("batched", "samplewise", "tiled", "guided")
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


@EVERY_METHOD
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_uninitialised_memory_is_never_read(method, reduction, dtype):
    """With deterministic algorithms PyTorch fills every new tensor with NaN: the numbers are the same."""
    problem = make((9, 4, 1), (3, 0, 2), vocab=40, pad=(2, 1, 1), dtype=dtype)
    options = {"method": method, "reduction": reduction, "upstream": upstream(problem) if reduction == "none" else None}
    value, gradients = ours(problem, **options)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()
        poisoned, its_gradients = ours(problem, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(poisoned, value)
    assert all(torch.equal(its_gradients[name], gradients[name]) for name in FLOATS)


@EVERY_METHOD
def test_default_dtype(method):
    problem = make((9, 4), (3, 2))
    right = ours(problem, method=method)
    torch.set_default_dtype(torch.float64)
    try:
        value, gradients = ours(problem, method=method)
    finally:
        torch.set_default_dtype(torch.float32)
    assert value.dtype == torch.float32 and torch.equal(value, right[0])
    assert all(torch.equal(gradients[name], right[1][name]) for name in FLOATS)


@EVERY_METHOD
def test_inference_mode(method):
    problem = make((9, 4), (3, 2))
    right = samplewise.transducer_loss(**problem.inputs, method=method)
    with torch.inference_mode():
        inputs = {name: x.clone() for name, x in problem.inputs.items()}
        assert torch.equal(samplewise.transducer_loss(**inputs, method=method), right)
        assert torch.isfinite(samplewise.rnnt_loss(torch.randn(2, 9, 4, 11), *list(inputs.values())[4:], blank=0))


@EVERY_METHOD
def test_anomaly_detection(method):
    problem = make((9, 4), (3, 2), dtype=torch.float64)
    with torch.autograd.set_detect_anomaly(True):
        value, gradients = ours(problem, method=method)
    right, right_gradients = truth(problem)
    assert error(value, right) < 1e-12
    assert all(error(gradients[name], right_gradients[name]) < 1e-11 for name in FLOATS)


@EVERY_METHOD
def test_several_python_threads(method):
    """Losses and backwards of many threads at once do not disturb each other."""
    many = [make((9, 4, 12), (3, 0, 5), vocab=20, seed=seed, dtype=torch.float64) for seed in range(12)]
    alone = [ours(problem, method=method, reduction="none") for problem in many]
    torch.set_num_threads(2)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda problem: ours(problem, method=method, reduction="none"), many))
    for got, right in zip(together, alone, strict=True):
        assert error(got[0], right[0]) < 1e-13
        assert all(error(got[1][name], right[1][name]) < 1e-12 for name in FLOATS)


@EVERY_METHOD
def test_flushing_denormals(method):
    """Programs that flush denormal numbers get the same loss."""
    problem = make((9, 4), (3, 2), scale=30.0)
    right = ours(problem, method=method)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not")
    try:
        value, gradients = ours(problem, method=method)
    finally:
        torch.set_flush_denormal(False)
    torch.testing.assert_close(value, right[0])
    torch.testing.assert_close(gradients, right[1])


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_training_moves_down(reduction):
    """A few steps of gradient descent on every input make the loss smaller."""
    problem = make((9, 4, 6), (3, 0, 2), dtype=torch.float64)
    leaves = [getattr(problem, name).requires_grad_() for name in FLOATS]
    optimizer = torch.optim.SGD(leaves, lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = samplewise.transducer_loss(**problem.inputs, reduction=reduction).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0] and all(after < before for before, after in itertools.pairwise(losses))


class Joint(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 11).double()

    def forward(self, encoder_out, predictor_out):
        return self.head(torch.tanh(encoder_out + predictor_out))


def everything(problem, joint):
    """A number from each public function, gradients included."""
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)
    found = []
    for reduction in ("none", "mean"):
        value, gradients = ours(problem, reduction=reduction)
        found += [value, *gradients.values()]
        joint.zero_grad()
        value = samplewise.joint_loss(joint, problem.encoder_out, problem.predictor_out, *integers, reduction=reduction)
        value.sum().backward()
        found += [value.detach(), joint.head.weight.grad.clone()]
    logits = torch.tanh(problem.encoder_out[:, :, None] + problem.predictor_out[:, None]) @ problem.weight.T
    found.append(samplewise.rnnt_loss(logits, *integers, blank=0, reduction="none"))
    ctc = logits[:, :, 0].log_softmax(2)
    for scope in ("batch", "utterance"):
        for options in ({"ctc_log_probs": ctc, "ctc_lengths": integers[1]}, {"weights": problem.bias.abs()}, {}):
            options["generator"] = torch.Generator("cpu").manual_seed(0)
            sampled = samplewise.sample_vocabulary(integers[0], integers[2], 11, 7, scope=scope, correction="logq", **options)
            found += [sampled.classes, sampled.log_weight, sampled.restore(sampled.remap(integers[0]))]
            found.append(samplewise.transducer_loss(**problem.inputs, vocabulary=sampled))
    return found


def test_default_device():
    """Where new tensors go by default does not matter to tensors that exist; "meta" stands for an accelerator here."""
    problem, joint = make((9, 4), (3, 2), dtype=torch.float64), Joint()
    right = everything(problem, joint)
    torch.set_default_device("meta")
    try:
        found = everything(problem, joint)
    finally:
        torch.set_default_device(None)
    assert all(x.device.type == "cpu" and torch.equal(x, y) for x, y in zip(found, right, strict=True))
