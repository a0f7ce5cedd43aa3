"""The examples of losses and joints run, where none of the peers is installed, and their losses fall."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = [
    "torchaudio_loss", "warp_transducer_loss", "warp_rnnt_loss", "optimized_transducer_loss", "espnet_loss",
    "speechbrain_loss", "wenet_loss", "funasr_loss",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, capsys):
    losses = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert len(losses) == 5 and all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.9 * losses[0]
    assert capsys.readouterr().out.count("step") == 5


def test_without_logits_the_loss_is_the_same(capsys):
    """What the example of packed logits says of the first step."""
    losses = runpy.run_path(str(EXAMPLES / "optimized_transducer_loss.py"))["main"]()
    said = capsys.readouterr().out.partition("without logits: ")[2].split()[0]
    assert float(said) == pytest.approx(losses[0], rel=1e-5)
