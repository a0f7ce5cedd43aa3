"""Compare method "guided" with "tiled" at tolerance 0 on random structured joints, and print every seed that tells them apart.

Every seed is one joint of tests/structured.py (every 200th one of its large ones), in float32 or, every fifth, in float64 with
a tolerance of its own; losses and all gradients. tests/judge.py says what is a miss, and what only rounding.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EXAMPLES = """\
examples:
  python scripts/fuzz_guided.py --seeds 0:20000 --jobs 2 --out fuzz.json
      Everything, in some ten minutes.
  python scripts/fuzz_guided.py --seeds 1234
      One seed, with all that is known of it.
  python scripts/fuzz_guided.py --seeds 0:2000 --calibrate
      How far rounding alone takes two methods that leave nothing out, in units of what the judge allows.

The exit code is 1 if there is a miss.
"""
LARGE, DOUBLE, CHUNK = 200, 5, 20
TOLERANCES = (1e-4, 1e-6, 1.2e-7, 1e-9)  # of the joints in float64


def joint(seed: int):
    """The joint of a seed, and how it is run."""
    import torch
    from tests.structured import large, structured

    problem, activation, said = (large if seed % LARGE == LARGE - 1 else structured)(seed)
    options: dict = {"reduction": "sum" if seed % 2 else "none"}
    if seed % DOUBLE == 0 and seed % LARGE != LARGE - 1:
        problem, options["tolerance"] = problem.to(torch.float64), TOLERANCES[seed // DOUBLE % len(TOLERANCES)]
        said += f", float64 at tolerance {options['tolerance']}"
    return problem, activation, said, options


def check(seeds: list[int]) -> list[dict]:
    """One record a seed: its kind, and what was missed by how much."""
    import torch
    from tests.judge import judge

    import samplewise

    torch.set_num_threads(1)
    records = []
    for seed in seeds:
        start = time.perf_counter()
        problem, activation, said, options = joint(seed)
        record = {"seed": seed, "kind": said.split(":")[0], "said": said, "missed": {}}
        try:
            with samplewise.observe() as seen:
                record["missed"] = judge(problem, activation, insist=seed % 4 < 2, corridors=seed % 4 == 1, **options)
        except Exception as error:  # one joint that breaks a method must not hide what the others say
            record["missed"] = {"raised": repr(error)}
        record["corridor"] = any(group.visited_nodes < group.nodes for group in seen.groups)
        records.append({**record, "seconds": time.perf_counter() - start})
    return records


def rounding(seeds: list[int]) -> list[dict]:
    """How far tiled with its default tolerance, and batched, are from tiled at 0, in units of what is allowed."""
    import torch
    from tests import judge as j
    from tests.problems import ours, upstream

    torch.set_num_threads(1)
    records = []
    for seed in seeds:
        problem, activation, said, _ = joint(seed)
        problem, weights = problem.to(torch.float32), upstream(problem)
        options = {"reduction": "none", "activation": activation, "upstream": weights}
        right = ours(problem, method="tiled", tolerance=0.0, **options)
        bounds = j.bounds_of(problem, activation, torch.finfo(torch.float32).eps, weights)
        for method in ("tiled", "batched"):
            found = j.excess(ours(problem, method=method, **options), right, bounds, j.limits(torch.float32))
            records.append({"seed": seed, "kind": said.split(":")[0], "said": said, "method": method, "excess": found})
    return records


def run(function, seeds: list[int], jobs: int) -> list[dict]:
    """All records, in the order of the seeds, with a bar while they are made."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    records: list[dict] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        bar = progress.add_task("joints", total=len(seeds))
        for chunk, found in zip(chunks, pool.map(function, chunks), strict=True):
            for record in found:
                if record.get("missed"):
                    progress.print(
                        f"seed {record['seed']}: {show(record['missed'])}\n  {record['said']}", markup=False, soft_wrap=True
                    )
            records += found
            progress.advance(bar, len(chunk))
    return records


def show(missed: dict) -> str:
    return ", ".join(f"{name} {x if isinstance(x, str) else f'{x:.3g} times too far'}" for name, x in missed.items())


def summary(records: list[dict], seeds: list[int], seconds: float) -> dict:
    misses = [record for record in records if record["missed"]]
    kinds, missed = Counter(r["kind"] for r in records), Counter(r["kind"] for r in misses)
    return {
        "seeds": [seeds[0], seeds[-1] + 1], "joints": len(records), "misses": len(misses), "seconds": round(seconds, 1),
        "corridors": sum(record["corridor"] for record in records),
        "kinds": {kind: {"joints": kinds[kind], "misses": missed[kind]} for kind in sorted(kinds)}, "missed": misses,
    }  # fmt: skip


def say_rounding(records: list[dict]) -> None:
    import torch

    points = torch.tensor([0.5, 0.9, 0.99, 0.999, 1.0], dtype=torch.float64)
    for method in ("tiled", "batched"):
        of_method = [r["excess"] for r in records if r["method"] == method]
        for name in of_method[0]:
            found = torch.tensor([x[name] for x in of_method], dtype=torch.float64)
            shown = ", ".join(f"{x:.3g}" for x in found.quantile(points).tolist())
            print(f"{method} {name}: {shown}; {int((found > 1).sum())} of {len(found)} above 1")
    worst = sorted(records, key=lambda r: -max(r["excess"].values()))[:8]
    for record in worst:
        print(f"{record['method']}, seed {record['seed']}: {show(record['excess'])}\n  {record['said']}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:2000", help="A:B, B excluded, or one seed (default: 0:2000)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of one thread (default: 1)")
    parser.add_argument("--out", type=Path, help="JSON file for the summary")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure rounding instead, between methods that leave nothing out"
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    first, _, stop = arguments.seeds.partition(":")
    seeds = list(range(int(first), int(stop) if stop else int(first) + 1))
    if not seeds:
        raise SystemExit("--seeds: none")
    if len(seeds) == 1:
        print(joint(seeds[0])[2])
    if arguments.calibrate:
        say_rounding(run(rounding, seeds, arguments.jobs))
        return 0
    start = time.monotonic()
    records = run(check, seeds, arguments.jobs)
    answer = summary(records, seeds, time.monotonic() - start)
    if arguments.out:
        from samplewise import strict_json

        arguments.out.write_text(strict_json.text(answer, indent=2) + "\n")
    for kind, counts in answer["kinds"].items():
        print(f"{kind}: {counts['misses']} of {counts['joints']}")
    print(f"{answer['misses']} misses in {answer['joints']} joints, {answer['seconds']} s")
    return 1 if answer["misses"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
