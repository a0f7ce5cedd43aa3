"""NeMo: the loss without its 4-D tensor, by one line after the model is built.

    asr_model = EncDecRNNTBPEModel(cfg=cfg.model, trainer=trainer)
    samplewise.integrations.nemo.patch(asr_model)              # the line
    trainer.fit(asr_model)

This script does the same with a joint alone, and needs NeMo for that; without it, it trains a joint of plain PyTorch with
`RNNTLoss`, which is NeMo's by name, arguments and numbers.
"""

from __future__ import annotations

import torch
from torch import nn

from samplewise.integrations.nemo import RNNTLoss, patch

LABELS, FRAMES, TOKENS = 30, 40, 8


def batch() -> tuple[torch.Tensor, ...]:
    """Random encodings (B, features, length), as NeMo's encoder and decoder give them, and transcripts."""
    generator = torch.Generator().manual_seed(0)
    encoded = torch.randn(4, 24, FRAMES, generator=generator)
    decoded = torch.randn(4, 24, TOKENS + 1, generator=generator)
    transcripts = torch.randint(0, LABELS, (4, TOKENS), generator=generator)
    return encoded, torch.tensor([40, 31, 35, 22]), decoded, transcripts, torch.tensor([8, 5, 6, 3])


def train(module: nn.Module, step) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(5):
        loss = step(*batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}")


def with_nemo() -> None:
    from nemo.collections.asr.losses.rnnt import RNNTLoss as RNNTLossOfNemo
    from nemo.collections.asr.modules import RNNTJoint

    sizes = {"encoder_hidden": 24, "pred_hidden": 24, "joint_hidden": 32, "activation": "relu", "dropout": 0.2}
    joint = RNNTJoint(sizes, num_classes=LABELS, fuse_loss_wer=True, fused_batch_size=2)
    joint.set_loss(RNNTLossOfNemo(num_classes=LABELS, reduction="mean_volume"))
    joint.set_wer(nn.Module())  # a model sets its own
    patch(joint)

    def step(encoded, encoded_len, decoded, transcripts, transcript_len):
        loss, _, _, _ = joint(
            encoder_outputs=encoded, decoder_outputs=decoded, encoder_lengths=encoded_len, transcripts=transcripts,
            transcript_lengths=transcript_len,
        )  # fmt: skip
        return loss

    train(joint, step)


def without_nemo() -> None:
    enc, pred, output = nn.Linear(24, 32), nn.Linear(24, 32), nn.Linear(32, LABELS + 1)
    # before: from nemo.collections.asr.losses.rnnt import RNNTLoss
    loss = RNNTLoss(num_classes=LABELS, reduction="mean_volume", loss_kwargs={"fastemit_lambda": 0.001})

    def step(encoded, encoded_len, decoded, transcripts, transcript_len):
        total = enc(encoded.transpose(1, 2))[:, :, None] + pred(decoded.transpose(1, 2))[:, None]
        scores = output(torch.relu(total))
        return loss(log_probs=scores, targets=transcripts, input_lengths=encoded_len, target_lengths=transcript_len)

    train(nn.ModuleList((enc, pred, output)), step)


if __name__ == "__main__":
    torch.manual_seed(0)
    try:
        with_nemo()
    except (ImportError, OSError):  # OSError: NeMo beside a torchaudio of another torch
        print("NeMo is not installed; RNNTLoss does not need it:")
        without_nemo()
