"""Two processes, parameters sharded (FSDP2) or the joint wrapped alone: right gradients, or a refusal with the reason."""

import pytest
import torch
from torch import nn

import samplewise
from tests.ops.test_distributed import INTEGERS, Network, Sum, gradients_of, inputs, process_group

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo"),
]
KINDS, REDUCTIONS = ("joint_loss", "transducer_loss", "joiner"), ("none", "mean")
WHOLE = [(kind, reduction) for kind in KINDS for reduction in REDUCTIONS]


def sharded(kind, parts):
    """The network of a kind with those of its parts sharded on their own, and then itself."""
    from torch.distributed.fsdp import fully_shard

    network = Network(kind)
    for part in parts:
        fully_shard(network.get_submodule(part))
    return fully_shard(network)


def whole(gradients):
    return {name: x.full_tensor() if hasattr(x, "full_tensor") else x for name, x in gradients.items()}


def refusal(function, *inputs, **options):
    try:
        function(*inputs, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def wrapped_alone(rank, wrap):
    """`joint_loss` of a joint that is the only thing wrapped: gradients of its parameters, or the error."""
    joint = wrap(Sum(Network("joint_loss").joint))
    network = Network("joint_loss")
    encodings = network.encoder(inputs(rank)), network.predictor(nn.functional.pad(INTEGERS[0], (1, 0)))
    found = []
    for reduction in REDUCTIONS:
        try:
            samplewise.joint_loss(joint, *encodings, *INTEGERS, reduction=reduction).sum().backward(retain_graph=True)
        except samplewise.TransducerError as error:
            found.append(str(error))
            continue
        found.append({name.removeprefix("module.rest."): x.grad.clone() for name, x in joint.named_parameters()})
        joint.zero_grad()
    return found


def process(rank, folder):
    from torch.distributed.fsdp import fully_shard

    with process_group(rank, folder):
        found = {}
        for kind, reduction in WHOLE:
            for parts in ((), ("encoder",)):
                network = sharded(kind, parts)
                found[kind, reduction, parts] = [whole(gradients_of(network, rank, reduction)) for _ in range(2)]
        joint = ("joint_loss", ("joint",)), ("transducer_loss", ("joint.1",))
        for kind, parts in joint:
            found[kind, parts] = refusal(gradients_of, sharded(kind, parts), rank, "mean")
        found["DDP"] = wrapped_alone(rank, nn.parallel.DistributedDataParallel)
        found["FSDP"] = wrapped_alone(rank, fully_shard)
        found["FSDP inside"] = wrapped_alone(rank, lambda joint: (fully_shard(joint.rest[1]), joint)[1])
        torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    torch.multiprocessing.spawn(process, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def alone():
    """The mean of both ranks' gradients, made by one process."""
    made = {}
    for kind, reduction in WHOLE:
        both = [gradients_of(Network(kind), rank, reduction) for rank in range(2)]
        made[kind, reduction] = {name: (both[0][name] + both[1][name]) / 2 for name in both[0]}
    return made


@pytest.mark.parametrize("parts", [(), ("encoder",)], ids=["whole", "encoder"])
@pytest.mark.parametrize("kind, reduction", WHOLE)
def test_a_sharded_model(kind, reduction, parts, found, alone):
    """The loss is called in the forward of what is sharded: gradients are averaged, step after step."""
    for per_rank in found:
        for step in per_rank[kind, reduction, parts]:
            for name, right in alone[kind, reduction].items():
                torch.testing.assert_close(step[name], right, rtol=1e-5, atol=1e-6)


def test_a_joint_that_is_sharded_on_its_own(found):
    for per_rank in found:
        assert "TransducerError: joint" in per_rank["joint_loss", ("joint",)]
        assert "TransducerError: weight is a DTensor" in per_rank["transducer_loss", ("joint.1",)]
        for way in ("FSDP", "FSDP inside"):
            assert all("sharded by FSDP on its own" in error for error in per_rank[way])


def test_a_joint_that_is_replicated_on_its_own(found, alone):
    for per_rank in found:
        for reduction, gradients in zip(REDUCTIONS, per_rank["DDP"], strict=True):
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, alone["joint_loss", reduction][f"joint.{name}"], rtol=1e-5, atol=1e-6)
