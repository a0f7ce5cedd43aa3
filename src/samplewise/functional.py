"""The losses as functions: check, choose, run the op, reduce. No mathematics here."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from samplewise import checks
from samplewise.choices import Activation, Method, OnNonfinite, Reduction, TopologyName
from samplewise.errors import TransducerError
from samplewise.ops.joint_module import JointCall, JointLoss
from samplewise.ops.logits import rnnt
from samplewise.ops.problem import BIAS, ENCODER, PREDICTOR, WEIGHT, wide_dtype
from samplewise.ops.transducer import Options, transducer_each, transducer_sum
from samplewise.planning.budget import parse_budget
from samplewise.planning.methods import NAMES as METHODS
from samplewise.topology import Topology
from samplewise.vocabulary import SampledVocabulary, check_vocabulary

LARGEST_BUDGET = 2**63 - 1  # that an operator takes


def transducer_loss(
    encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
    encoder_lengths: Tensor, target_lengths: Tensor, *, blank: int = 0, activation: Activation = "tanh",
    reduction: Reduction = "mean", method: Method = "auto", memory_budget: int | str | None = None,
    tolerance: float | None = None, vocabulary: SampledVocabulary | None = None, fastemit_lambda: float = 0.0,
    on_nonfinite: OnNonfinite = "keep", topology: Topology | TopologyName = "regular", delay_penalty: float = 0.0,
    alignment: Tensor | None = None, dropout: float = 0.0, dropout_seed: int | None = None, clamp: float = -1.0,
    normalizer: float | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Exact transducer (RNN-T) loss of a joint network z = act(encoder_out + predictor_out), logits = z weight^T + bias.

    loss_b = -log sum over all alignments of prod P(symbol | t, u). The 4-D logits are never built.

    Args:
        encoder_out: (B, T, D) acoustic encodings, already projected to the joint dimension D.
        predictor_out: (B, U+1, D) label encodings, already projected; row u has seen u labels.
        weight: (V, D) output layer; blank is one of the V classes. With `topology.tdt` (V + K, D): rows for K durations follow
            those of the classes.
        bias: (V,) or None.
        targets: (B, U) labels, int32 or int64. What lies beyond an utterance's length is never read.
        encoder_lengths: (B,) frames of each utterance, 1..T, int32 or int64.
        target_lengths: (B,) labels of each utterance, 0..U, int32 or int64.
        blank: class of the blank, -V..V-1.
        activation: "tanh", "relu", "sigmoid", "gelu", "silu", "identity" or "leaky_relu" (0.01 x below 0), or what transformers
            calls one of these: "linear", "swish", "gelu_python".
        reduction: "none" (B,); "sum"; "mean" = sum / B; "mean_volume" = sum / sum of target lengths; "mean_target" = mean of
            loss_b / max(1, U_b).
        method: "auto", "tiled", "samplewise", "batched" or "guided"; see docs/methods.md. All give the same loss and gradients.
        memory_budget: bytes, or text such as "512MiB", for the workspace beyond inputs, outputs and gradients. The default is
            64 MiB on a CPU, or what the largest utterance needs.
        tolerance: share of each utterance's occupancy that the gradients may leave out; the default is the machine epsilon of
            the dtype of the matrix products (a sixteenth of it in half precision), 0.0 leaves out nothing. Of sure models, with
            less than one nat a frame or label, less is left out, down to a 64th (docs/methods.md).
        vocabulary: the classes of a sampled softmax, from `sample_vocabulary`; targets and blank stay those of all V classes.
            The loss is then an approximation, over these classes alone, and gradients reach only their rows of weight and bias.
        fastemit_lambda: weight of FastEmit, 0 or more, which makes streaming models emit labels earlier: what the gradients
            owe to label arcs is 1 + lambda times as large. The value of the loss stays that of the transducer.
        on_nonfinite: what to do with an utterance whose loss is infinite or NaN: "keep" it in the loss, count it as "zero", or
            "raise". Its gradients are zero in any case, and the others' untouched.
        topology: what arcs leave a node, and over which softmaxes: "regular", "modified", "constrained" or "hat", or one made
            by `samplewise.topology`, such as `samplewise.topology.tdt(durations=(0, 1, 2, 3, 4), sigma=0.02)`.
        delay_penalty: added to the log-probability of a label at frame t, times (T_b - 1) / 2 - t: positive numbers make
            models emit labels earlier. Unlike FastEmit it is part of the value of the loss. k2's definition.
        alignment: (B, U, 2) first and last frame, counted from 0, at which each label may be, int32 or int64; None allows
            all. An utterance without any path left has an infinite loss.
        dropout: probability, 0..1, with which a feature of the joint encodings z becomes 0; the others become 1 / (1 - dropout)
            times as large.
        dropout_seed: the mask is a function of it, and of utterance, frame, label and feature alone, so it does not depend on
            method, memory or padding; None draws one from PyTorch's default generator. torch.compile with fullgraph wants
            one, and compiles anew for each.
        clamp: if positive, every element of an utterance's dL/dlogits is bounded to -clamp..clamp, before the reduction.
        normalizer: the sum of the losses is divided by this number, in place of what `reduction` says ("none" is an error): of
            a batch in several parts, or on several machines, that of all of them, such as a count of labels. A tensor of one
            element is taken as it is; a number must be positive.

    Returns:
        float32 loss (float64 for float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: workspace bounded by `memory_budget`; beyond it only the gradients themselves. Time: N D V multiply-adds for the
    losses of N = sum_b T_b (U_b + 1) nodes, and three times that for the nodes that carry the occupancy. A backward can be run
    once, with reduction "none" again and again; of vmap, torch.func and forward mode there is nothing.

    Source: Graves 2012 (arXiv 1211.3711); arXiv 2211.16270, Algorithm 1; FastEmit: arXiv 2010.11148.

    >>> import torch, samplewise
    >>> encoder_out, predictor_out = torch.randn(2, 50, 16), torch.randn(2, 11, 16)
    >>> weight, bias = torch.randn(30, 16, requires_grad=True), torch.zeros(30)
    >>> loss = samplewise.transducer_loss(
    ...     encoder_out, predictor_out, weight, bias, targets=torch.randint(1, 30, (2, 10)),
    ...     encoder_lengths=torch.tensor([50, 42]), target_lengths=torch.tensor([10, 7]))
    >>> loss.backward()
    >>> weight.grad.shape
    torch.Size([30, 16])
    """
    activation = checks.check_activation(activation)
    checks.check_choice("reduction", reduction, checks.REDUCTIONS)
    checks.check_choice("method", method, METHODS)
    checks.check_choice("on_nonfinite", on_nonfinite, checks.NONFINITE)
    checks.check_encodings(encoder_out, predictor_out, weight, bias)
    checks.check_integers(targets, encoder_lengths, target_lengths, encoder_out.shape[0])
    lattice = checks.check_topology(topology)
    blank, classes, class_bias = checks.check_blank(blank, max(1, weight.shape[0] - lattice.extra)), None, None
    lattice.check(weight.shape[0], blank)
    if vocabulary is not None:
        check_vocabulary(vocabulary, weight.shape[0] - lattice.extra, blank, encoder_out.shape[0])
        classes, class_bias = vocabulary.classes, vocabulary.log_weight
    checks.check_alignment(alignment, targets)
    options = Options(
        blank, activation, method, min(parse_budget(memory_budget) or 0, LARGEST_BUDGET),
        checks.check_tolerance(tolerance), checks.check_fastemit(fastemit_lambda),
        _compute_dtype(encoder_out, predictor_out, weight, bias), on_nonfinite, lattice.key,
        checks.check_finite("delay_penalty", delay_penalty), checks.check_clamp(clamp),
        checks.check_dropout(dropout), _seed(dropout, dropout_seed),
    )  # fmt: skip
    inputs = (
        encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths, classes, class_bias, alignment,
    )  # fmt: skip
    wanted = _wanted(encoder_out, predictor_out, weight, bias)
    loss_weights = reduction_weights(reduction, target_lengths, normalizer)
    if loss_weights is None:
        return transducer_each(*inputs, wanted, *options)
    return transducer_sum(*inputs, loss_weights, wanted, *options)[0]


def rnnt_loss(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int = -1, clamp: float = -1,
    reduction: Reduction = "mean", fused_log_softmax: bool = True, *, fastemit_lambda: float = 0.0,
    topology: Topology | TopologyName = "regular", delay_penalty: float = 0.0, normalizer: float | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """RNN-T loss of logits that already exist; the contract is that of `torchaudio.functional.rnnt_loss`.

    Args:
        logits: (B, T, U+1, V), float32, float64, bfloat16 or float16; or packed (sum_b T_b (U_b+1), V), without padding: one
            utterance after the other, in each the labels fastest. With `topology.tdt` a column for each of K durations follows
            those of the V classes.
        targets: (B, U) labels, int32 or int64; what lies beyond an utterance's length is never read.
        logit_lengths: (B,) frames of each utterance, 1..T; the largest may be less than T.
        target_lengths: (B,) labels of each utterance, 0..U.
        blank: class of the blank, -V..V-1; the last class by default, as in torchaudio.
        clamp: if positive, every element of each utterance's gradient is bounded to -clamp..clamp, before reduction.
        reduction: "none", "sum", "mean" (over the batch), "mean_volume" or "mean_target"; see `transducer_loss`.
        fused_log_softmax: False if `logits` are log-probabilities already (with `topology.tdt` those of classes and those of
            durations, each normalised); then only what paths read gets gradients: blanks, labels and durations. A topology's
            sigma is taken from them all the same.
        fastemit_lambda: as in `transducer_loss`; torchaudio's has none.
        topology: what arcs leave a node, as in `transducer_loss`; "hat" makes its probabilities of scores alone.
        delay_penalty, normalizer: as in `transducer_loss`.

    Returns:
        float32 loss (float64 for float64 logits), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: the gradient of the logits, and three floats a node (with other topologies one for every softmax and every
    log-probability that paths read). Whoever has the encodings should call `transducer_loss`, which needs neither the logits
    nor their gradient. Source: Graves 2012 (arXiv 1211.3711); of other topologies: `samplewise.topology`.

    >>> import torch, samplewise
    >>> logits = torch.randn(2, 9, 4, 7, requires_grad=True)
    >>> targets = torch.randint(0, 6, (2, 3), dtype=torch.int32)
    >>> samplewise.rnnt_loss(logits, targets, torch.tensor([9, 5]), torch.tensor([3, 1])).backward()
    >>> logits.grad.shape
    torch.Size([2, 9, 4, 7])
    """
    checks.check_choice("reduction", reduction, checks.REDUCTIONS)
    checks.check_logits(logits)
    checks.check_tensors(targets=targets)
    batch = logits.shape[0] if logits.dim() == 4 or targets.dim() == 0 else targets.shape[0]
    checks.check_integers(targets, logit_lengths, target_lengths, batch, "logit_lengths")
    gradient = torch.is_grad_enabled() and logits.requires_grad
    lattice = checks.check_topology(topology)
    blank = checks.check_blank(blank, max(1, logits.shape[-1] - lattice.extra))
    lattice.check(logits.shape[-1], blank, "columns of logits")
    if not fused_log_softmax and any(head.kind == "sigmoid" for head in lattice.heads):
        raise TransducerError(
            f"fused_log_softmax is {fused_log_softmax}, but topology {lattice.name!r} needs the blank's score:"
            " of log-probabilities the loss is that of topology 'regular'"
        )
    clamp = checks.check_clamp(clamp)
    options = (
        blank, clamp, bool(fused_log_softmax), checks.check_fastemit(fastemit_lambda), lattice.key, gradient, "keep",
        checks.check_finite("delay_penalty", delay_penalty),
    )  # fmt: skip
    weights = reduction_weights(reduction, target_lengths, normalizer)
    losses = rnnt(logits, targets, logit_lengths, target_lengths, *options)[0]
    return losses if weights is None else (losses * weights.to(losses)).sum()


def joint_loss(
    joint: nn.Module, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor, encoder_lengths: Tensor,
    target_lengths: Tensor, *, blank: int = 0, reduction: Reduction = "mean", fastemit_lambda: float = 0.0,
    on_nonfinite: OnNonfinite = "keep", topology: Topology | TopologyName = "regular", delay_penalty: float = 0.0,
    normalizer: float | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Transducer loss of any joint network, utterance by utterance: one utterance's logits are the most that exists at a time.

    Args:
        joint: a module that maps encodings (1, T_b, 1, E) and (1, 1, U_b+1, P), which broadcast, to logits (1, T_b, U_b+1, V).
            With `topology.tdt` columns of the durations follow those of the classes. It is used as it is: dropout, hooks and
            autocast included. A joint that looks across utterances or frames (batch normalisation in training) sees one
            utterance at a time.
        encoder_out: (B, T, E) acoustic encodings.
        predictor_out: (B, U+1, P) label encodings; row u has seen u labels.
        targets, encoder_lengths, target_lengths: as in `transducer_loss`.
        blank, reduction, fastemit_lambda, on_nonfinite, topology, delay_penalty, normalizer: as there.

    Returns:
        float32 loss (float64 for float64 logits), a scalar or (B,). Gradients reach the encodings and every parameter of
        `joint` that asks for them, through hooks on the parameters too (distributed training).

    Raises:
        TransducerError: an argument has the wrong shape, type or range, or the joint's logits have.

    Memory: logits, their gradient and the joint's graph of one utterance. Where the joint is act(a + b) and a linear layer,
    `transducer_loss` needs less and is faster. Not traced by torch.compile. Source: arXiv 2211.16270, Algorithm 1.

    >>> import torch, samplewise
    >>> class Joint(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.output = torch.nn.Linear(8, 30)
    ...     def forward(self, encoder_out, predictor_out):
    ...         return self.output(torch.relu(encoder_out * predictor_out))
    >>> joint = Joint()
    >>> samplewise.joint_loss(joint, torch.randn(2, 50, 8), torch.randn(2, 11, 8), torch.randint(1, 30, (2, 10)),
    ...                       torch.tensor([50, 42]), torch.tensor([10, 7])).backward()
    >>> joint.output.weight.grad.shape
    torch.Size([30, 8])
    """
    run = _joint_loss
    if torch.compiler.is_compiling():  # `disable` loads the compiler, a second that others need not wait for
        run = torch.compiler.disable(run)
    return run(
        joint, encoder_out, predictor_out, (targets, encoder_lengths, target_lengths), reduction, normalizer, blank=blank,
        on_nonfinite=on_nonfinite, fastemit_lambda=fastemit_lambda, topology=topology, delay_penalty=delay_penalty,
    )  # fmt: skip


def _joint_loss(
    joint: nn.Module, encoder_out: Tensor, predictor_out: Tensor, integers: tuple[Tensor, Tensor, Tensor], reduction: str,
    normalizer: float | Tensor | None, *, blank: int, on_nonfinite: str, fastemit_lambda: float, topology: Topology | str,
    delay_penalty: float,
) -> Tensor:  # fmt: skip
    checks.check_choice("reduction", reduction, checks.REDUCTIONS)
    checks.check_choice("on_nonfinite", on_nonfinite, checks.NONFINITE)
    checks.check_joint(joint)
    checks.check_three_dimensional(encoder_out=encoder_out, predictor_out=predictor_out)
    checks.same_size("predictor_out", predictor_out.shape[0], "utterances", "encoder_out", encoder_out.shape[0])
    checks.check_integers(*integers, encoder_out.shape[0])
    weights = reduction_weights(reduction, integers[2], normalizer)
    weights = None if weights is None else weights.to(encoder_out.device)
    call, learned = JointCall.of(
        joint, blank=blank, on_nonfinite=on_nonfinite, fastemit_lambda=checks.check_fastemit(fastemit_lambda),
        topology=checks.check_topology(topology).key, delay_penalty=checks.check_finite("delay_penalty", delay_penalty),
    )  # fmt: skip
    return JointLoss.apply(call, weights, *integers, encoder_out, predictor_out, *learned)


def reduction_weights(reduction: str, target_lengths: Tensor, normalizer: float | Tensor | None = None) -> Tensor | None:
    """The weights (B,) that make a reduction of losses a weighted sum; float64 where the lengths' device has it. None for
    "none"."""
    checks.check_normalizer(normalizer, reduction)
    if reduction == "none":
        return None
    batch = target_lengths.shape[0]
    ones = torch.ones(batch, dtype=wide_dtype(target_lengths.device), device=target_lengths.device)
    if normalizer is not None:
        return ones / (normalizer.detach().reshape(()).to(ones) if isinstance(normalizer, Tensor) else normalizer)
    if reduction == "mean":
        return ones / batch
    if reduction == "mean_volume":
        return ones / target_lengths.sum().clamp(min=1)
    if reduction == "mean_target":
        return ones / (batch * target_lengths.clamp(min=1))
    return ones


def _seed(dropout: float, seed: int | None) -> int:
    """The seed as 64 bits."""
    if seed is None:
        return int(torch.randint(2**63 - 1, (), device="cpu")) if dropout else 0
    return (checks.check_whole("dropout_seed", seed) + 2**63) % 2**64 - 2**63


def _wanted(*tensors: Tensor | None) -> int:
    """Which of encoder_out, predictor_out, weight and bias need a gradient, as bits."""
    if not torch.is_grad_enabled():
        return 0
    bits = (ENCODER, PREDICTOR, WEIGHT, BIAS)
    return sum(bit for bit, tensor in zip(bits, tensors, strict=True) if tensor is not None and tensor.requires_grad)


def _compute_dtype(encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
    """The dtype of the matrix products: that of the inputs, or autocast's, which leaves float64 alone."""
    kind = weight.device.type
    autocast = torch.is_autocast_enabled(kind) and weight.dtype != torch.float64
    checks.check_dtypes(autocast, encoder_out=encoder_out, predictor_out=predictor_out, weight=weight, bias=bias)
    return torch.get_autocast_dtype(kind) if autocast else weight.dtype
