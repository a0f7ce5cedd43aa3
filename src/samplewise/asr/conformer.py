"""A Conformer encoder (Gulati et al. 2020, arXiv 2005.08100), built from `transformers` with weights drawn at random.

`ParakeetEncoder` is the Fast Conformer of Rekesh et al. 2023 (arXiv 2305.05084): strided, mostly depthwise convolutions
shorten the time axis, then come Conformer blocks with relative positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ParakeetEncoder, ParakeetEncoderConfig

from samplewise.asr.encoder import Encoder
from samplewise.asr.options import ConformerOptions

KERNEL, STRIDE = 3, 2  # of each convolution that shortens the time axis


class ConformerEncoder(Encoder):
    """Convolutions that take `subsampling` feature frames to one, then Conformer blocks.

    Padding is masked everywhere but in the statistics that batch normalisation collects in training: in evaluation an
    utterance is encoded the same whatever stands beside it.

    Args:
        dim: number of features of a frame; zeros are added up to a multiple of `options.subsampling`.
        options: sizes.
    """

    def __init__(self, dim: int, options: ConformerOptions):
        super().__init__()
        self.dim = options.hidden
        self.depth = options.layers
        self.padding = -dim % options.subsampling  # the convolutions halve this axis as well
        self.halvings = options.subsampling.bit_length() - 1
        config = ParakeetEncoderConfig(
            hidden_size=options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_size=options.feed_forward,
            conv_kernel_size=options.kernel,
            subsampling_factor=options.subsampling,
            subsampling_conv_channels=options.channels,
            subsampling_conv_kernel_size=KERNEL,
            subsampling_conv_stride=STRIDE,
            num_mel_bins=dim + self.padding,
            dropout=options.dropout,
            dropout_positions=options.dropout,
            activation_dropout=options.dropout,
            attention_dropout=options.dropout,
            layerdrop=0.0,
        )
        self.network = ParakeetEncoder(config)
        draw_weights(self.network)

    def output_length(self, frames: int) -> int:
        for _ in range(self.halvings):
            frames = (frames - 1) // STRIDE + 1
        return max(0, frames)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        outputs, lengths = self._encode(features, lengths, layers=False)
        return outputs[-1], lengths

    def layers(self, features: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        return self._encode(features, lengths, layers=True)

    def _encode(self, features: Tensor, lengths: Tensor, *, layers: bool) -> tuple[list[Tensor], Tensor]:
        """Outputs of all blocks or of the last one (B, T, E), lengths (B,)."""
        if features.shape[1] == 0:
            return [features.new_zeros(len(features), 0, self.dim)] * self.depth, lengths
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]  # (B, F)
        features = functional.pad(features.masked_fill(~mask.unsqueeze(-1), 0.0), (0, self.padding))
        found = self.network(features, attention_mask=mask, output_hidden_states=layers)
        outputs = list(found.hidden_states[-self.depth :]) if layers else [found.last_hidden_state]
        return outputs, found.attention_mask.sum(dim=1)  # (B, T, E) each, (B,)


def draw_weights(network: nn.Module) -> None:
    """Draw the weights of every layer by the number of its inputs, as PyTorch does by default.

    `transformers` draws them all with one small deviation, which suits weights that are loaded afterwards: the convolutions
    then hand on next to nothing of the features, and a model that is trained from there stays on the plateau where it knows
    texts and hears nothing (short digit strings, 250 steps: CTC loss 2.06 nats a label, 0.65 with these weights).
    """
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            module.reset_parameters()
