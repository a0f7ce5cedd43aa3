"""A training step with optimized_transducer's packed logits, with samplewise's function of the same name, and without logits at
all. Random data, seconds; optimized_transducer is not needed, nor a compiler.

    from optimized_transducer import transducer_loss                              # before
    from samplewise.integrations.optimized_transducer import transducer_loss      # after
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import samplewise
from samplewise.integrations.optimized_transducer import transducer_loss

CLASSES = 20  # the first is the blank


def packed(acoustic: Tensor, label: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
    """Joint encodings (sum_b T_b (U_b + 1), D), one utterance after the other."""
    sizes = zip(frames.tolist(), lengths.tolist(), strict=True)
    return torch.cat([
        torch.tanh(acoustic[b, :t, None] + label[b, None, : u + 1]).flatten(0, 1) for b, (t, u) in enumerate(sizes)
    ])  # fmt: skip


def main() -> list[float]:
    torch.manual_seed(0)
    encoder, embed, output = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 32), nn.Linear(32, CLASSES)
    optimizer = torch.optim.Adam([*encoder.parameters(), *embed.parameters(), *output.parameters()], lr=0.02)
    speech, targets = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6), dtype=torch.int32)
    frames, lengths = (torch.tensor(sizes, dtype=torch.int32) for sizes in ([30, 25, 28, 20], [6, 4, 5, 0]))
    losses = []
    for step in range(5):
        acoustic, label = encoder(speech)[0], embed(torch.nn.functional.pad(targets, (1, 0))).cumsum(1)
        logits = output(packed(acoustic, label, frames, lengths))  # (sum_b T_b (U_b + 1), V)
        loss = transducer_loss(logits, targets, frames, lengths, blank=0, from_log_softmax=False)
        if step == 0:
            fused = samplewise.transducer_loss(acoustic, label, output.weight, output.bias, targets, frames, lengths)
            print(f"without logits: {fused.item():.4f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
