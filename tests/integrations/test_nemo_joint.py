"""The patch of NeMo's joints against a stand-in's own path through the 4-D tensor: losses, gradients, metric, bad input."""

import copy
import logging
import pickle
import random

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.integrations import nemo_joint
from samplewise.integrations.nemo import RNNTLoss, patch, unpatch
from tests.integrations.nemo_stand_in import HATJoint, Metric, Model, RNNTJoint, SampledRNNTJoint
from tests.integrations.test_nemo import GraphWTransducerLoss, OfNemo, TDTLossNumba

FRAMES, LABELS = torch.tensor([9, 5, 7, 1, 8]), torch.tensor([4, 0, 2, 3, 4])
TRANSCRIPTS = torch.randint(0, 10, (5, 6), generator=torch.Generator().manual_seed(2))
DURATIONS = {"durations": [0, 1, 2], "sigma": 0.05}
BIG = {"big_blank_durations": [2, 4], "sigma": 0.05}


def encodings():
    generator = torch.Generator().manual_seed(3)
    shapes = (5, 8, 10), (5, 7, 7)  # (B, features, T), (B, features, U+1), more than the longest needs
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def made(kind=RNNTJoint, activation="tanh", dropout=0.0, loss_name="default", options=None, reduction="mean_batch", **more):
    """A joint of 10 labels with its loss; `options` are those of the loss."""
    torch.manual_seed(5)
    extra = {"tdt": 3, "multiblank_rnnt": 2}.get(loss_name, 0)
    more |= {"num_extra_outputs": extra} if extra else {}
    sizes = {"encoder_hidden": 8, "pred_hidden": 7, "joint_hidden": 6, "activation": activation, "dropout": dropout}
    joint = kind(sizes, 10, **more).double()
    blank = 10 + (extra if loss_name == "multiblank_rnnt" else 0)
    joint.set_loss(RNNTLoss(blank, reduction, loss_name, options))
    joint.set_wer(Metric())
    return joint


def run(joint, seed=None, **changes):
    """The loss, and gradients by the encodings and the parameters."""
    joint.zero_grad()
    inputs = encodings()
    given = dict(zip(("encoder_outputs", "decoder_outputs"), inputs, strict=True))
    given |= {"encoder_lengths": FRAMES, "transcripts": TRANSCRIPTS, "transcript_lengths": LABELS}
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
    loss, *rest = joint(**given | changes)
    loss.backward(torch.arange(1.0, 1 + loss.numel(), dtype=loss.dtype).reshape(loss.shape))
    assert rest == [None] * 3
    return loss.detach(), [x.grad for x in (*inputs, *joint.parameters())]


def forbid(joint):
    """From here on an error where the joint's own layers run."""

    def fail(*_):
        raise AssertionError("the 4-D tensor is made")

    joint.joint_net[-1].register_forward_hook(fail)


def assert_same(joint, seed=None, dense=False):
    """The patched joint and its own forward agree."""
    loss, gradients = run(joint, seed)
    patched = patch(joint)
    if not dense:
        forbid(patched)
    again, other = run(patched, seed)
    torch.testing.assert_close(again, loss)
    for got, right in zip(other, gradients, strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(got, right, atol=1e-10, rtol=1e-6)
    return loss


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("reduction", ["mean_batch", "mean", "mean_volume", "sum", None])
@pytest.mark.parametrize("kind, loss_name, options", [
    (RNNTJoint, "default", {"fastemit_lambda": 0.1}), (RNNTJoint, "tdt", DURATIONS), (RNNTJoint, "multiblank_rnnt", BIG),
    (HATJoint, "pytorch", {}),
])  # fmt: skip
def test_loss_and_gradients(kind, loss_name, options, reduction, training):
    assert_same(made(kind, loss_name=loss_name, options=options, reduction=reduction).train(training))


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_activations(activation):
    assert_same(made(activation=activation))


def test_dropout_is_off_in_evaluation_and_inside_the_loss_in_training():
    for kind in (RNNTJoint, HATJoint):
        joint = made(kind, dropout=0.5)
        assert_same(joint.eval())
        forbid(joint.train())
        loss, gradients = run(joint, seed=3)
        torch.manual_seed(3)
        acoustic, label = joint.enc(encodings()[0].transpose(1, 2)), joint.pred(encodings()[1].transpose(1, 2))
        weight, bias = joint.joint_net[2].weight, joint.joint_net[2].bias
        if kind is HATJoint:
            weight, bias = torch.cat((weight, joint.blank_pred[2].weight)), torch.cat((bias, joint.blank_pred[2].bias))
        right = samplewise.transducer_loss(
            acoustic, label, weight, bias, TRANSCRIPTS, FRAMES, LABELS, blank=10, dropout=0.5,
            topology="hat" if kind is HATJoint else "regular",
        )  # fmt: skip
        torch.testing.assert_close(loss, right)
        joint.zero_grad()
        right.backward()
        torch.testing.assert_close(gradients[2], joint.enc.weight.grad)
        assert (loss - run(joint.eval())[0]).abs() > 1e-3


@pytest.mark.parametrize("log_softmax", [None, True, False])
def test_temperature_counts_where_nemo_divides_by_it(log_softmax):
    losses = []
    for temperature in (1.0, 2.0):
        joint = made(log_softmax=log_softmax)
        joint.temperature = temperature
        losses.append(assert_same(joint))
    assert (losses[0] == losses[1]) == (log_softmax is False)


def test_masking_zeroes_rows_of_the_predictor():
    """With the whole batch as one part, NeMo's draws are ours."""
    joint = made(masking_prob=0.5, fused_batch_size=5).train()
    masked = run(joint, seed=1)[0]
    torch.manual_seed(1)
    wide = torch.rand(5, 7, 1) > 0.5
    patch(joint)
    loss, _ = run(joint, seed=1)
    acoustic, label = joint.enc(encodings()[0].transpose(1, 2)), joint.pred(encodings()[1].transpose(1, 2))
    head = joint.joint_net[-1]
    integers = (TRANSCRIPTS, FRAMES, LABELS)
    torch.testing.assert_close(
        loss, samplewise.transducer_loss(acoustic, label * wide, head.weight, head.bias, *integers, blank=10)
    )
    assert masked != loss  # fewer rows are drawn where they are cut before: see below
    exact = made(masking_prob=0.5, fused_batch_size=5).train()
    cut = {"decoder_outputs": encodings()[1][..., :5].detach()}
    right = run(exact, seed=1, **cut)[0]
    torch.testing.assert_close(run(patch(exact), seed=1, **cut)[0], right)
    torch.testing.assert_close(run(exact.eval())[0], run(made())[0])


def test_omega_leaves_durations_out():
    joint = made(loss_name="tdt", options={**DURATIONS, "omega": 1.0}, fused_batch_size=5)
    assert_same(joint)
    assert (joint.joint_net[-1].weight.grad[11:] == 0).all() and (joint.joint_net[-1].weight.grad[:11] != 0).any()


def test_clamp_bounds_what_nemo_bounds_on_cuda():
    assert_same(made(options={"clamp": 0.05}, log_softmax=False))


@pytest.mark.parametrize("change, reason", [
    ({"kind": HATJoint, "activation": "relu"}, "its blank is read from tanh of the sum, its labels from relu"),
    ({"kind": HATJoint, "activation": "sigmoid"}, "its labels from sigmoid"), ({"adapter": True}, "it has adapters"),
    ({"loss_name": "tdt", "options": {**DURATIONS, "omega": 1.0}, "adapter": True}, "it has adapters"),
    ({"loss_name": "tdt", "options": DURATIONS, "adapter": True}, "it has adapters"),
    ({"layer": True}, "its joint_net is Tanh, Sequential"),
])  # fmt: skip
def test_other_joints_go_through_their_own_layers_one_utterance_at_a_time(change, reason, caplog):
    nemo_joint._say_once.cache_clear()
    adapter, layer = change.pop("adapter", False), change.pop("layer", False)
    joint = made(**change)
    if adapter:
        joint.adapter = nn.Linear(6, 6).double()
    if layer:
        joint.joint_net[-1] = nn.Sequential(joint.joint_net[-1], nn.Linear(11, 11).double())
    with caplog.at_level(logging.WARNING, "samplewise"):
        assert_same(joint, dense=True)
    assert reason in caplog.text


def test_dropouts_of_a_hat_that_differ_are_kept_by_its_own_layers(caplog):
    nemo_joint._say_once.cache_clear()
    joint = made(HATJoint, dropout=0.5).train()
    joint.blank_pred[1].p = 0.25
    with caplog.at_level(logging.WARNING, "samplewise"):
        run(patch(joint))
    assert "its labels from tanh, with dropout 0.25 and 0.5" in caplog.text


def test_the_metric_sees_the_whole_batch():
    joint = patch(made()).train()
    enc, dec = encodings()
    given = (enc, dec, FRAMES, TRANSCRIPTS, LABELS)
    loss, wer, errors, words = joint(*given, compute_wer=True, keep_hypotheses=True)
    assert loss.requires_grad and (errors, words) == (30, 13) and wer == errors / words
    assert joint.wer.synchronised == [False] and joint.wer._to_sync and joint.wer.seen is None
    assert joint.hypotheses == ["hypothesis"] * 5
    assert joint(*given)[1:] == (None, None, None) and joint.hypotheses is None
    found = joint.eval()(enc, None, FRAMES, TRANSCRIPTS, LABELS, compute_wer=True)
    assert found == (None, wer, 30, 13) and joint.wer.synchronised == [False, True]


def test_a_metric_that_fails_leaves_its_synchronisation():
    joint = patch(made()).train()
    joint.wer.compute = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        joint(*encodings(), FRAMES, TRANSCRIPTS, LABELS, compute_wer=True)
    assert joint.wer._to_sync


def test_a_model_that_is_not_fused_becomes_so_until_unpatched():
    joint = made(fuse_loss_wer=False)
    model = Model(joint, joint.loss, joint.wer)
    joint.set_fuse_loss_wer(False)
    whole = joint(*encodings())
    assert whole.shape == (5, 10, 7, 11)
    assert patch(model) is model and joint.fuse_loss_wer and joint.loss is model.loss and joint.wer is model.wer
    loss = run(joint)[0]
    torch.testing.assert_close(loss, model.loss(whole, TRANSCRIPTS, FRAMES, LABELS))
    patch(model, memory_budget="4MiB", method="tiled")  # once more, with other options
    torch.testing.assert_close(run(joint)[0], loss)
    assert unpatch(model) is model and not joint.fuse_loss_wer and joint.loss is None and "forward" not in vars(joint)
    torch.testing.assert_close(joint(*encodings()), whole)


def test_decoding_and_export_use_nemos_forward():
    joint = patch(made())
    joint.fuse_loss_wer = False
    assert joint(encoder_outputs=encodings()[0], decoder_outputs=encodings()[1]).shape == (5, 10, 7, 11)


def test_copies_are_patched_on_their_own():
    joint = patch(made(), memory_budget="2MiB")
    for other in (copy.deepcopy(joint), pickle.loads(pickle.dumps(joint))):
        assert other.forward.joint is other and other.forward.options["memory_budget"] == "2MiB"
        with torch.no_grad():
            other.enc.weight.zero_()
        assert run(other)[0] != run(joint)[0]
        unpatch(other)
        assert "forward" not in vars(other)
    assert "forward" in vars(joint) and joint.state_dict().keys() == made().state_dict().keys()


def test_sampled_vocabulary():
    """All classes give the full loss; a few give less, and gradients to few rows; evaluation is full."""
    full = made()
    right = run(full)[0]
    torch.testing.assert_close(run(patch(made(SampledRNNTJoint, n_samples=10)).train())[0], right)
    few = made(SampledRNNTJoint, n_samples=1).train()
    few.loss.reduction = full.loss.reduction = None
    loss, _ = run(patch(few), transcripts=torch.full_like(TRANSCRIPTS, 4))
    right = run(full, transcripts=torch.full_like(TRANSCRIPTS, 4))[0]
    assert (loss < right).all()
    assert (few.joint_net[-1].weight.grad != 0).any(1).sum() in (2, 3)
    torch.testing.assert_close(run(few.eval(), transcripts=torch.full_like(TRANSCRIPTS, 4))[0], right)


def test_losses_of_nemo_are_read_at_every_call():
    joint = made(loss_name="tdt", options=DURATIONS)
    inner = TDTLossNumba()
    inner.blank, inner.omega, inner.fastemit_lambda = 10, 0.0, 0.0
    joint.set_loss(OfNemo(inner, "sum"))
    total = run(patch(joint))[0]
    joint.loss.reduction = "mean_batch"
    torch.testing.assert_close(run(joint)[0] * 5, total)
    torch.testing.assert_close(run(made(loss_name="tdt", options=DURATIONS, reduction="sum"))[0], total)


@pytest.mark.parametrize("changes, message", [
    ({"encoder_lengths": FRAMES + 2}, r"^encoder_lengths\[0\] is 11, but encoder_outputs has 10 frames"),
    ({"transcript_lengths": LABELS + 3}, r"^transcript_lengths\[0\] is 7, but transcripts holds 6 labels"),
    ({"transcripts": TRANSCRIPTS + 10 - TRANSCRIPTS[0, 0]}, r"^transcripts\[0, 0\] is 10, but that is the blank"),
    ({"transcripts": None}, "^transcripts is None; it must be a tensor"),
    ({"encoder_lengths": None}, "^encoder_lengths is None; it must be a tensor"),
    ({"encoder_outputs": torch.zeros(5, 10, 8)}, r"^encoder_outputs must be \(B, 8, length\), features first"),
    ({"decoder_outputs": torch.zeros(5, 7)}, r"^decoder_outputs must be"),
    ({"decoder_outputs": torch.zeros(4, 7, 7).double()}, "^decoder_outputs has 4 utterances, but encoder_outputs has 5"),
])  # fmt: skip
def test_bad_input_is_named_as_nemo_names_it(changes, message):
    with pytest.raises(TransducerError, match=message):
        run(patch(made()), **changes)


def refused(joint, message):
    with pytest.raises(TransducerError, match=message):
        patch(joint)
    assert "forward" not in vars(joint)


def test_what_cannot_be_patched_is_refused_by_name():
    refused(nn.Linear(3, 3), "model is a Linear; it must be a NeMo model with an RNNTJoint")
    refused(made(fuse_loss_wer=False), "the joint computes no loss: give the model to patch")
    refused(made(loss_name="tdt", options={**DURATIONS, "clamp": 0.1}), "clamp is 0.1, but without the 4-D tensor")
    refused(made(HATJoint, options={"clamp": 0.1}), "clamp is 0.1, but without the 4-D tensor")
    for kind, more in ((HATJoint, {}), (SampledRNNTJoint, {"n_samples": 3})):
        joint = made(kind, **more)
        joint.set_loss(RNNTLoss(10, loss_name="tdt", loss_kwargs=DURATIONS))
        refused(joint, f"the joint is a {kind.__name__}, but its loss is 'tdt'")
    joint = made()
    joint.set_loss(RNNTLoss(11))
    refused(joint, "num_classes 11, the blank's class, but the joint has 11 outputs, 0 of them for durations")
    joint.set_loss(OfNemo(GraphWTransducerLoss(), "sum"))
    refused(joint, "the loss is a OfNemo of GraphWTransducerLoss; it must be")
    joint = made()
    joint.forward = print
    with pytest.raises(TransducerError, match="the joint's forward has been replaced by <built-in function print>"):
        patch(joint)


def test_what_shows_only_in_a_call():
    joint = patch(made())
    joint.set_wer(None)
    with pytest.raises(TransducerError, match="compute_wer is True, but the joint has no metric"):
        joint(*encodings(), FRAMES, TRANSCRIPTS, LABELS, compute_wer=True)
    joint.set_loss(None)
    with pytest.raises(TransducerError, match="fuse_loss_wer is set, but the joint has no loss"):
        run(joint)
    clamped = patch(made(options={"clamp": 0.1}))
    clamped.adapter = nn.Linear(6, 6).double()
    with pytest.raises(TransducerError, match="no sampled vocabulary and no clamp, as it has adapters"):
        run(clamped)


def test_half_precision_and_autocast():
    joint = patch(made().float())
    right = run(made())[0]
    inputs = [x.float() for x in encodings()]
    with torch.autocast("cpu", torch.bfloat16):
        loss = joint(*inputs, FRAMES, TRANSCRIPTS, LABELS)[0]
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), right, rtol=0.02, atol=0.0)


def test_a_model_whose_loss_is_refused_stays_as_it_was():
    joint = made(fuse_loss_wer=False)
    joint.set_fuse_loss_wer(False)
    for loss, message in ((OfNemo(GraphWTransducerLoss(), "sum"), "the loss is a OfNemo"), (None, "the joint has no loss")):
        model = Model(joint, loss, Metric())
        with pytest.raises(TransducerError, match=message):
            patch(model)
        assert not joint.fuse_loss_wer and "forward" not in vars(joint)


@pytest.mark.parametrize("options, message", [
    ({"method": "tield"}, "method is 'tield'; it must be"), ({"memory_budget": "many"}, "memory_budget is 'many'"),
    ({"tolerance": 2}, "tolerance is 2; it must be"),
])  # fmt: skip
def test_options_are_checked_at_once(options, message):
    with pytest.raises(TransducerError, match=message):
        patch(made(), **options)
