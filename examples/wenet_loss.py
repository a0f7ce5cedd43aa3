"""WeNet's joint and transducer loss in a training step, without the 4-D tensor. Random data, seconds; where WeNet is not
installed, a small module with the same attributes stands for its joint.

    # one line in the script that starts the training
    from wenet.transducer.transducer import Transducer
    from samplewise.integrations.wenet import compute_loss
    Transducer._compute_loss = compute_loss

    # or in one's own forward: before
    joint_out = self.joint(encoder_out, predictor_out)
    loss = torchaudio.functional.rnnt_loss(joint_out, rnnt_text, encoder_out_lens, text_lengths, blank=self.blank)
    # after
    loss = fused_loss(self.joint, encoder_out, predictor_out, text, encoder_out_lens, text_lengths, blank=self.blank)
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.wenet import fused_loss

try:
    from wenet.transducer.joint import TransducerJoint
except (ImportError, OSError):
    TransducerJoint = None

CLASSES = 20  # the first is the blank


class StandIn(nn.Module):
    """The attributes of WeNet's TransducerJoint that the loss uses, with a linear layer on the sum."""

    def __init__(
        self, vocab_size: int, enc_output_size: int, pred_output_size: int, join_dim: int, postjoin_linear: bool = False
    ) -> None:
        super().__init__()
        self.enc_ffn, self.pred_ffn = nn.Linear(enc_output_size, join_dim), nn.Linear(pred_output_size, join_dim)
        self.post_ffn = nn.Linear(join_dim, join_dim) if postjoin_linear else None
        self.hat_joint, self.activatoin, self.ffn_out = False, nn.Tanh(), nn.Linear(join_dim, vocab_size)


def main() -> list[float]:
    torch.manual_seed(0)
    if TransducerJoint is None:
        print("WeNet is not installed: a module with the attributes of its joint stands for it")
    joint = (TransducerJoint or StandIn)(CLASSES, 32, 24, 40, postjoin_linear=True)
    encoder, embed = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 24)
    optimizer = torch.optim.Adam([p for m in (encoder, embed, joint) for p in m.parameters()], lr=0.02)
    speech, text = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6))
    encoder_out_lens, text_lengths = torch.tensor([30, 25, 28, 20]), torch.tensor([6, 4, 5, 0])
    text[torch.arange(6)[None] >= text_lengths[:, None]] = -1  # ignore_id
    losses = []
    for step in range(5):
        start = torch.nn.functional.pad(text.clamp(min=0), (1, 0))  # the blank, then the labels
        encoder_out, predictor_out = encoder(speech)[0], embed(start).cumsum(1)
        loss = fused_loss(joint, encoder_out, predictor_out, text, encoder_out_lens, text_lengths, blank=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
