"""The names of methods. No torch here.

A method is written `base` or `base:variant`: `auto:loss` computes the loss alone, `auto:bf16` runs under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

from samplewise.bench.errors import BenchError
from samplewise.bench.peers.registry import BY_METHOD

OURS = ("auto", "guided", "tiled", "tiled-exact", "samplewise", "batched")
# over so many classes, drawing included: an utterance's own; one set for the batch; that with whole 4-D tensors
SAMPLED_CLASSES = 256
SAMPLED = ("sampled", "sampled-batch", "sampled-4d")
PLAIN = "plain"
YARDSTICK = "gemm3"  # the three matrix products; every time is also given as a multiple of theirs
YARDSTICKS = ("gemm1", YARDSTICK, "tanh")
PEER_METHODS = tuple(BY_METHOD)
BASES = (*OURS, *SAMPLED, PLAIN, *YARDSTICKS, *PEER_METHODS)
VARIANTS = ("", "loss", "bf16")


class Method(NamedTuple):
    base: str
    variant: str

    @classmethod
    def parse(cls, text: str) -> Method:
        base, _, variant = text.partition(":")
        if base not in BASES or variant not in VARIANTS:
            raise BenchError(f"unknown method {text!r}; there are {', '.join(BASES)}, each alone or with :loss or :bf16")
        return cls(base, variant)

    @property
    def loss_only(self) -> bool:
        return self.variant == "loss"

    @property
    def bf16(self) -> bool:
        return self.variant == "bf16"

    @property
    def kind(self) -> str:
        """ "ours", "baseline", "yardstick" or "peer"."""
        if self.base in (*OURS, *SAMPLED):
            return "ours"
        if self.base in YARDSTICKS:
            return "yardstick"
        return "baseline" if self.base == PLAIN else "peer"

    @property
    def approximate(self) -> bool:
        """Whether its loss is another one by design, which no check can fail."""
        return self.base in SAMPLED or (self.base in BY_METHOD and self.base in BY_METHOD[self.base].approximate)
