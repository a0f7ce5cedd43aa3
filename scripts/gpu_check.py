"""Check samplewise on a GPU, and measure it: one command, at most eight minutes, one JSON file.

It needs torch, triton and this repository's source; torchaudio is measured beside ours where it is installed. Every kernel is
compared with float64, the whole loss with a float64 reference, also past 2^31 elements, in a CUDA graph, on another stream and
on another device; then time and peak memory are taken against plain PyTorch. Nothing is installed and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

EXAMPLES = """\
examples:
  python scripts/gpu_check.py --out gpu.json
      Everything, on the first GPU.
  python scripts/gpu_check.py --only kernels losses
      Correctness alone, about a minute.
  python scripts/gpu_check.py --tiny
      The same on small shapes, in a minute; without a GPU in Triton's interpreter on the CPU, whose times mean nothing.
  compute-sanitizer python scripts/gpu_check.py --tiny --only kernels
      The same under NVIDIA's memory checker.

The exit code is 1 if a check fails. Running out of memory or of time is a result, not a failure.
"""
SECTIONS = ("kernels", "losses", "far", "graph", "places", "time")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the results, written anew after every one of them")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to run (default: all)")
    parser.add_argument("--device", help='which device (default: "cuda"; "cpu", with --tiny, where there is no GPU)')
    parser.add_argument("--tiny", action="store_true", help="small shapes; runs on a CPU too, in Triton's interpreter")
    parser.add_argument("--seconds", type=float, default=450.0, help="no new measurement is begun after that (default: 450)")
    return parser.parse_args()


import torch  # noqa: E402
from torch import Tensor  # noqa: E402

ARGUMENTS = parse()
TINY, DEVICE = ARGUMENTS.tiny, torch.device(ARGUMENTS.device or ("cuda" if torch.cuda.is_available() else "cpu"))
GPU = DEVICE.type == "cuda"
if not GPU:
    if not TINY:
        raise SystemExit("there is no GPU here; --tiny runs on a CPU, too")
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
START = time.monotonic()

from gpu_passes import Passes  # noqa: E402
from samplewise import rnnt_loss, strict_json, transducer_loss  # noqa: E402
from samplewise.bench.gpu import advice, cases, measure, step_of, tensors  # noqa: E402
from samplewise.checks import ACTIVATIONS  # noqa: E402
from samplewise.kernels import backend, eager  # noqa: E402
from samplewise.kernels import triton as kernels  # noqa: E402
from samplewise.kernels.layout import packed_table  # noqa: E402
from samplewise.reference import activation_of, log_likelihood, reference_loss, reference_loss_from_logits  # noqa: E402


class Report:
    """Every result as it comes: a line for people, and the JSON file anew."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.results = path, {"about": about(), "checks": [], "measurements": [], "advice": {}, "errors": []}

    def add(self, kind: str, line: str, **values: Any) -> None:
        if kind == "advice":
            self.results[kind] = values
        else:
            self.results[kind].append(values)
        print(f"{time.monotonic() - START:6.1f} s  {line}", flush=True)
        if self.path is not None:
            self.path.write_text(strict_json.text(self.results, indent=1) + "\n")

    def compare(self, name: str, got: Tensor, right: Tensor, bound: float) -> None:
        """The largest difference over the largest right number must be within the bound, and every number finite if it is."""
        got, right = got.detach().double().flatten(), right.detach().double().flatten()
        error = float("inf")
        if got.shape == right.shape:
            apart = torch.where(got == right, 0.0, got - right).abs()  # infinities of one sign are no difference
            error = apart.max().item() / (right.masked_fill(~right.isfinite(), 0.0).abs().max().item() or 1.0)
        line = f"{'ok    ' if error <= bound else 'FAILED'} {name}: {error:.1e} (bound {bound:.0e})"
        self.add("checks", line, name=name, error=error, bound=bound, passed=error <= bound)

    @property
    def failed(self) -> int:
        return len(self.results["errors"]) + sum(not check["passed"] for check in self.results["checks"])


def about() -> dict[str, Any]:
    import triton

    found: dict[str, Any] = {
        "torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version(), "tiny": TINY,
        "interpreter": os.environ.get("TRITON_INTERPRET") == "1", "device": str(DEVICE),
    }  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    found["commit"] = commit.stdout.strip() or None
    if GPU:
        properties = torch.cuda.get_device_properties(DEVICE)
        found |= {
            "gpu": properties.name, "capability": list(torch.cuda.get_device_capability(DEVICE)), "count":
            torch.cuda.device_count(), "memory": properties.total_memory, "cache": properties.L2_cache_size,
            "cuda": torch.version.cuda, "rocm": torch.version.hip, "tf32": torch.backends.cuda.matmul.allow_tf32,
        }  # fmt: skip
    return found


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def integers(high: int, count: int) -> Tensor:
    return torch.randint(high, (count,), device=DEVICE)


def check_kernels(report: Report) -> None:
    """Every kernel against float64."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for classes in (2, 33, 129) if TINY else (1, 2, 33, 129, 1025, 8193):
            check_emission(report, dtype, classes, rows=7 if TINY else 997)
        for dim in (33,) if TINY else (1, 33, 640):
            for activation in ACTIVATIONS:
                check_joint(report, dtype, activation, dim, rows=9 if TINY else 4097)
                check_bounds(report, dtype, activation, dim, *((9, 3) if TINY else (200, 70)))
    larger = [((5, 1, 300), (2, 3, 40)), ((40, 7), (127, 128)), ((9, 3), (2000, 0))]
    for frames, labels in [((5, 1), (2, 3))] if TINY else larger:
        check_lattice(report, frames, labels)
    for count in (3,) if TINY else (3, 700):
        table, nodes = packed_table([4 + b % 30 for b in range(count)], [b % 9 for b in range(count)], 34, 9, 8, DEVICE)
        found = []
        for module in (kernels, eager):
            out = torch.empty(3, nodes, dtype=torch.int64, device=DEVICE)
            module.locate(torch.arange(nodes, device=DEVICE), table, torch.arange(8 * count, device=DEVICE), *out)
            gamma = torch.rand(nodes, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)) ** 30
            losses = torch.zeros(count, dtype=torch.float64, device=DEVICE)
            found.append((out, module.select(gamma, torch.zeros_like(gamma), table, losses, 1e-3)))
        report.compare(f"locate, {count} utterances", found[0][0], found[1][0], 0.0)
        report.compare(f"select, {count} utterances", found[0][1], found[1][1], 0.0)


def check_emission(report: Report, dtype: torch.dtype, classes: int, rows: int) -> None:
    logits, bias = randn(rows, classes, dtype=dtype) * 3, randn(classes, dtype=real(dtype))
    node, label, blank = torch.randperm(2 * rows, device=DEVICE)[:rows], integers(classes + 1, rows) - 1, classes - 1
    label = label.where(label != blank, -1)
    wide = logits.double() + bias.double()
    outputs = [torch.full((2 * rows,), torch.nan, dtype=d, device=DEVICE) for d in (torch.float64, *[real(dtype)] * 2)]
    kernels.emission(logits, bias, node, label, blank, *outputs)
    log_probs, name = wide.log_softmax(1), f"{str(dtype)[6:]}, {classes} classes"
    by_label = log_probs.gather(1, label.clamp(min=0)[:, None])[:, 0].masked_fill(label < 0, -torch.inf)
    for what, got, right in zip(
        ("denominator", "blank", "label"), outputs, (wide.logsumexp(1), log_probs[:, blank], by_label), strict=True
    ):
        report.compare(f"emission, {name}, {what}", got[node], right, 16 * eps(real(dtype)))
    gammas = torch.rand(2, 2 * rows, dtype=real(dtype), device=DEVICE)
    gammas[1, node] = gammas[1, node].masked_fill(label < 0, 0.0)
    by_blank, by_label = gammas[:, node].double()
    right = (by_blank + by_label)[:, None] * log_probs.exp()
    right[:, blank] -= by_blank
    right.scatter_add_(1, label.clamp(min=0)[:, None], -by_label[:, None])
    d_bias = torch.zeros_like(bias)
    kernels.emission_gradient(logits, bias, node, label, blank, outputs[0], *gammas, d_bias)
    report.compare(f"emission_gradient, {name}", logits, right, 8 * eps(real(dtype)) + eps(dtype))
    report.compare(f"emission_gradient, {name}, bias", d_bias, right.sum(0), 64 * eps(real(dtype)))


def check_joint(report: Report, dtype: torch.dtype, activation: str, dim: int, rows: int) -> None:
    encoder_rows, predictor_rows = randn(50, dim, dtype=dtype), randn(20, dim, dtype=dtype)
    frame, token, dz = integers(50, rows).sort().values, integers(20, rows), randn(rows, dim, dtype=dtype)
    out = torch.full((rows, dim), torch.nan, dtype=dtype, device=DEVICE)
    kernels.joint(encoder_rows, predictor_rows, frame, token, activation, out)
    leaves = [x.double().requires_grad_() for x in (encoder_rows, predictor_rows)]
    right = activation_of(activation)(leaves[0][frame] + leaves[1][token])
    right.backward(dz.double())
    name = f"{activation}, {str(dtype)[6:]}, {dim} features"
    report.compare(f"joint, {name}", out, right, 8 * eps(real(dtype)) + eps(dtype))
    sums = [torch.zeros_like(x, dtype=real(dtype)) for x in (encoder_rows, predictor_rows)]
    kernels.joint_gradient(dz, out, encoder_rows, predictor_rows, frame, token, activation, *sums)
    for got, leaf in zip(sums, leaves, strict=True):
        report.compare(f"joint_gradient, {name}", got, leaf.grad, 64 * eps(real(dtype)) + 4 * eps(dtype))


def check_bounds(report: Report, dtype: torch.dtype, activation: str, dim: int, frames: int, labels: int) -> None:
    """Beside the plain PyTorch kernel in float64."""
    vocab, few, counts = 40, 6, real(dtype)
    table, nodes = packed_table((frames, frames // 2), (labels, 1), frames, labels + 1, labels, DEVICE)
    weight, bias, targets = randn(vocab, dim, dtype=dtype), randn(vocab, dtype=counts), integers(vocab, 2 * labels)
    rows, columns = randn(2 * frames, dim, dtype=dtype), randn(2 * labels + 2, dim, dtype=dtype)
    stretches = torch.tensor([[0, 0, frames // 3], [0, frames // 3, frames], [1, 0, frames // 2]], device=DEVICE)
    classes = torch.stack([torch.arange(few + 1, device=DEVICE) * q + q for q in (1, 2, 3)])
    sums = randn(3, few + 2, dim, dtype=counts), randn(3, few + 2, dtype=counts)
    rest, slack = torch.full((3,), vocab - few - 1.0, device=DEVICE).to(counts), torch.rand(3, device=DEVICE).to(counts) / 9
    found = []
    for module, kind in ((kernels, lambda x: x), (eager, lambda x: x.double())):
        out = torch.full((2, nodes), torch.nan, dtype=kind(bias).dtype, device=DEVICE)
        floats = [kind(x) for x in (rows, columns, weight, bias, *sums, rest, slack)]
        module.bounds(*floats[:2], activation, table, targets, *floats[2:4], stretches, classes, *floats[4:], *out)
        found.append(out)
    got, right = (x[:, :].masked_fill(x.isneginf(), 1.0) for x in found)  # the last column has no label
    report.compare(f"bounds, {activation}, {str(dtype)[6:]}, {dim} features", got, right, 64 * eps(counts))


def check_lattice(report: Report, frames: tuple[int, ...], labels: tuple[int, ...]) -> None:
    table, nodes = packed_table(frames, labels, 0, 0, 0, DEVICE)
    emissions = randn(2, nodes).abs().neg()
    weights = torch.linspace(0.5, 2.0, len(frames), dtype=torch.float64, device=DEVICE)
    losses, gammas = torch.empty_like(weights), torch.full_like(emissions, torch.nan)
    kernels.lattice(*emissions, table, weights, losses, *gammas)
    wide, right = emissions.double().cpu().requires_grad_(), []
    for start, stride, u, t, *_ in table.tolist():
        blank, label = (x[start : start + t * stride].view(t, stride) for x in wide)
        right.append(-log_likelihood(blank, label[:, :u]))
    (torch.stack(right) * weights.cpu()).sum().backward()
    name = f"frames {frames}, labels {labels}"
    report.compare(f"lattice, {name}, losses", losses.cpu(), torch.stack(right), 1e-11)
    report.compare(f"lattice, {name}, posteriors", gammas.cpu(), -wide.grad, 1e-6)


def problem(frames: tuple[int, ...], labels: tuple[int, ...], classes: int, dim: int) -> dict[str, Tensor]:
    B, T, U = len(frames), max(frames), max(labels)
    weight, bias = randn(classes, dim) * 2 / dim**0.5, randn(classes) / 2
    targets = torch.randint(1, classes, (B, U), device=DEVICE)
    lengths = [torch.tensor(x, device=DEVICE) for x in (frames, labels)]
    return {
        "encoder_out": randn(B, T, dim), "predictor_out": randn(B, U + 1, dim), "weight": weight, "bias": bias,
        "targets": targets, "encoder_lengths": lengths[0], "target_lengths": lengths[1],
    }  # fmt: skip


def gradients(loss: Callable[..., Tensor], inputs: dict[str, Tensor], kind: torch.dtype, **options: Any) -> list[Tensor]:
    """The losses, and the gradients of their weighted sum."""
    given = {k: x.clone().to(kind).requires_grad_() if x.is_floating_point() else x for k, x in inputs.items()}
    value = loss(**given, reduction="none", **options)
    value.backward(torch.linspace(0.5, 2.0, len(value)).to(value))
    return [value.detach(), *(x.grad for x in given.values() if x.grad is not None)]


def check_losses(report: Report) -> None:
    """The whole loss by every method, against a reference in float64, beside the error of plain PyTorch in the same dtype."""
    shapes = ((9, 4), (3, 2), 130, 6) if TINY else ((200, 150, 1, 40), (50, 30, 0, 60), 1025, 128)
    inputs = problem(*shapes)
    truth = gradients(reference_loss, inputs, torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        plain = gradients(reference_loss, inputs, torch.float64, dtype=dtype)
        for method in ("tiled",) if TINY and dtype != torch.float32 else ("batched", "samplewise", "tiled", "guided", "auto"):
            for what, got, usual, right in zip(
                ("loss", "encoder_out", "predictor_out", "weight", "bias"),
                gradients(transducer_loss, inputs, dtype, method=method), plain, truth, strict=True,
            ):  # fmt: skip
                usual_error = ((usual - right).abs().max() / right.abs().max()).item()
                report.compare(f"{method}, {str(dtype)[6:]}, {what}", got, right, 3 * usual_error + 16 * eps(dtype))
    backend.FUSED = True
    report.compare("fused emission", transducer_loss(**inputs, reduction="none", method="tiled"), truth[0], 1e-5)
    backend.FUSED, found = False, []
    for loss in (rnnt_loss, reference_loss_from_logits):
        logits = torch.randn(2, 9, 4, 33, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
        targets, lengths = torch.ones(2, 3, dtype=torch.int64, device=DEVICE), torch.tensor([9, 5], device=DEVICE)
        value = loss(logits, targets, lengths, torch.tensor([3, 1], device=DEVICE), blank=0, reduction="none")
        value.sum().backward()
        found.append((value, logits.grad))
    report.compare("rnnt_loss", found[0][0], found[1][0], 1e-6)
    report.compare("rnnt_loss, gradient", found[0][1], found[1][1], 1e-5)


def check_far(report: Report) -> None:
    """Sizes past 2^31 elements and past 65535 blocks."""
    check_lattice(report, (70 if TINY else 70000,), (2,))
    rows, classes = (70, 33) if TINY else (2**31 // 8192 + 100, 8192)
    if GPU and torch.cuda.mem_get_info(DEVICE)[0] < 3 * rows * classes * 2:
        return report.add("measurements", "far: too little memory", name="far", result="out of memory")
    logits, bias = torch.zeros(rows, classes, dtype=torch.bfloat16, device=DEVICE), randn(classes)
    logits[-5:] = randn(5, classes).bfloat16()
    right = (logits[-5:].double() + bias.double()).log_softmax(1)
    node, label = torch.arange(rows, device=DEVICE), torch.ones(rows, dtype=torch.int64, device=DEVICE)
    outputs = [torch.empty(rows, dtype=d, device=DEVICE) for d in (torch.float64, torch.float32, torch.float32)]
    kernels.emission(logits, bias, node, label, 0, *outputs)
    report.compare(f"emission, {rows * classes:.1e} elements", outputs[1][-5:], right[:, 0], 1e-5)
    halves = torch.full((2, rows), 0.5, device=DEVICE)
    kernels.emission_gradient(logits, bias, node, label, 0, outputs[0], *halves, torch.zeros_like(bias))
    (gradient := right.exp())[:, :2] -= 0.5
    report.compare(f"emission_gradient, {rows * classes:.1e} elements", logits[-5:], gradient, 0.01)
    out = torch.empty_like(logits)
    kernels.joint(logits, logits[:1] * 0, node, torch.zeros_like(node), "identity", out)
    report.compare(f"joint, {rows * classes:.1e} elements", out[-5:], logits[-5:], 0.0)


def check_graph(report: Report) -> None:
    """The passes captured in a CUDA graph, replayed on other numbers."""
    passes = Passes(kernels, DEVICE)
    side = torch.cuda.Stream(DEVICE) if GPU else None
    with torch.cuda.stream(side) if side else nullcontext():
        passes()  # compiles
    if side:
        torch.cuda.current_stream(DEVICE).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = passes()
    passes.rows.normal_()
    right = passes()
    if side:
        graph.replay()
    for got, expected in zip(captured if side else passes(), right, strict=True):
        report.compare("CUDA graph" if GPU else "again, as there is no CUDA graph", got, expected, 1e-6)


def check_places(report: Report) -> None:
    """Another stream, and another device than the current one."""
    inputs = problem((30, 20), (6, 3), 40, 16) if not TINY else problem((4, 2), (2, 1), 9, 4)
    right = gradients(transducer_loss, inputs, torch.float32)
    if GPU:
        stream = torch.cuda.Stream(DEVICE)
        stream.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(stream):
            got = gradients(transducer_loss, inputs, torch.float32)
        stream.synchronize()
        for a, b in zip(got, right, strict=True):
            report.compare("another stream", a, b, 1e-6)
    if GPU and torch.cuda.device_count() > 1:
        there = {name: x.to("cuda:1") for name, x in inputs.items()}
        for got, expected in zip(gradients(transducer_loss, there, torch.float32), right, strict=True):
            report.compare("another device", got.to(DEVICE), expected, 1e-6)
    with backend.use("eager"):
        for a, b in zip(gradients(transducer_loss, inputs, torch.float32), right, strict=True):
            report.compare("plain PyTorch kernels", a, b, 1e-5)


def measure_all(report: Report) -> None:
    """Time and memory of one step by every method, in this order, until there is no time left."""
    for case, dtype, methods in cases(TINY):
        work = step = None
        for method in methods:
            name = f"{case.name}, {str(dtype)[6:]}, {method}"
            row: dict[str, Any] = {"name": case.name, "method": method, "dtype": str(dtype)[6:], "case": case.sizes()}
            if time.monotonic() - START > ARGUMENTS.seconds:
                report.add("measurements", f"{name}: no time left", **row, result="no time left")
                continue
            try:
                work = tensors(case, DEVICE, dtype) if work is None else work
                step = step_of(method, case, work)
                if step is None:
                    report.add("measurements", f"{name}: not installed", **row, result="not installed")
                    continue
                backend.FUSED = method == "fused"
                with backend.use("eager" if method == "eager" else "triton"):
                    found = measure(step, work)
                workspace = "" if found["workspace"] is None else f", {found['workspace'] / 2**20:.0f} MiB"
                report.add("measurements", f"{name}: {found['seconds'] * 1e3:.2f} ms{workspace}", **row, result="ok", **found)
            except torch.OutOfMemoryError:
                work = step = None
                report.add("measurements", f"{name}: out of memory", **row, result="out of memory")
            except Exception as error:
                report.add("errors", f"ERROR {name}: {error!r}", name=name, error=repr(error))
            if GPU:
                torch.cuda.empty_cache()
    found = advice(report.results["measurements"])
    said = "nothing, for these are no times of a GPU" if not GPU else found["auto"] or "nothing"
    report.add("advice", f'method "auto" should take {said}: {found["why"]}', **found)


def main() -> int:
    torch.manual_seed(0)
    report = Report(ARGUMENTS.out)
    print(strict_json.text(report.results["about"]), flush=True)
    functions = (check_kernels, check_losses, check_far, check_graph, check_places, measure_all)
    for name in ARGUMENTS.only:
        try:
            with backend.use("triton"):
                functions[SECTIONS.index(name)](report)
        except Exception as error:
            report.add("errors", f"ERROR {name}: {error!r}", name=name, error=repr(error))
    checks = len(report.results["checks"])
    print(f"{checks} checks, {report.failed} failures, {len(report.results['measurements'])} measurements", flush=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
