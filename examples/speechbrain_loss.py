"""SpeechBrain's joint, output layer and transducer loss in a training step, without the 4-D tensor. Random data, seconds; where
SpeechBrain is not installed, or not for this PyTorch, a small module with the same attributes stands for its joint.

    # before, in compute_forward and compute_objectives
    joint = self.modules.Tjoint(x.unsqueeze(2), h.unsqueeze(1))
    logits = self.modules.transducer_lin(joint)
    loss = self.hparams.transducer_cost(logits, tokens, wav_lens, token_lens)
    # after
    loss = fused_loss(self.modules.Tjoint, self.modules.transducer_lin, x, h, tokens, wav_lens, token_lens, blank_index)
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.speechbrain import fused_loss

try:
    from speechbrain.nnet.transducer.transducer_joint import Transducer_joint
except (ImportError, OSError):
    Transducer_joint = None

CLASSES = 20  # the first is the blank


class StandIn(nn.Module):
    """The attributes of speechbrain's Transducer_joint that the loss uses."""

    def __init__(self, joint_network=None, joint: str = "sum", nonlinearity: type[nn.Module] = nn.LeakyReLU) -> None:
        super().__init__()
        self.joint_network, self.joint, self.nonlinearity = joint_network, joint, nonlinearity()


def main() -> list[float]:
    torch.manual_seed(0)
    if Transducer_joint is None:
        print("SpeechBrain is not installed: a module with the attributes of its joint stands for it")
    joint = (Transducer_joint or StandIn)(joint="sum", nonlinearity=nn.GELU)
    encoder, embed = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 24)
    proj_enc, proj_dec, transducer_lin = nn.Linear(32, 40), nn.Linear(24, 40), nn.Linear(40, CLASSES, bias=False)
    modules = nn.ModuleList([encoder, embed, proj_enc, proj_dec, joint, transducer_lin])
    optimizer = torch.optim.Adam(modules.parameters(), lr=0.02)
    speech, tokens = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6))
    wav_lens, token_lens = torch.tensor([30, 25, 28, 20]) / 30, torch.tensor([6, 4, 5, 0]) / 6  # relative
    losses = []
    for step in range(5):
        x, h = proj_enc(encoder(speech)[0]), proj_dec(embed(torch.nn.functional.pad(tokens, (1, 0))).cumsum(1))
        loss = fused_loss(joint, transducer_lin, x, h, tokens, wav_lens, token_lens, blank_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
