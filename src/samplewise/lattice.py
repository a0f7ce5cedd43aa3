"""The loss of log-probabilities of arcs that are given. No mathematics here."""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise import checks
from samplewise.choices import Reduction, TopologyName
from samplewise.errors import TransducerError
from samplewise.functional import reduction_weights
from samplewise.ops.given import given_arcs
from samplewise.topology import Topology

OF_TWO_ENTRIES = ("regular", "modified", "constrained")


def lattice_loss(
    lp_blank: Tensor, lp_label: Tensor, encoder_lengths: Tensor, target_lengths: Tensor, *,
    topology: Topology | TopologyName = "regular", reduction: Reduction = "mean", delay_penalty: float = 0.0,
    normalizer: float | Tensor | None = None, return_posteriors: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
    """Transducer loss of a lattice whose log-probabilities are given: for joints and penalties of one's own making.

    loss_b = -log sum over all alignments of prod P(symbol | t, u), for any numbers as log P, normalised or not.

    Args:
        lp_blank: (B, T, U+1) log-probability of the blank at frame t after u labels; float32, float64, bfloat16 or float16.
        lp_label: (B, T, U) that of the next label, of the same dtype. -inf is what cannot be; what lies beyond an utterance's
            lengths is never read.
        encoder_lengths: (B,) frames of each utterance, 1..T, int32 or int64.
        target_lengths: (B,) labels of each utterance, 0..U, int32 or int64.
        topology: "regular"; "modified", where a label goes on one frame, too; or "constrained", where it also pays the blank of
            the node after it.
        reduction, delay_penalty, normalizer: as in `transducer_loss`.
        return_posteriors: whether to return the arcs' posteriors, too.

    Returns:
        float32 loss (float64 for float64 numbers), a scalar or (B,). With return_posteriors also (blanks (B, T, U+1), labels
        (B, T, U)): minus the derivatives of each utterance's loss, 0 beyond the lengths, of its dtype, without gradient. They
        are the probability that an alignment takes an arc; of "constrained" that of a blank holds the labels that pay it, too.
        An utterance without a path has an infinite loss and zeros.

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: two floats a node beyond the arguments and their gradients, kept for the backward. Source: Graves 2012 (arXiv
    1211.3711); of other topologies: `samplewise.topology`.

    >>> import torch, samplewise
    >>> log_probs = torch.randn(2, 9, 4, 7).log_softmax(3).requires_grad_()
    >>> targets = torch.tensor([[1, 2, 3], [4, 0, 0]])
    >>> lp_label = log_probs[:, :, :-1].gather(3, targets[:, None, :, None].expand(2, 9, 3, 1))[..., 0]
    >>> loss, (blanks, labels) = samplewise.lattice_loss(
    ...     log_probs[..., 0], lp_label, torch.tensor([9, 5]), torch.tensor([3, 1]), return_posteriors=True)
    >>> loss.backward()
    >>> labels.sum((1, 2)).round().tolist()
    [3.0, 1.0]
    """
    checks.check_choice("reduction", reduction, checks.REDUCTIONS)
    _check_arcs(lp_blank, lp_label)
    for name, lengths in (("encoder_lengths", encoder_lengths), ("target_lengths", target_lengths)):
        checks.check_integer(name, lengths, 1, lp_blank.shape[0])
    lattice = checks.check_topology(topology)
    if lattice.name not in OF_TWO_ENTRIES:
        raise TransducerError(
            f"topology is {lattice.name!r}, whose arcs are not one blank and one label; it must be one of"
            f" {', '.join(map(repr, OF_TWO_ENTRIES))}"
        )
    penalty = checks.check_finite("delay_penalty", delay_penalty)
    weights = reduction_weights(reduction, target_lengths, normalizer)
    frames, labels = (x.to(device=encoder_lengths.device, dtype=torch.int64) for x in (encoder_lengths, target_lengths))
    places = torch.stack((torch.zeros_like(frames), torch.zeros_like(frames), frames, labels), 1)
    gradient = return_posteriors or (torch.is_grad_enabled() and (lp_blank.requires_grad or lp_label.requires_grad))
    losses, gammas = given_arcs(lp_blank, lp_label, places, lattice.key, False, penalty, gradient)
    loss = losses if weights is None else (losses * weights.to(losses)).sum()
    return (loss, (gammas[0], gammas[1, :, :, :-1])) if return_posteriors else loss


def _check_arcs(lp_blank: Tensor, lp_label: Tensor) -> None:
    """Shapes and dtypes: (B, T, U+1) and (B, T, U)."""
    checks.check_tensors(lp_blank=lp_blank, lp_label=lp_label)
    if lp_blank.dim() != 3 or 0 in lp_blank.shape:
        raise TransducerError(f"lp_blank must be (B, T, U+1), none of them 0, but has shape {tuple(lp_blank.shape)}")
    B, T, width = lp_blank.shape
    if tuple(lp_label.shape) != (B, T, width - 1):
        raise TransducerError(
            f"lp_label must be {(B, T, width - 1)}, as lp_blank is {(B, T, width)}, but has shape {tuple(lp_label.shape)}"
        )
    checks.check_floats(lp_blank=lp_blank)
    checks.check_dtypes(False, lp_blank=lp_blank, lp_label=lp_label)
    if lp_label.device != lp_blank.device:
        raise TransducerError(f"lp_label is on {lp_label.device}, but lp_blank is on {lp_blank.device}")
