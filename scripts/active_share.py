"""Say on which share of the lattice's nodes the occupancy of a trained recogniser lies, at each of its checkpoints.

Usage: python scripts/active_share.py RUN_DIRECTORY OUTPUT.json [--data DIR]

The loss of the recogniser's built-in test strings is computed with gradients by method "tiled", which tells the share of
nodes that carry all but 1.2e-7 of the occupancy. An untrained model of the same recipe comes first.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

import samplewise
from samplewise import strict_json
from samplewise.asr.checkpoint import Recogniser, load_recogniser
from samplewise.asr.evaluate import in_batches
from samplewise.asr.examples import EvaluationExamples, collate
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadDataLog
from samplewise.asr.results import commit
from samplewise.asr.scoring import DIGITS, find_corpus, silent


def measure(model: Transducer, recogniser: Recogniser, data: str | None) -> dict[str, float]:
    """Mean active share and nats per label on the test strings."""
    bad = BadDataLog(recogniser.run.recipe.on_bad_data)
    corpus = find_corpus(recogniser, DIGITS, data, None, bad, silent)
    examples = EvaluationExamples(corpus, recogniser.preparation(), bad)
    model.eval()
    shares: list[float] = []
    nats = labels = 0.0
    for batch in map(collate, in_batches(examples.examples, 16)):
        encoder_out, lengths = model.encoder(batch["features"], batch["feature_lengths"])
        predictor_out = model.predictor(batch["targets"])
        with samplewise.observe() as seen:
            loss = model.joiner.loss(
                encoder_out, predictor_out, batch["targets"], lengths, batch["target_lengths"], reduction="sum", method="tiled"
            )
        shares += [group.active_share for group in seen.groups if group.active_share is not None]
        nats, labels = nats + float(loss.detach()), labels + float(batch["target_lengths"].sum())
    return {"active_share": statistics.mean(shares), "nats_per_label": nats / labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", help="where the digit recordings are, as for samplewise train")
    arguments = parser.parse_args()
    rows = []
    for directory in sorted(arguments.run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])):
        recogniser = load_recogniser(str(directory))
        if not rows:
            torch.manual_seed(recogniser.run.recipe.seed)
            rows.append({"steps": 0, **measure(recogniser.run.make_model()[0], recogniser, arguments.data)})
        rows.append({"steps": int(directory.name.split("-")[1]), **measure(recogniser.model, recogniser, arguments.data)})
    answer = {"recipe": recogniser.run.recipe.name, "commit": commit(), "tolerance": 2**-23, "rows": rows}
    arguments.output.write_text(strict_json.text(answer, indent=2) + "\n")
    print(arguments.output.read_text())


if __name__ == "__main__":
    main()
