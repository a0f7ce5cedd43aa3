"""The reductions of NeMo and transformers under our names."""

from __future__ import annotations

REDUCTIONS: dict[str | None, str] = {
    "mean_batch": "mean",  # sum_b loss_b / B
    "mean": "mean_target",  # mean over b of loss_b / U_b
    "mean_volume": "mean_volume",  # sum_b loss_b / sum_b U_b
    "sum": "sum",
    "none": "none",
    None: "none",
}
