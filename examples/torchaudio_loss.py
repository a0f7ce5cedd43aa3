"""A training step with torchaudio's loss, and with samplewise's under the same name. Random data, seconds; torchaudio is not
needed, and where it is there its loss is printed beside ours.

    from torchaudio.functional import rnnt_loss                 # before
    from samplewise.integrations.torchaudio import rnnt_loss    # after
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.torchaudio import rnnt_loss

try:
    from torchaudio.functional import rnnt_loss as theirs
except (ImportError, OSError):  # an OSError: it is there, but not for this PyTorch
    theirs = None

CLASSES = 20  # the last is the blank


class Model(nn.Module):
    def __init__(self, features: int = 16, width: int = 32) -> None:
        super().__init__()
        self.encoder, self.embed = nn.LSTM(features, width, batch_first=True), nn.Embedding(CLASSES, width)
        self.predictor, self.output = nn.LSTM(width, width, batch_first=True), nn.Linear(width, CLASSES)

    def forward(self, speech: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        start = torch.full_like(targets[:, :1], CLASSES - 1)
        acoustic = self.encoder(speech)[0]  # (B, T, D)
        label = self.predictor(self.embed(torch.cat((start, targets), 1)))[0]  # (B, U+1, D)
        return self.output(torch.tanh(acoustic[:, :, None] + label[:, None]))  # (B, T, U+1, V)


def main() -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    speech, targets = torch.randn(4, 30, 16), torch.randint(0, CLASSES - 1, (4, 6), dtype=torch.int32)
    frames = torch.tensor([30, 25, 28, 20], dtype=torch.int32)
    labels = torch.tensor([6, 4, 5, 0], dtype=torch.int32)
    losses = []
    for step in range(5):
        logits = model(speech, targets)
        loss = rnnt_loss(logits, targets, frames, labels, blank=-1)
        if step == 0:
            print("torchaudio is not installed" if theirs is None else f"torchaudio: {theirs(logits, targets, frames, labels)}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
