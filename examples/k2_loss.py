"""Pruned RNN-T as icefall, ESPnet and WeNet train it, with samplewise in place of k2 (the same for fast_rnnt).

    before: import k2
    after:  import samplewise.integrations.k2 as k2

The rest of the step stays as it is. Run: python examples/k2_loss.py
"""

import torch
from torch import nn

import samplewise.integrations.k2 as k2

BLANK, CLASSES, DIM = 0, 20, 16


class Joiner(nn.Module):
    """As in icefall."""

    def __init__(self):
        super().__init__()
        self.encoder_proj, self.decoder_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.output_linear = nn.Linear(DIM, CLASSES)

    def forward(self, encoder_out, decoder_out, project_input=True):
        if project_input:
            encoder_out, decoder_out = self.encoder_proj(encoder_out), self.decoder_proj(decoder_out)
        return self.output_linear(torch.tanh(encoder_out + decoder_out))


def step(joiner, simple_am_proj, simple_lm_proj, encoder_out, decoder_out, symbols, boundary):
    """The simple and the pruned loss."""
    am, lm = simple_am_proj(encoder_out), simple_lm_proj(decoder_out)
    simple_loss, (px_grad, py_grad) = k2.rnnt_loss_smoothed(
        lm=lm.float(), am=am.float(), symbols=symbols, termination_symbol=BLANK, lm_only_scale=0.25, am_only_scale=0.0,
        boundary=boundary, reduction="sum", return_grad=True,
    )  # fmt: skip
    ranges = k2.get_rnnt_prune_ranges(px_grad=px_grad, py_grad=py_grad, boundary=boundary, s_range=5)  # (B, T, 5)
    am_pruned, lm_pruned = k2.do_rnnt_pruning(
        am=joiner.encoder_proj(encoder_out), lm=joiner.decoder_proj(decoder_out), ranges=ranges
    )
    logits = joiner(am_pruned, lm_pruned, project_input=False)  # (B, T, 5, C)
    pruned_loss = k2.rnnt_loss_pruned(
        logits=logits.float(), symbols=symbols, ranges=ranges, termination_symbol=BLANK, boundary=boundary, reduction="sum"
    )
    return simple_loss, pruned_loss


torch.manual_seed(0)
symbols = torch.randint(1, CLASSES, (4, 10))
boundary = torch.tensor([[0, 0, 10, 40], [0, 0, 7, 33], [0, 0, 9, 40], [0, 0, 4, 12]])
embedding = nn.Embedding(CLASSES, DIM)  # a stand-in for the stateless decoder
encoder_out = nn.Parameter(torch.randn(4, 40, DIM))  # and for the encoder
joiner, simple_am_proj, simple_lm_proj = Joiner(), nn.Linear(DIM, CLASSES), nn.Linear(DIM, CLASSES)
modules = nn.ModuleList([embedding, joiner, simple_am_proj, simple_lm_proj])
optimizer = torch.optim.Adam([encoder_out, *modules.parameters()], lr=0.02)
losses = []
for _ in range(12):
    decoder_out = embedding(nn.functional.pad(symbols, (1, 0)))  # (B, S+1, DIM), of the blank and the symbols
    simple_loss, pruned_loss = step(joiner, simple_am_proj, simple_lm_proj, encoder_out, decoder_out, symbols, boundary)
    optimizer.zero_grad()
    (0.5 * simple_loss + pruned_loss).backward()
    optimizer.step()
    losses.append(pruned_loss.item() / 4)
print(f"pruned loss an utterance: {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")
