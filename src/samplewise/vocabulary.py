"""Sampled vocabularies: the few classes over which a loss is computed. Source: arXiv 2203.16868; design section 5.

Drawn without replacement by Gumbel top-k (arXiv 1903.06059): every class gets the key log w - log E with E exponential, blank
and labels the key infinity, and the largest keys win.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor

from samplewise import checks
from samplewise.errors import TransducerError

logger = logging.getLogger("samplewise")

SCOPES, CORRECTIONS = ("utterance", "batch"), ("logq",)
UNSEEN = 0.01  # of the mean weight: what a class of weight 0 gets under "logq", which cannot correct for what is never drawn
IMPOSSIBLE = -1000.0  # log weight of a class of weight 0 beside the heaviest: drawn when all others are, and all such alike
KEYS_AT_ONCE = 1 << 22  # of a piece of a batch: (B, V) of them would be as large as what sampling is to save


@dataclass(frozen=True)
class SampledVocabulary:
    """The classes over which a loss is computed; made by `sample_vocabulary`, taken by `transducer_loss(vocabulary=)`.

    Attributes:
        classes: (G, S) int64 on the host, ascending, one row an utterance (G = B) or one for all (G = 1); -1 behind the last.
        log_weight: (G, S) float64 on the host, added to the classes' logits: -log q with correction "logq", else 0.
        vocab_size: V, of which these are a part.
        blank: class of the blank, 0..V-1; always among the classes.
        grown: rows that hold more than `size` classes, because blank and labels alone are more.
    """

    classes: Tensor
    log_weight: Tensor
    vocab_size: int
    blank: int
    grown: int = 0

    @property
    def sizes(self) -> Tensor:
        """(G,) int64: how many classes each row holds."""
        return (self.classes >= 0).sum(1)

    def remap(self, targets: Tensor) -> Tensor:
        """Positions (B, U) int64 of the targets (B, U) among their row's classes; -1 where a label is not among them."""
        host = targets.detach().to(device="cpu", dtype=torch.int64)
        rows = self.classes.masked_fill(self.classes < 0, self.vocab_size).expand(host.shape[0], -1).contiguous()
        return find(rows, host)

    def restore(self, columns: Tensor) -> Tensor:
        """Classes (B, U) of positions (B, U) among their row's classes, -1 of -1: what `remap` undoes."""
        columns = columns.to(self.classes)
        return self.classes.expand(columns.shape[0], -1).gather(1, columns.clamp(min=0)).where(columns >= 0, -1)


def sample_vocabulary(
    targets: Tensor, target_lengths: Tensor, vocab_size: int, size: int, *, blank: int = 0, scope: str = "batch",
    ctc_log_probs: Tensor | None = None, ctc_lengths: Tensor | None = None, weights: Tensor | None = None,
    correction: str | None = None, generator: torch.Generator | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> SampledVocabulary:  # fmt: skip
    """Choose the classes of a sampled softmax: blank, the labels, and negatives drawn without replacement.

    Args:
        targets: (B, U) labels, int32 or int64. What lies beyond an utterance's length is never read.
        target_lengths: (B,) labels of each utterance, 0..U.
        vocab_size: V, blank included.
        size: classes in all, blank and labels among them, 1 or more. If these alone are more, they all stay and `grown` counts
            the rows; if V is less, all V are taken and the loss is the full one.
        blank: class of the blank, -V..V-1.
        scope: "batch", one set for all, with every utterance's labels; "utterance", each has classes of its own. One set cost
            less accuracy (docs/sampled_softmax.md): what others say is among the negatives.
        ctc_log_probs: (B, T', V) log-probabilities of an auxiliary CTC head (arXiv 2203.16868): negatives are drawn by their
            posterior, summed over the frames of the utterance or of the batch. No gradient reaches them.
        ctc_lengths: (B,) frames of each utterance in `ctc_log_probs`, 0..T'; all T' by default.
        weights: (V,) or (B, V), not negative: negatives are drawn by these (unigram counts, for example). Without weights and
            `ctc_log_probs` all are equally likely. Classes of weight 0 are drawn only when no others are left; with "logq",
            which cannot be right on average about what is never drawn, they count as a hundredth of the mean weight.
        correction: "logq" divides exp(logit) of a negative by the probability q of its being drawn, which makes the softmax
            denominators right on average; None, the paper's form, leaves them too small.
        generator: draws come from it, and on its device; PyTorch's default generator otherwise.
        process_group: for scope "batch" in distributed training: one set for the batches of all ranks, equal on every rank.

    Returns:
        the sampled vocabulary, on the host.

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: weights and keys of V classes for a few hundred utterances at a time, at most 32 MiB each. One synchronisation.

    >>> import torch, samplewise
    >>> targets, lengths = torch.tensor([[5, 9], [7, 0]]), torch.tensor([2, 1])
    >>> vocabulary = samplewise.sample_vocabulary(targets, lengths, vocab_size=8192, size=256)
    >>> vocabulary.classes.shape
    torch.Size([1, 256])
    >>> encoder_out, predictor_out = torch.randn(2, 50, 16), torch.randn(2, 3, 16)
    >>> weight, bias = torch.randn(8192, 16, requires_grad=True), torch.zeros(8192)
    >>> samplewise.transducer_loss(encoder_out, predictor_out, weight, bias, targets, torch.tensor([50, 42]), lengths,
    ...                            vocabulary=vocabulary).backward()
    """
    _check_arguments(targets, vocab_size, size, scope, correction, ctc_log_probs, ctc_lengths, weights, process_group)
    checks.check_integers(targets, target_lengths, target_lengths, targets.shape[0], "target_lengths")
    blank = checks.check_blank(blank, vocab_size)
    labels = checks.check_targets(targets, target_lengths, vocab_size, blank)
    device = generator.device if generator is not None else targets.device
    rows, found = 1 if scope == "batch" else targets.shape[0], []
    step = rows if scope == "batch" else max(1, KEYS_AT_ONCE // vocab_size)
    for first in range(0, rows, step):
        some = slice(None) if scope == "batch" else slice(first, first + step)
        likely = _log_weights(some, scope, ctc_log_probs, ctc_lengths, weights, process_group, vocab_size, correction)
        always = _present(labels[some], scope, vocab_size, blank).to(device)
        if process_group is not None:
            torch.distributed.all_reduce(always, torch.distributed.ReduceOp.MAX, process_group)
        found.append(_draw(always.bool(), None if likely is None else likely.to(device), size, correction, generator))
    if process_group is not None:
        source = torch.distributed.get_global_rank(process_group, 0)
        for tensor in found[0][:2]:
            torch.distributed.broadcast(tensor, source, process_group)
    width = max(part[0].shape[1] for part in found)
    classes = torch.cat([_pad(part[0].cpu(), width, -1) for part in found])
    log_weight = torch.cat([_pad(part[1].cpu(), width, 0.0) for part in found])
    grown = sum(part[2] for part in found)
    if grown:
        _say_once(size, int((classes >= 0).sum(1).max()))
    return SampledVocabulary(classes, log_weight, vocab_size, blank, grown)


def find(classes: Tensor, targets: Tensor) -> Tensor:
    """Positions (B, U) of the targets (B, U) among the ascending classes (B, S) of their row, or -1."""
    at = torch.searchsorted(classes, targets.contiguous()).clamp_(max=classes.shape[1] - 1)
    return torch.where(classes.gather(1, at) == targets, at, -1)


def check_vocabulary(vocabulary: SampledVocabulary, classes: int, blank: int, batch: int) -> None:
    """That a sampled vocabulary is one for this weight, this blank and this batch."""
    if not isinstance(vocabulary, SampledVocabulary):
        raise TransducerError(f"vocabulary is a {type(vocabulary).__name__}; it must come from sample_vocabulary")
    if vocabulary.vocab_size != classes:
        raise TransducerError(f"vocabulary was sampled from {vocabulary.vocab_size} classes, but weight has {classes} rows")
    if vocabulary.blank != blank:
        raise TransducerError(f"vocabulary was sampled with blank {vocabulary.blank}, but blank is {blank}")
    if vocabulary.classes.shape[0] not in (1, batch):
        raise TransducerError(f"vocabulary is for {vocabulary.classes.shape[0]} utterances, but the batch has {batch}")


def _draw(
    always: Tensor, likely: Tensor | None, size: int, correction: str | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Classes and log weights (G, S) of each row of always (G, V), and how many rows are longer than `size`.

    likely: (G, V) or (1, V) log weights, None if all are alike.
    """
    size = min(size, always.shape[1])
    present = always.sum(1, keepdim=True)  # (G, 1)
    sizes = present.clamp(min=size)  # (G, 1)
    width = int(sizes.max())
    keys = torch.empty(always.shape, dtype=torch.float64, device=always.device).exponential_(generator=generator).log_().neg_()
    if likely is not None:
        keys += likely
    keys.masked_fill_(always, torch.inf)
    top, classes = keys.topk(min(width + 1, always.shape[1]), dim=1)  # (G, S + 1), or (G, V) where all are taken
    log_weight = torch.zeros_like(top)
    if correction == "logq":
        if likely is None:
            log_q = ((sizes - present) / (always.shape[1] - present).clamp(min=1)).log()  # (G, 1)
        else:  # given the largest key that lost, every class won independently: with 1 - exp(-exp(log w - key))
            lost = torch.nn.functional.pad(top, (0, 1), value=-torch.inf).gather(1, sizes)  # (G, 1)
            log_q = (-torch.expm1(-(likely.expand_as(keys).gather(1, classes) - lost).exp())).log()
        log_weight = torch.where(top == torch.inf, 0.0, -log_q)
    beyond = torch.arange(top.shape[1], device=top.device) >= sizes  # (G, S + 1)
    classes, order = classes.masked_fill(beyond, always.shape[1]).sort(dim=1)
    classes = classes.masked_fill(classes == always.shape[1], -1)[:, :width]
    log_weight = log_weight.masked_fill(beyond, 0.0).gather(1, order)[:, :width]
    return classes.contiguous(), log_weight.contiguous(), int((present > size).sum())


def _present(labels: Tensor, scope: str, vocab_size: int, blank: int) -> Tensor:
    """(G, V) int8: 1 at blank and the labels. labels (B, U) on the host, -1 beyond the lengths."""
    rows = labels.reshape(1, -1) if scope == "batch" else labels
    present = torch.zeros(rows.shape[0], vocab_size + 1, dtype=torch.int8, device="cpu")
    present.scatter_(1, rows.masked_fill(rows < 0, vocab_size), 1)  # the spare column takes what is beyond
    present[:, blank] = 1
    return present[:, :vocab_size].contiguous()


def _log_weights(
    some: slice, scope: str, ctc_log_probs: Tensor | None, ctc_lengths: Tensor | None, weights: Tensor | None,
    process_group: torch.distributed.ProcessGroup | None, vocab_size: int, correction: str | None,
) -> Tensor | None:  # fmt: skip
    """(G, V) or (1, V) float64 log weights of some utterances, the heaviest 0; None if all are alike."""
    if ctc_log_probs is not None:
        mass = ctc_mass(ctc_log_probs[some], None if ctc_lengths is None else ctc_lengths[some])
    elif weights is not None:
        mass = weights.detach().double() if weights.dim() == 1 else weights[some].detach().double()
    else:
        return None
    of_all = mass.dim() == 1
    mass = mass.reshape(-1, vocab_size)
    wrong = (~torch.isfinite(mass) | (mass < 0)).any(1)
    if bool(wrong.any()):
        name = "weights" if ctc_log_probs is None else "ctc_log_probs"
        where = "" if of_all else f" of utterance {int(wrong.nonzero()[0]) + (some.start or 0)}"
        raise TransducerError(f"{name}{where} are not all finite and positive or zero: NaN, infinite or negative weights")
    if scope == "batch":
        mass = mass.sum(0, keepdim=True)
    if process_group is not None:
        torch.distributed.all_reduce(mass, group=process_group)
    if correction == "logq":
        mass = torch.where(mass > 0, mass, UNSEEN * mass.mean(1, keepdim=True))
    likely = mass.log()
    heaviest = likely.amax(1, keepdim=True)
    return (likely - heaviest.masked_fill(heaviest == -torch.inf, 0.0)).clamp_(min=IMPOSSIBLE)


def ctc_mass(ctc_log_probs: Tensor, ctc_lengths: Tensor | None) -> Tensor:
    """(B, V) float64 posteriors of a CTC head, (B, T', V) in log-probabilities, summed over each utterance's frames.

    Utterance by utterance: the probabilities of all frames at once would be another (B, T', V).
    """
    batch, frames, classes = ctc_log_probs.shape
    lengths = [frames] * batch if ctc_lengths is None else ctc_lengths.tolist()
    mass = torch.zeros(batch, classes, dtype=torch.float64, device=ctc_log_probs.device)
    for b, length in enumerate(lengths):
        if not 0 <= length <= frames:
            raise TransducerError(
                f"ctc_lengths[{b}] is {length}, but ctc_log_probs has {frames} frames: it must be in 0..{frames}"
            )
        one = ctc_log_probs[b, :length].detach()
        mass[b] = one.float().exp().sum(0, dtype=torch.float64)
    return mass


def _check_arguments(
    targets: Tensor, vocab_size: int, size: int, scope: str, correction: str | None, ctc_log_probs: Tensor | None,
    ctc_lengths: Tensor | None, weights: Tensor | None, process_group: torch.distributed.ProcessGroup | None,
) -> None:  # fmt: skip
    tensors = {"targets": targets, "ctc_log_probs": ctc_log_probs, "ctc_lengths": ctc_lengths, "weights": weights}
    checks.check_tensors(**{name: x for name, x in tensors.items() if x is not None or name == "targets"})
    checks.check_choice("scope", scope, SCOPES)
    if correction is not None:
        checks.check_choice("correction", correction, CORRECTIONS)
    for name, number in (("vocab_size", vocab_size), ("size", size)):
        checks.check_whole(name, number, 1)
    if ctc_log_probs is not None and weights is not None:
        raise TransducerError("ctc_log_probs and weights both say how negatives are drawn; give one of them")
    if ctc_lengths is not None and ctc_log_probs is None:
        raise TransducerError("ctc_lengths is of use with ctc_log_probs only")
    if process_group is not None and scope != "batch":
        raise TransducerError('process_group makes one set for all ranks, which needs scope "batch"')
    batch = len(targets)
    if batch == 0:
        raise TransducerError(f"nothing to do for 0 utterances: targets has shape {tuple(targets.shape)}")
    if ctc_log_probs is not None:
        if ctc_log_probs.dim() != 3 or ctc_log_probs.shape[0] != batch or ctc_log_probs.shape[2] != vocab_size:
            raise TransducerError(
                f"ctc_log_probs must be (B, T', V) = ({batch}, T', {vocab_size}), but has shape {tuple(ctc_log_probs.shape)}"
            )
        if ctc_lengths is not None and tuple(ctc_lengths.shape) != (batch,):
            raise TransducerError(f"ctc_lengths must be ({batch},), but has shape {tuple(ctc_lengths.shape)}")
        if ctc_log_probs.numel() and (largest := float(ctc_log_probs.detach().amax())) > 0.1:
            raise TransducerError(
                f"ctc_log_probs holds {largest:.4g}, but a log-probability is at most 0: logits need log_softmax first"
            )
    if weights is not None and tuple(weights.shape) not in ((vocab_size,), (batch, vocab_size)):
        raise TransducerError(
            f"weights must be (V,) = ({vocab_size},) or (B, V) = ({batch}, {vocab_size}), but has shape {tuple(weights.shape)}"
        )


def _pad(rows: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=value)


@functools.cache
def _say_once(size: int, needed: int) -> None:
    logger.warning(
        "sampled vocabulary: blank and labels alone are up to %d classes, more than size %d; they all stay", needed, size
    )
