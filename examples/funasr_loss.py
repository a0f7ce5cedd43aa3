"""FunASR's joint network and transducer loss in a training step, without the 4-D tensor and without a GPU. Random data,
seconds; where FunASR is not installed, a small module with the same attributes stands for its joint network.

    # in the forward of its Transducer: before
    joint_out = self.joint_network(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1))
    log_probs = torch.log_softmax(joint_out, dim=-1)
    loss = warp_rnnt.rnnt_loss(log_probs, target, t_len, u_len, reduction="mean", blank=self.blank_id, gather=True)
    # after
    loss = fused_loss(self.joint_network, encoder_out, decoder_out, target, t_len, u_len, blank_id=self.blank_id)
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.funasr import fused_loss

try:
    from funasr.models.transducer.joint_network import JointNetwork
except (ImportError, OSError):
    JointNetwork = None

CLASSES = 20  # the first is the blank


class StandIn(nn.Module):
    """The attributes of FunASR's JointNetwork that the loss uses."""

    def __init__(self, output_size: int, encoder_size: int, decoder_size: int, joint_space_size: int = 256) -> None:
        super().__init__()
        self.lin_enc, self.lin_out = nn.Linear(encoder_size, joint_space_size), nn.Linear(joint_space_size, output_size)
        self.lin_dec, self.joint_activation = nn.Linear(decoder_size, joint_space_size, bias=False), nn.Tanh()


def main() -> list[float]:
    torch.manual_seed(0)
    if JointNetwork is None:
        print("FunASR is not installed: a module with the attributes of its joint network stands for it")
    joint_network = (JointNetwork or StandIn)(CLASSES, 32, 24, 40)
    encoder, embed = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 24)
    optimizer = torch.optim.Adam([p for m in (encoder, embed, joint_network) for p in m.parameters()], lr=0.02)
    speech, target = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6), dtype=torch.int32)
    t_len, u_len = (torch.tensor(sizes, dtype=torch.int32) for sizes in ([30, 25, 28, 20], [6, 4, 5, 0]))
    losses = []
    for step in range(5):
        encoder_out, decoder_out = encoder(speech)[0], embed(torch.nn.functional.pad(target, (1, 0))).cumsum(1)
        loss = fused_loss(joint_network, encoder_out, decoder_out, target, t_len, u_len, fastemit_lambda=0.001)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
