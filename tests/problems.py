"""Random problems for the losses, one way to run any loss on them, and the yardstick for errors."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import samplewise
from samplewise.reference import reference_loss

FLOATS = ("encoder_out", "predictor_out", "weight", "bias")
INTEGERS = ("targets", "encoder_lengths", "target_lengths")


@dataclass(frozen=True, repr=False)
class Problem:
    """The inputs of `transducer_loss`."""

    encoder_out: Tensor  # (B, T, D)
    predictor_out: Tensor  # (B, U+1, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)
    targets: Tensor  # (B, U)
    encoder_lengths: Tensor  # (B,)
    target_lengths: Tensor  # (B,)
    blank: int = 0

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in self.inputs.items() if x is not None)
        lengths = f"frames {self.encoder_lengths.tolist()}, labels {self.target_lengths.tolist()}"
        return f"Problem({shapes}; {lengths}; blank {self.blank})"

    @property
    def inputs(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in FLOATS + INTEGERS}

    @property
    def batch(self) -> int:
        return len(self.encoder_lengths)

    def to(self, dtype: torch.dtype) -> Problem:
        return replace(self, **{name: x.to(dtype) for name in FLOATS if (x := getattr(self, name)) is not None})

    def replace(self, **changes) -> Problem:
        return replace(self, **changes)


class Joint(nn.Module):
    """head(tanh(encoder_out + predictor_out)): what `transducer_loss` has for a joint, as a module."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        return self.head(torch.tanh(encoder_out + predictor_out))


def make(
    frames=(7, 4, 1), labels=(3, 0, 2), vocab=11, dim=6, *, blank=0, dtype=torch.float32, seed=0, scale=1.0, bias=True,
    pad=(0, 0, 0), integers=torch.int64,
) -> Problem:  # fmt: skip
    """A random problem. `pad`: frames, predictor rows and target columns beyond what the longest utterance needs."""
    g = torch.Generator().manual_seed(seed)
    B, T, U = len(frames), max(frames) + pad[0], max(labels)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    ids = torch.tensor([v for v in range(vocab) if v != blank % vocab] or [0])
    targets = ids[torch.randint(len(ids), (B, U + pad[2]), generator=g)]
    problem = Problem(
        normal(B, T, dim), normal(B, U + 1 + pad[1], dim), normal(vocab, dim) * scale / dim**0.5 * 2,
        normal(vocab) * scale / 2 if bias else None, targets.to(integers), torch.tensor(frames, dtype=integers),
        torch.tensor(labels, dtype=integers), blank,
    )  # fmt: skip
    return problem.to(dtype)


def planted(frames, labels, vocab, dim, *, sharpness=6.0, seed=0, dtype=torch.float32) -> Problem:
    """A problem whose posterior sits on one alignment, as after training: frames and labels agree on what comes next."""
    problem = make(frames, labels, vocab, dim, seed=seed, dtype=torch.float64)
    g = torch.Generator().manual_seed(seed + 1)
    weight = torch.nn.functional.normalize(torch.randn(vocab, dim, generator=g, dtype=torch.float64), dim=1)
    encoder_out, predictor_out = problem.encoder_out * 0.05, problem.predictor_out * 0.05
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        at = torch.randperm(t, generator=g)[:u].sort().values
        encoder_out[b, :t] += weight[problem.blank]
        encoder_out[b, at] += 1.5 * (weight[problem.targets[b, : len(at)]] - weight[problem.blank])
    changes = {"encoder_out": encoder_out, "predictor_out": predictor_out, "weight": weight * sharpness}
    return problem.replace(**changes).to(dtype)


def run(loss, problem: Problem, *, wanted=FLOATS, upstream=None, **options) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and its gradients with `upstream` by the inputs named in `wanted` (those that exist)."""
    inputs = {name: x if x is None else x.detach().clone() for name, x in problem.inputs.items()}
    leaves = {name: inputs[name].requires_grad_() for name in wanted if inputs[name] is not None}
    value = loss(**inputs, blank=problem.blank, **options)
    if not leaves:
        return value, {}
    value.backward(upstream.to(value) if upstream is not None else torch.ones_like(value))
    return value.detach(), {name: leaf.grad for name, leaf in leaves.items()}


def ours(problem: Problem, **options):
    return run(samplewise.transducer_loss, problem, **options)


def truth(problem: Problem, **options):
    return run(reference_loss, problem.to(torch.float64), **options)


def plain(problem: Problem, **options):
    """What ordinary PyTorch computes in the problem's dtype."""
    return run(reference_loss, problem, dtype=problem.weight.dtype, **options)


def upstream(problem: Problem, seed=7) -> Tensor:
    """A gradient for every utterance's loss, none like another."""
    return torch.rand(problem.batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 + 0.25


def error(value: Tensor, right: Tensor) -> float:
    """Largest absolute difference over the largest absolute right value."""
    assert value.shape == right.shape, f"shape {tuple(value.shape)}, expected {tuple(right.shape)}"
    if right.numel() == 0:
        return 0.0
    difference = (value.detach().double() - right.detach().double()).abs().max().item()
    scale = right.detach().double().abs().max().item()
    return difference / scale if scale > 0 else difference


FLOOR = {torch.float64: 1000, torch.float32: 8, torch.bfloat16: 0.5, torch.float16: 0.5}  # in units of the dtype's epsilon


@functools.lru_cache(maxsize=256)
def expectations(maker, arguments: tuple, options: tuple):
    """Truth and ordinary PyTorch for `maker(**arguments)` under `options`, made once for all methods."""
    problem = maker(**dict(arguments))
    settings = dict(options)
    if settings.get("reduction") == "none":
        settings["upstream"] = upstream(problem)
    return problem, settings, truth(problem, **settings), plain(problem, **settings)


def assert_as_good_as_plain(maker, arguments: dict, options: dict, *, slack: float = 0.0, **ours_alone) -> None:
    """Against float64: values within 2 times, gradients within 3 times the error of ordinary PyTorch in the same dtype.

    FLOOR covers the cases in which ordinary PyTorch happens to be almost exact (float64: the truth itself has rounding errors
    of about 1e-14). `ours_alone` are options that no other implementation has. `slack` is added to the bound of gradients.
    """
    problem, settings, right, usual = expectations(maker, tuple(arguments.items()), tuple(options.items()))
    got = ours(problem, **settings, **ours_alone)
    floor = FLOOR[problem.weight.dtype] * torch.finfo(problem.weight.dtype).eps
    assert got[1].keys() == right[1].keys()
    assert_close("loss", got[0], right[0], 2 * error(usual[0], right[0]) + floor)
    for name, gradient in got[1].items():
        assert gradient.dtype == problem.inputs[name].dtype
        assert_close(name, gradient, right[1][name], 3 * error(usual[1][name], right[1][name]) + floor + slack)


def assert_close(name: str, got: Tensor, right: Tensor, bound: float) -> None:
    """`got` is finite, and its error, relative to the largest right number, at most `bound`."""
    assert torch.isfinite(got).all(), f"{name} is not finite"
    assert error(got, right) <= bound, f"{name}: the error {error(got, right):.3g} exceeds {bound:.3g}"
