"""Whole models before and after their patch: peak memory and time of one training step, each in a fresh process.

Usage: python scripts/time_of_patched_models.py [--rounds 3] [--output docs/results/patched.json] [--insert docs/migrate.md]

A batch of 8 utterances of 200 encoder frames and 60 labels, 1025 word pieces, joint dimension 640, a small encoder, random
weights, float32. The peak is what the first step adds to the resident set, less the gradients that it leaves; the time is the
best of the rounds after it. transformers' RNN-T has no stock column where its torchaudio cannot be imported. Do nothing else on
the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from documents import fill
from samplewise import strict_json
from samplewise.bench.memory import weigh
from samplewise.bench.protocol import worker_environment
from samplewise.cache import cache_directory
from samplewise.planning.budget import show_bytes

BATCH, FRAMES, LABELS, CLASSES, DIM = 8, 200, 60, 1025, 640
MODELS = ("ParakeetForTDT", "ParakeetForRNNT")
WAYS = ("stock", "patched")


def made(kind: str) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    encoder = transformers.ParakeetEncoderConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, num_mel_bins=80,
        subsampling_conv_channels=16,
    )  # fmt: skip
    config = {"ParakeetForTDT": "ParakeetTDTConfig", "ParakeetForRNNT": "ParakeetRNNTConfig"}[kind]
    options = {"vocab_size": CLASSES, "blank_token_id": CLASSES - 1, "pad_token_id": 2, "decoder_hidden_size": DIM}
    return getattr(transformers, kind)(getattr(transformers, config)(encoder_config=encoder, **options)).train()


def measure(kind: str, way: str, rounds: int) -> dict[str, Any]:
    """One process's figures."""
    from samplewise.integrations.transformers import patch

    model = made(kind)
    if way == "patched":
        patch(model)
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(3, CLASSES - 1, (BATCH, LABELS), generator=draw)
    small = torch.randint(3, CLASSES - 1, (1, 3), generator=draw)

    def step(frames: int, labels: torch.Tensor):
        features = torch.randn(len(labels), frames, 80, generator=draw)
        inputs = torch.nn.functional.pad(labels, (1, 0), value=CLASSES - 1)
        mask = torch.ones(features.shape[:2], dtype=torch.bool)
        model.zero_grad()
        loss = model(input_features=features, attention_mask=mask, labels=labels, decoder_input_ids=inputs).loss
        loss.backward()
        return loss.detach(), tuple(p.grad for p in model.parameters() if p.grad is not None)

    step(80, small)  # loads and compiles what there is
    step(800, small.expand(4, -1))
    found = weigh(lambda: step(8 * FRAMES, labels))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step(8 * FRAMES, labels)
        times.append(time.perf_counter() - start)
    return {"peak": found["workspace"], "seconds": min(times)}


def asked(kind: str, way: str, rounds: int) -> dict[str, Any] | str:
    """The figures of a fresh process, or why there are none."""
    command = [sys.executable, __file__, "--child", kind, way, "--rounds", str(rounds)]
    environment = worker_environment(torch.get_num_threads(), cache_directory(), memory=True)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return next((line for line in lines if "Error: " in line or line.endswith("Error:")), lines[-1])
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| model | stock: peak | patched: peak | stock: a step | patched: a step |", "|---|---|---|---|---|"]
    for kind, ways in found.items():
        cells = [["does not run here"] * 2 if isinstance(ways[way], str) else figures(ways[way]) for way in WAYS]
        lines.append(f"| {kind} | {cells[0][0]} | {cells[1][0]} | {cells[0][1]} | {cells[1][1]} |")
    return "\n".join(lines)


def figures(one: dict[str, Any]) -> list[str]:
    return [show_bytes(one["peak"]), f"{one['seconds']:.3g} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--output", type=Path, default=Path("docs/results/patched.json"), metavar="FILE")
    parser.add_argument("--insert", type=Path, metavar="FILE", help="put the table between its markers there")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(strict_json.text(measure(*arguments.child, arguments.rounds)))
        return
    found: dict[str, dict[str, Any]] = {}
    for kind in MODELS:
        found[kind] = {}
        for way in WAYS:
            print(f"{kind}, {way} ...", file=sys.stderr, flush=True)
            found[kind][way] = asked(kind, way, arguments.rounds)
    arguments.output.write_text(strict_json.text({"torch": torch.__version__, "models": found}, indent=1) + "\n")
    print(table(found))
    if arguments.insert:
        fill(arguments.insert, "results:patched", "results", table(found))


if __name__ == "__main__":
    main()
