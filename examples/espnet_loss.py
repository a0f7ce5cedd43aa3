"""ESPnet2's joint network and transducer loss in a training step, without the 4-D tensor. Random data, seconds; where ESPnet is
not installed, a small module with the same attributes stands for its joint network.

    # espnet2/asr: before, `ESPnetASRModel` as it is; after, one line in the script that starts the training
    from espnet2.asr.espnet_model import ESPnetASRModel
    from samplewise.integrations.espnet import calc_transducer_loss
    ESPnetASRModel._calc_transducer_loss = calc_transducer_loss

    # espnet2/asr_transducer, in the forward of its model: before
    joint_out = self.joint_network(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1))
    loss = self.criterion_transducer(joint_out, target, t_len, u_len)
    # after
    loss = fused_loss(self.joint_network, encoder_out, decoder_out, target, t_len, u_len)
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.espnet import fused_loss

try:
    from espnet2.asr_transducer.joint_network import JointNetwork
except (ImportError, OSError):
    JointNetwork = None

CLASSES = 20  # the first is the blank


class StandIn(nn.Module):
    """The attributes of espnet2's JointNetwork that the loss uses."""

    def __init__(self, output_size: int, encoder_size: int, decoder_size: int, joint_space_size: int = 256) -> None:
        super().__init__()
        self.lin_enc, self.lin_out = nn.Linear(encoder_size, joint_space_size), nn.Linear(joint_space_size, output_size)
        self.lin_dec, self.joint_activation = nn.Linear(decoder_size, joint_space_size, bias=False), nn.Tanh()


def main() -> list[float]:
    torch.manual_seed(0)
    if JointNetwork is None:
        print("ESPnet is not installed: a module with the attributes of its joint network stands for it")
    joint_network = (JointNetwork or StandIn)(CLASSES, 32, 24, 40)
    encoder, embed = nn.LSTM(16, 32, batch_first=True), nn.Embedding(CLASSES, 24)
    optimizer = torch.optim.Adam([p for m in (encoder, embed, joint_network) for p in m.parameters()], lr=0.02)
    speech, target = torch.randn(4, 30, 16), torch.randint(1, CLASSES, (4, 6), dtype=torch.int32)
    t_len, u_len = (torch.tensor(sizes, dtype=torch.int32) for sizes in ([30, 25, 28, 20], [6, 4, 5, 0]))
    losses = []
    for step in range(5):
        encoder_out, decoder_out = encoder(speech)[0], embed(torch.nn.functional.pad(target, (1, 0))).cumsum(1)
        loss = fused_loss(joint_network, encoder_out, decoder_out, target, t_len, u_len)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
