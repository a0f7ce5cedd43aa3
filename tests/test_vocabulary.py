"""Sampled vocabularies and the loss over them: which classes, by what chance, and the values and gradients that follow."""

import logging
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samplewise
from samplewise import TransducerError, sample_vocabulary, transducer_loss
from samplewise.ops.sampled import positions
from samplewise.vocabulary import SampledVocabulary, ctc_mass
from tests.problems import FLOATS, error, make, ours, run, truth, upstream

METHODS = ("auto", "batched", "samplewise", "tiled", "guided")
SCOPES = ("utterance", "batch")
TARGETS, LENGTHS = torch.tensor([[5, 9, 5], [7, 0, 0], [2, 2, 2]]), torch.tensor([3, 1, 0])


def sampled_truth(problem, vocabulary, reduction="none", upstream=None):
    """The float64 reference over W[S] and b[S] + log_weight, utterance by utterance, through PyTorch's own indexing."""
    problem = problem.to(torch.float64)
    leaves = {name: getattr(problem, name).clone().requires_grad_() for name in FLOATS if getattr(problem, name) is not None}
    losses = []
    for b in range(problem.batch):
        row = b % vocabulary.classes.shape[0]
        classes = vocabulary.classes[row][vocabulary.classes[row] >= 0]
        t, u = int(problem.encoder_lengths[b]), int(problem.target_lengths[b])
        columns = torch.tensor([classes.tolist().index(v) for v in problem.targets[b, :u].tolist()], dtype=torch.int64)[None]
        bias = vocabulary.log_weight[row, : len(classes)].double()
        if "bias" in leaves:
            bias = bias + leaves["bias"][classes]
        losses.append(
            samplewise.reference.reference_loss(
                leaves["encoder_out"][b : b + 1, :t], leaves["predictor_out"][b : b + 1, : u + 1], leaves["weight"][classes],
                bias, columns, torch.tensor([t]), torch.tensor([u]), blank=classes.tolist().index(problem.blank % 23),
                reduction="none",
            )
        )  # fmt: skip
    loss = samplewise.reference.reduce(torch.cat(losses), problem.target_lengths, reduction)
    loss.backward(torch.ones_like(loss) if upstream is None else upstream)
    return loss.detach(), {name: leaf.grad for name, leaf in leaves.items()}


# --- the loss over a vocabulary --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [None, "logq"])
@pytest.mark.parametrize("blank", [0, 6, -1])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", METHODS)
def test_all_classes_are_the_full_loss(method, scope, blank, correction):
    """Also where size is more than V, and blank is first, last or in the middle."""
    problem = make((7, 4, 1), (3, 0, 2), vocab=13, dim=6, blank=blank, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    vocabulary = sample_vocabulary(
        problem.targets, problem.target_lengths, 13, 99, blank=blank, scope=scope, correction=correction, generator=generator
    )
    options = {"reduction": "none", "upstream": upstream(problem)}
    got, right = ours(problem, method=method, tolerance=0.0, vocabulary=vocabulary, **options), truth(problem, **options)
    assert error(got[0], right[0]) < 1e-13
    for name, gradient in got[1].items():
        assert error(gradient, right[1][name]) < 1e-12, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_volume", "mean_target"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("method", METHODS)
def test_loss_and_gradients_are_those_over_the_sampled_rows(method, scope, reduction, dtype):
    """And outside these rows the gradients of weight and bias are zero."""
    problem = make((9, 5, 1, 6), (4, 0, 2, 1), vocab=23, dim=5, blank=3, bias=reduction != "sum", dtype=dtype)
    vocabulary = sample_vocabulary(
        problem.targets, problem.target_lengths, 23, 9, blank=3, scope=scope, correction="logq",
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    weights = upstream(problem) if reduction == "none" else None
    got = ours(problem, method=method, reduction=reduction, vocabulary=vocabulary, tolerance=0.0, upstream=weights)
    right = sampled_truth(problem, vocabulary, reduction, weights)
    bound = 1e-12 if dtype == torch.float64 else 3e-6
    assert error(got[0], right[0]) < bound
    for name, gradient in got[1].items():
        assert error(gradient, right[1][name]) < bound, name
    outside = torch.ones(23, dtype=torch.bool)
    outside[vocabulary.classes[vocabulary.classes >= 0]] = False
    assert outside.any()
    assert (got[1]["weight"][outside] == 0).all() and (got[1]["weight"][~outside] != 0).any(1).all()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("wanted", [("weight",), ("encoder_out",), ("predictor_out", "bias"), ()])
def test_only_what_is_asked_for(wanted, scope):
    problem = make((9, 5), (4, 2), vocab=23, dim=5, dtype=torch.float64)
    vocabulary = sample_vocabulary(problem.targets, problem.target_lengths, 23, 9, scope=scope)
    got = run(transducer_loss, problem, wanted=wanted, vocabulary=vocabulary, reduction="sum", tolerance=0.0)
    right = sampled_truth(problem, vocabulary, "sum")
    assert error(got[0], right[0]) < 1e-12 and set(got[1]) == set(wanted)
    for name in wanted:
        assert error(got[1][name], right[1][name]) < 1e-12, name


@pytest.mark.parametrize("scope", SCOPES)
def test_autocast_rounds_the_sampled_rows_alone(scope):
    problem = make((30, 22), (7, 4), vocab=200, dim=16)
    vocabulary = sample_vocabulary(problem.targets, problem.target_lengths, 200, 40, scope=scope)
    with torch.autocast("cpu", torch.bfloat16):
        got = ours(problem, vocabulary=vocabulary, reduction="sum")
    right = sampled_truth(problem, vocabulary, "sum")
    assert got[0].dtype == torch.float32 and got[1]["weight"].dtype == torch.float32
    assert error(got[0], right[0]) < 2e-2
    for name, gradient in got[1].items():
        assert error(gradient, right[1][name]) < 5e-2, name


def test_torch_compile_and_the_module_take_a_vocabulary():
    problem = make((9, 5), (4, 2), vocab=23, dim=5)
    vocabulary = sample_vocabulary(problem.targets, problem.target_lengths, 23, 12, scope="utterance")
    inputs = list(problem.inputs.values())
    expected = transducer_loss(*inputs, vocabulary=vocabulary)
    assert torch.equal(samplewise.TransducerLoss()(*inputs, vocabulary=vocabulary), expected)
    compiled = torch.compile(lambda *x: transducer_loss(*x, vocabulary=vocabulary), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), expected)


def test_a_loss_that_is_not_finite_stays_with_its_utterance():
    problem = make((9, 5), (4, 2), vocab=23, dim=5)
    problem.encoder_out[0, 3, 1] = torch.nan
    vocabulary = sample_vocabulary(problem.targets, problem.target_lengths, 23, 9, scope="utterance")
    losses, gradients = ours(problem, vocabulary=vocabulary, reduction="none", upstream=torch.ones(2))
    assert torch.isnan(losses[0]) and torch.isfinite(losses[1])
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


# --- which classes ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 70), st.sampled_from(SCOPES), st.sampled_from([None, "logq"]),
    st.sampled_from(["uniform", "weights", "zeros", "ctc"]), st.integers(0, 2**31), st.data(),
)  # fmt: skip
def test_vocabularies_hold_blank_and_labels_and_no_class_twice(vocab, size, scope, correction, negatives, seed, data):
    """Ascending, of the right size, remapping undone by restoring, whatever the distribution and wherever the blank is."""
    blank = data.draw(st.integers(-vocab, vocab - 1))
    g = torch.Generator().manual_seed(seed)
    labels = torch.tensor([v for v in range(vocab) if v != blank % vocab] or [0])
    lengths = torch.randint(0, 6 if vocab > 1 else 1, (4,), generator=g)
    targets = labels[torch.randint(len(labels), (4, 5), generator=g)]
    distribution = {}
    if negatives == "weights":
        distribution["weights"] = torch.rand(vocab, generator=g)
    elif negatives == "zeros":
        distribution["weights"] = torch.rand(4, vocab, generator=g).masked_fill_(torch.rand(4, vocab, generator=g) < 0.8, 0.0)
    elif negatives == "ctc":
        scores = torch.randn(4, 7, vocab, generator=g) * 200  # most probabilities are exactly zero
        distribution = {"ctc_log_probs": scores.log_softmax(-1), "ctc_lengths": torch.tensor([7, 3, 0, 1])}
    vocabulary = sample_vocabulary(
        targets, lengths, vocab, size, blank=blank, scope=scope, correction=correction, generator=g, **distribution
    )
    assert vocabulary.blank == blank % vocab and vocabulary.vocab_size == vocab
    every = [set(row[:u].tolist()) | {blank % vocab} for row, u in zip(targets, lengths.tolist(), strict=True)]
    every = [set().union(*every)] if scope == "batch" else every
    for row, weights, always in zip(vocabulary.classes, vocabulary.log_weight, every, strict=True):
        classes = row[row >= 0].tolist()
        assert classes == sorted(set(classes)) and max(classes) < vocab and always <= set(classes)
        assert len(classes) == max(len(always), min(size, vocab)) and (row[len(classes) :] == -1).all()
        assert torch.isfinite(weights).all() and (weights[len(classes) :] == 0).all()
        assert all(float(w) == 0 for v, w in zip(classes, weights, strict=False) if v in always or correction is None)
    assert vocabulary.grown == sum(len(always) > size for always in every)
    columns = vocabulary.remap(targets)
    used = torch.arange(5)[None] < lengths[:, None]
    assert (columns[used] >= 0).all() and torch.equal(vocabulary.restore(columns.clamp(min=0))[used], targets[used])


@pytest.mark.parametrize("scope", SCOPES)
def test_draws_follow_the_generator(scope):
    def draw(seed):
        return sample_vocabulary(TARGETS, LENGTHS, 500, 40, scope=scope, generator=torch.Generator().manual_seed(seed)).classes

    assert torch.equal(draw(3), draw(3)) and not torch.equal(draw(3), draw(4))
    if scope == "utterance":
        assert not torch.equal(draw(3)[1], draw(3)[2])


def test_more_labels_than_size_all_stay_and_that_is_said(caplog):
    targets = torch.arange(1, 31).view(1, 30).repeat(2, 1)
    with caplog.at_level(logging.WARNING, logger="samplewise"):
        vocabulary = sample_vocabulary(targets, torch.tensor([30, 2]), 100, 8, correction="logq", scope="utterance")
    assert vocabulary.sizes.tolist() == [31, 8] and vocabulary.grown == 1
    assert "up to 31 classes, more than size 8" in caplog.text
    problem = make((40, 5), (30, 2), vocab=100, dim=4).replace(targets=targets)
    assert torch.isfinite(ours(problem, vocabulary=vocabulary)[0])
    just_fits = sample_vocabulary(targets, torch.tensor([30, 2]), 100, 31, scope="utterance")
    assert just_fits.sizes.tolist() == [31, 31] and just_fits.grown == 0


def test_likely_negatives_come_from_the_ctc_head():
    """Per utterance from its own frames; per batch from everybody's; frames beyond the length are never read."""
    scores = torch.full((3, 6, 50), -30.0)
    scores[0, :4, 10:14] = 0.0
    scores[1, :2, 20:24] = 0.0
    scores[2, :5, 30:34] = 0.0
    log_probs = scores.log_softmax(-1)
    lengths = torch.tensor([4, 2, 5])
    log_probs[1, 2:] = torch.nan
    vocabulary = sample_vocabulary(TARGETS, LENGTHS, 50, 5, ctc_log_probs=log_probs, ctc_lengths=lengths, scope="utterance")
    assert set(vocabulary.classes[0].tolist()) - {0, 5, 9} <= {10, 11, 12, 13}
    assert set(vocabulary.classes[1].tolist()) - {0, 7} <= {20, 21, 22, 23}
    assert set(vocabulary.classes[2].tolist()) - {0} == {30, 31, 32, 33}
    together = sample_vocabulary(TARGETS, LENGTHS, 50, 16, scope="batch", ctc_log_probs=log_probs, ctc_lengths=lengths)
    drawn = {*range(10, 14), *range(20, 24), *range(30, 34)}
    assert set(together.classes[0].tolist()) == {0, 5, 7, 9} | drawn
    assert torch.allclose(ctc_mass(log_probs, lengths).sum(1), lengths.double())


@pytest.mark.parametrize("negatives, size", [("uniform", 26), ("weights", 26), ("zeros", 26), ("zeros", 16), ("none", 16)])
@pytest.mark.parametrize("scope", SCOPES)
def test_the_corrected_softmax_denominator_is_right_on_average(negatives, size, scope):
    """The mean of sum over S of exp(h + log weight) over many draws is the sum over all classes, within its standard error."""
    g = torch.Generator().manual_seed(11)
    h = torch.randn(30, generator=g, dtype=torch.float64)
    weights = None if negatives == "uniform" else torch.rand(30, generator=g) ** 3 + 0.01
    if negatives == "zeros":  # 10 of 30 classes: of size 26 some of them must be drawn, of size 16 none
        weights[::3] = 0.0
    if negatives == "none":
        weights.zero_()
    draws = 20000 if scope == "utterance" else 1
    values = []
    for _ in range(1 if draws > 1 else 3000):
        one = torch.tensor([[4, 8]]).expand(draws, -1), torch.full((draws,), 2)
        vocabulary = sample_vocabulary(*one, 30, size, scope=scope, weights=weights, correction="logq", generator=g)
        values.append((h[vocabulary.classes] + vocabulary.log_weight).exp().sum(1))
    values = torch.cat(values)
    assert values.std() > 0
    assert abs(float(values.mean() - h.exp().sum())) < 4 * float(values.std()) / len(values) ** 0.5


def test_gradients_of_the_corrected_loss_are_nearer_to_the_full_ones_with_more_classes():
    problem = make((12, 9), (4, 3), vocab=60, dim=8, dtype=torch.float64)
    right = truth(problem, reduction="sum")[1]["encoder_out"]

    def distance(size):
        total = torch.zeros_like(right)
        for seed in range(20):
            vocabulary = sample_vocabulary(
                problem.targets,
                problem.target_lengths,
                60,
                size,
                correction="logq",
                generator=torch.Generator().manual_seed(seed),
            )
            total += ours(problem, vocabulary=vocabulary, reduction="sum")[1]["encoder_out"] / 20
        return error(total, right)

    assert distance(50) < distance(25) < distance(9)


# --- what is wrong, in words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "size is 0; it must be 1 or more"),
        ({"scope": "corpus"}, "scope is 'corpus'; it must be one of 'utterance', 'batch'"),
        ({"correction": "yes"}, "correction is 'yes'"),
        ({"vocab_size": 9}, "targets[0, 1] is 9, but there are 9 classes"),
        ({"blank": 5}, "targets[0, 0] is 5, but that is the blank"),
        ({"target_lengths": torch.tensor([3, 4, 0])}, "target_lengths[1] is 4, but targets holds 3 labels"),
        ({"weights": torch.ones(7)}, "weights must be (V,) = (50,) or (B, V) = (3, 50), but has shape (7,)"),
        ({"weights": -torch.ones(3, 50)}, "weights of utterance 0 are not all finite"),
        ({"weights": torch.tensor([[3.0], [1.0], [-1.0]]).expand(3, 50)}, "weights of utterance 2 are not all finite"),
        ({"weights": torch.full((50,), torch.inf)}, "weights are not all finite"),
        ({"ctc_log_probs": torch.randn(3, 4, 49)}, "ctc_log_probs must be (B, T', V) = (3, T', 50), but has shape (3, 4, 49)"),
        ({"ctc_log_probs": torch.full((3, 4, 50), 7.0)}, "ctc_log_probs holds 7, but a log-probability is at most 0"),
        ({"ctc_log_probs": torch.zeros(3, 4, 50), "ctc_lengths": torch.tensor([4, 5, 1])}, "ctc_lengths[1] is 5, but"),
        ({"ctc_log_probs": torch.full((3, 4, 50), torch.nan)}, "ctc_log_probs of utterance 0 are not all finite"),
        ({"ctc_log_probs": torch.zeros(3, 4, 50), "weights": torch.ones(50)}, "give one of them"),
        ({"ctc_lengths": torch.tensor([4, 5, 1])}, "ctc_lengths is of use with ctc_log_probs only"),
    ],
)
@pytest.mark.parametrize("scope", SCOPES)
def test_wrong_arguments_of_the_sampler(changes, message, scope):
    arguments = {"targets": TARGETS, "target_lengths": LENGTHS, "vocab_size": 50, "size": 5, "scope": scope}
    with pytest.raises(TransducerError) as raised:
        sample_vocabulary(**{**arguments, **changes})
    assert message in str(raised.value)


def test_wrong_vocabularies_of_the_loss():
    problem = make((9, 5), (4, 2), vocab=23, dim=5)
    targets, lengths = problem.targets, problem.target_lengths

    def message(vocabulary, **changes):
        with pytest.raises(TransducerError) as raised:
            ours(problem.replace(**changes), vocabulary=vocabulary)
        return str(raised.value)

    assert "vocabulary is a list" in message([1, 2])
    assert "sampled from 30 classes, but weight has 23 rows" in message(sample_vocabulary(targets, lengths, 30, 9))
    assert "with blank 0, but blank is 22" in message(sample_vocabulary(targets.clamp(max=21), lengths, 23, 9), blank=22)
    three = sample_vocabulary(targets[[0, 1, 1]], lengths[[0, 1, 1]], 23, 9, scope="utterance")
    assert "for 3 utterances, but the batch has 2" in message(three)
    other = (targets % 22 + 1).clamp(min=1)
    assert "targets[0, 0] is" in message(sample_vocabulary(targets, lengths, 23, 1), targets=other)
    with pytest.raises(TransducerError, match=r"targets\[4, 0\] is 3, which is not among the 2 classes"):
        positions(torch.tensor([0, 2]), torch.tensor([[3]]), [1], first=4)


# --- one set on every rank -------------------------------------------------------------------------------------------------


def rank_draws(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    targets = torch.tensor([[10 + rank, 20 + rank]])
    weights = torch.zeros(1000)
    weights[100 * (rank + 1) : 100 * (rank + 1) + 5] = 1.0
    generator = torch.Generator().manual_seed(rank)  # even so
    group = torch.distributed.group.WORLD
    vocabulary = sample_vocabulary(
        targets, torch.tensor([2]), 1000, 15, scope="batch", weights=weights, correction="logq", generator=generator,
        process_group=group,
    )  # fmt: skip
    torch.save((vocabulary.classes, vocabulary.log_weight), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or not torch.distributed.is_available(), reason="no gloo")
def test_one_set_on_every_rank(tmp_path):
    torch.multiprocessing.spawn(rank_draws, (str(tmp_path),), nprocs=2)
    (classes, weights), (other, others) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(classes, other) and torch.equal(weights, others)
    assert set(classes[0].tolist()) == {0, 10, 11, 20, 21, *range(100, 105), *range(200, 205)}


def test_process_groups_are_for_one_set_alone():
    with pytest.raises(TransducerError, match='needs scope "batch"'):
        sample_vocabulary(TARGETS, LENGTHS, 50, 5, scope="utterance", process_group=object())


def test_the_sampled_vocabulary_is_a_plain_record():
    vocabulary = SampledVocabulary(torch.tensor([[0, 4, 7]]), torch.zeros(1, 3), 9, 0)
    assert vocabulary.remap(torch.tensor([[7, 3], [4, 8]])).tolist() == [[2, -1], [1, -1]]
