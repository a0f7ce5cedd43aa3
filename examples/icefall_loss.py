"""The exact loss of an icefall Joiner: no simple loss, no ranges, no pruning, and no 4-D tensor.

    before: am = self.simple_am_proj(encoder_out)
            lm = self.simple_lm_proj(decoder_out)
            simple_loss, (px_grad, py_grad) = k2.rnnt_loss_smoothed(lm, am, y_padded, blank_id, ..., return_grad=True)
            ranges = k2.get_rnnt_prune_ranges(px_grad, py_grad, boundary, prune_range)
            am_pruned, lm_pruned = k2.do_rnnt_pruning(...)
            logits = self.joiner(am_pruned, lm_pruned, project_input=False)
            pruned_loss = k2.rnnt_loss_pruned(logits, y_padded, ranges, blank_id, boundary, reduction="sum")
    after:  loss = joiner_loss(self.joiner, encoder_out, decoder_out, y_padded, blank_id, boundary, reduction="sum")

Run: python examples/icefall_loss.py
"""

import torch
from torch import nn

from samplewise.integrations.icefall import joiner_loss

BLANK, CLASSES, DIM = 0, 20, 16


class Decoder(nn.Module):
    """A stateless decoder: it sees two symbols."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, DIM)
        self.conv = nn.Conv1d(DIM, DIM, kernel_size=2)

    def forward(self, symbols):
        return self.conv(nn.functional.pad(self.embedding(symbols).transpose(1, 2), (1, 0))).relu().transpose(1, 2)


class Joiner(nn.Module):
    """As in icefall; its forward is for decoding."""

    def __init__(self):
        super().__init__()
        self.encoder_proj, self.decoder_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.output_linear = nn.Linear(DIM, CLASSES)

    def forward(self, encoder_out, decoder_out, project_input=True):
        if project_input:
            encoder_out, decoder_out = self.encoder_proj(encoder_out), self.decoder_proj(decoder_out)
        return self.output_linear(torch.tanh(encoder_out + decoder_out))


class Transducer(nn.Module):
    """icefall's model, as far as the loss goes."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.joiner = nn.Linear(8, DIM), Decoder(), Joiner()

    def forward(self, x, x_lens, y_padded, y_lens):
        encoder_out = self.encoder(x)  # (B, T, DIM)
        decoder_out = self.decoder(nn.functional.pad(y_padded, (1, 0), value=BLANK))  # (B, S+1, DIM)
        zeros = torch.zeros_like(y_lens)
        boundary = torch.stack((zeros, zeros, y_lens, x_lens), 1)
        return joiner_loss(self.joiner, encoder_out, decoder_out, y_padded, BLANK, boundary, reduction="sum")


torch.manual_seed(0)
x, x_lens = torch.randn(4, 40, 8), torch.tensor([40, 33, 40, 12])
y_padded, y_lens = torch.randint(1, CLASSES, (4, 10)), torch.tensor([10, 7, 9, 4])
model = Transducer()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _ in range(12):
    loss = model(x, x_lens, y_padded, y_lens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item() / 4)
print(f"loss an utterance: {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")
