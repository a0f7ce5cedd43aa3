"""A training step with warp_rnnt's loss of log-probabilities, compact, and with samplewise's module of the same name. Random
data, seconds; warp_rnnt is not needed, nor CUDA.

    from warp_rnnt import rnnt_loss                            # before
    from samplewise.integrations.warp_rnnt import rnnt_loss    # after
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.warp_rnnt import rnnt_loss

CLASSES = 20  # the first is the blank


def main() -> list[float]:
    torch.manual_seed(0)
    encoder, embed = nn.GRU(16, 32, batch_first=True), nn.Embedding(CLASSES, 32)
    output = nn.Linear(32, CLASSES)
    optimizer = torch.optim.Adam([*encoder.parameters(), *embed.parameters(), *output.parameters()], lr=0.02)
    speech, labels = torch.randn(3, 24, 16), torch.randint(1, CLASSES, (3, 5), dtype=torch.int32)
    frames_lengths = torch.tensor([24, 20, 17], dtype=torch.int32)
    labels_lengths = torch.tensor([5, 3, 4], dtype=torch.int32)
    losses = []
    for step in range(5):
        acoustic, label = encoder(speech)[0], embed(nn.functional.pad(labels, (1, 0))).cumsum(1)
        rows = [
            torch.tanh(a[:t, None] + p[None, : u + 1]).flatten(0, 1)  # (T_b (U_b+1), D)
            for a, p, t, u in zip(acoustic, label, frames_lengths.tolist(), labels_lengths.tolist(), strict=True)
        ]
        log_probs = output(torch.cat(rows)).log_softmax(1)  # (sum_b T_b (U_b+1), V)
        flat = torch.cat([row[:u] for row, u in zip(labels, labels_lengths.tolist(), strict=True)])
        loss = rnnt_loss(log_probs, flat, frames_lengths, labels_lengths, reduction="mean", gather=True, compact=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
