"""Two processes under DistributedDataParallel: the gradients of both losses are averaged as those of any layer."""

import contextlib
import os

import pytest
import torch
from torch import nn

import samplewise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo"),
]
INTEGERS = (torch.tensor([[5, 8, 1, 7], [3, 3, 2, 4]]), torch.tensor([12, 9]), torch.tensor([4, 2]))


class Network(nn.Module):
    """Layers around either loss; the joint's dropout is off, so that one process can say what two must give."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.encoder, self.predictor = nn.Linear(4, 6), nn.Embedding(9, 6)
        self.joint = nn.Sequential(nn.Tanh(), nn.Linear(6, 9))
        self.joiner = samplewise.Joiner(6, 6, 5, 9)

    def forward(self, x, reduction):
        targets = INTEGERS[0]
        encodings = self.encoder(x), self.predictor(nn.functional.pad(targets, (1, 0)))
        if self.kind == "joiner":
            return self.joiner(*encodings, *INTEGERS, reduction=reduction).sum() + sum(
                p.sum() * 0 for p in self.joint.parameters()
            )
        if self.kind == "joint_loss":
            loss = samplewise.joint_loss(Sum(self.joint), *encodings, *INTEGERS, reduction=reduction)
        else:
            head = self.joint[1]
            loss = samplewise.transducer_loss(*encodings, head.weight, head.bias, *INTEGERS, reduction=reduction)
        return loss.sum() + sum(p.sum() * 0 for p in self.joiner.parameters())


class Sum(nn.Module):
    def __init__(self, rest):
        super().__init__()
        self.rest = rest

    def forward(self, encoder_out, predictor_out):
        return self.rest(encoder_out + predictor_out)


def inputs(rank):
    return torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(rank))


def gradients_of(network, rank, reduction):
    network.zero_grad()
    network(inputs(rank), reduction).backward()
    return {name.removeprefix("module."): p.grad.clone() for name, p in network.named_parameters()}


@contextlib.contextmanager
def process_group(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    yield
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def process(rank, folder, cases):
    with process_group(rank, folder):
        found = {}
        for kind, reduction in cases:
            network = nn.parallel.DistributedDataParallel(Network(kind))
            found[kind, reduction] = [gradients_of(network, rank, reduction) for _ in range(2)]
        torch.save(found, f"{folder}/{rank}.pt")


CASES = [(kind, reduction) for kind in ("joint_loss", "transducer_loss", "joiner") for reduction in ("none", "mean")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The gradients of both processes for every case."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(process, args=(str(folder), CASES), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("kind, reduction", CASES)
def test_gradients_are_averaged(kind, reduction, found):
    alone = [gradients_of(Network(kind), rank, reduction) for rank in range(2)]
    for per_rank in found:
        for step in per_rank[kind, reduction]:  # the second step finds nothing left over from the first
            for name, gradient in step.items():
                torch.testing.assert_close(gradient, (alone[0][name] + alone[1][name]) / 2, rtol=1e-5, atol=1e-6)
    assert any((alone[0][name] - alone[1][name]).abs().max() > 1e-3 for name in alone[0]), "both processes had the same batch"
