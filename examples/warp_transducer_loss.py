"""A training step with warp-transducer's PyTorch binding, and with samplewise's module of the same name. Random data, seconds;
warp-transducer is not needed, nor a compiler.

    from warprnnt_pytorch import RNNTLoss                            # before
    from samplewise.integrations.warp_transducer import RNNTLoss     # after
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.warp_transducer import RNNTLoss

CLASSES = 20  # the first is the blank


def main() -> list[float]:
    torch.manual_seed(0)
    encoder, embed = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 32)
    output, criterion = nn.Linear(32, CLASSES), RNNTLoss(blank=0, reduction="mean")
    parameters = [*encoder.parameters(), *embed.parameters(), *output.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    speech, labels = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6), dtype=torch.int32)
    act_lens = torch.tensor([30, 25, 28, 20], dtype=torch.int32)
    label_lens = torch.tensor([6, 4, 5, 0], dtype=torch.int32)
    losses = []
    for step in range(5):
        label = embed(torch.nn.functional.pad(labels, (1, 0))).cumsum(1)  # (B, U+1, D)
        acts = output(torch.tanh(encoder(speech)[0][:, :, None] + label[:, None]))  # (B, T, U+1, V): logits, not log_softmax
        loss = criterion(acts, labels, act_lens, label_lens)  # (1,), as the binding returns it
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
