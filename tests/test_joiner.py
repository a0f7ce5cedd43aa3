"""The Joiner of every topology: its loss is that of its scores, and its log-probabilities are the topology's definition."""

import pytest
import torch
from torch.nn.functional import logsigmoid

import samplewise
from samplewise import Joiner, TransducerError, TransducerLoss
from samplewise import topology as topologies
from samplewise.reference import reference_loss, reference_loss_from_logits
from samplewise.reference_topologies import entries
from tests.problems import make

ENCODINGS = torch.randn(2, 9, 8, dtype=torch.float64), torch.randn(2, 5, 7, dtype=torch.float64)
INTEGERS = (torch.tensor([[5, 8, 1, 7], [3, 3, 0, 0]]), torch.tensor([9, 6]), torch.tensor([4, 2]))
TOPOLOGIES = [
    topologies.regular(), topologies.modified(), topologies.constrained(), topologies.hat(),
    topologies.multi_blank((2, 4), (9, 10), sigma=0.05), topologies.tdt((0, 1, 2), sigma=0.05), topologies.tdt((2, 1)),
]  # fmt: skip


def joiner(topology="regular", **options) -> Joiner:
    torch.manual_seed(0)
    return Joiner(8, 7, 6, 11, topology=topology, **options).double()


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_the_loss_is_that_of_the_scores(topology):
    module = joiner(topology)
    scores = module(*ENCODINGS)
    assert scores.shape == (2, 9, 5, 11 + topology.extra) and module.output.out_features == 11 + topology.extra
    right = reference_loss_from_logits(scores, *INTEGERS, topology=topology)
    loss = module.loss(*ENCODINGS, *INTEGERS, method="tiled")
    torch.testing.assert_close(loss, right)
    for got, gradient in zip(*(torch.autograd.grad(x, list(module.parameters())) for x in (loss, right)), strict=True):
        torch.testing.assert_close(got, gradient)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_log_probabilities_are_those_of_the_topology_without_its_shift(topology):
    module = joiner(topology)
    scores = 3 * module(*ENCODINGS)[0]  # (T, U+1, V + extra)
    symbols, durations = module.log_probs(scores)
    labels = INTEGERS[0][0]
    found = entries(scores, labels, 0, topology) + topology.heads[topology.label_head].shift
    torch.testing.assert_close(symbols[..., 0], found[0])
    label = found[topology.label_entry] + (found[1] if topology.name == "hat" else 0.0)
    torch.testing.assert_close(symbols[:, :-1].gather(2, labels[None, :, None].expand(9, -1, 1))[..., 0], label[:, :-1])
    assert symbols.shape == (9, 5, 11)
    torch.testing.assert_close(symbols.logsumexp(-1), torch.zeros(9, 5, dtype=torch.float64))
    if topology.name == "tdt":
        assert durations.shape == (9, 5, topology.extra)
        shift = topology.heads[0].shift
        torch.testing.assert_close(durations, found[2:].movedim(0, -1) - shift)
    else:
        assert durations is None
    bare, bare_durations = module.log_probs(scores, normalise=False)
    torch.testing.assert_close((bare - symbols).std(-1), torch.zeros(9, 5, dtype=torch.float64))
    assert bare_durations is None or bare_durations.equal(scores[..., 11:])


def test_log_probabilities_of_half_precision_are_float32():
    scores = torch.randn(4, 14, dtype=torch.bfloat16)
    assert [x.dtype for x in joiner(topologies.tdt((0, 1, 2))).log_probs(scores)] == [torch.float32] * 2
    symbols, _ = joiner(topologies.hat()).log_probs(torch.tensor([[300.0, *range(10)], [-300.0, *range(10)]]))
    assert symbols.isfinite().all() and symbols[0, 0] == 0.0 and symbols[1, 0] == -300.0


@pytest.mark.parametrize("blank", [0, 4, 10, -1])
def test_hat_with_a_layer_of_its_own_for_the_blank(blank):
    """What NeMo and WeNet compute: log sigmoid(s) for the blank, log(1 - sigmoid(s)) + log-softmax for the labels, with s from
    a linear layer on tanh of the sum. Any transducer loss takes these for logits: they are normalised."""
    module = joiner(topologies.hat(), blank=blank, blank_head=True)
    at = blank % 11
    assert module.output.out_features == 10 and module.blank_output.out_features == 1
    acoustic, label = module.encoder_proj(ENCODINGS[0]), module.predictor_proj(ENCODINGS[1])
    z = torch.tanh(acoustic[:, :, None] + label[:, None])
    s, labels = module.blank_output(z), module.output(z).log_softmax(-1)
    of_labels = logsigmoid(-s) + labels
    expected = torch.cat((of_labels[..., :at], logsigmoid(s), of_labels[..., at:]), -1)
    torch.testing.assert_close(module.log_probs(module(*ENCODINGS))[0], expected)
    integers = (torch.tensor([[5, 8, 1, 7], [3, 3, 6, 6]]), *INTEGERS[1:])
    right = reference_loss_from_logits(expected, *integers, blank=at, reduction="sum")
    loss = module.loss(*ENCODINGS, *integers, method="tiled", reduction="sum")
    torch.testing.assert_close(loss, right)
    torch.testing.assert_close(module.loss(*ENCODINGS, *integers, method="tiled", reduction="sum", blank=blank), right)
    for got, gradient in zip(*(torch.autograd.grad(x, list(module.parameters())) for x in (loss, right)), strict=True):
        torch.testing.assert_close(got, gradient)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(TransducerError, match="blank_head is True, but topology is 'tdt'"):
        joiner("tdt", blank_head=True)
    with pytest.raises(TransducerError, match="topology is 'hut'; it must be one of 'regular'"):
        joiner("hut")
    with pytest.raises(TransducerError, match="has a blank of class 11, beside blank 0"):
        joiner(topologies.multi_blank((2,), (11,)))
    with pytest.raises(TransducerError, match=r"blank is 11, but there are 11 classes"):
        joiner(blank=11)
    with pytest.raises(TransducerError, match="vocab_size is 1"):
        Joiner(8, 7, 6, 1, topology="hat", blank_head=True)
    with pytest.raises(TransducerError, match="topology is an option of the Joiner, made with regular"):
        joiner()(*ENCODINGS, *INTEGERS, topology="hat")
    with pytest.raises(TransducerError, match="blank is 2, but the Joiner was made with a head for blank 0"):
        joiner("hat", blank_head=True)(*ENCODINGS, *INTEGERS, blank=2)


@pytest.mark.parametrize("topology", ["modified", "hat", topologies.tdt((0, 1, 3), sigma=0.02)], ids=str)
def test_transducer_loss_of_a_topology(topology):
    extra = 0 if isinstance(topology, str) else topology.extra
    problem = make((6, 4), (3, 2), vocab=11 + extra, dtype=torch.float64)
    problem = problem.replace(targets=problem.targets.clamp(max=10))
    module = TransducerLoss(topology=topology, method="tiled", reduction="sum")
    structure = topologies.named(topology) if isinstance(topology, str) else topology
    loss = module(*problem.inputs.values())
    torch.testing.assert_close(loss, reference_loss(**problem.inputs, topology=structure, reduction="sum"))
    assert torch.equal(loss, samplewise.transducer_loss(**problem.inputs, **module.options))
    assert ("topology='" + topology if isinstance(topology, str) else "topology=tdt(durations=(0, 1, 3), sigma=0.02)") in repr(
        module
    )


def test_a_wrong_topology_of_a_loss_is_refused_at_once():
    with pytest.raises(TransducerError, match="topology is 'x'"):
        TransducerLoss(topology="x")
    with pytest.raises(TransducerError, match="topology is a list"):
        TransducerLoss(topology=[])
