"""The drop-in for NeMo against NeMo itself: `make test-peers` makes the environment. In float32, as NeMo computes."""

import copy
import logging

import pytest
import torch

import samplewise
from samplewise.integrations.nemo import RNNTLoss, patch, unpatch

rnnt_losses = pytest.importorskip("nemo.collections.asr.losses.rnnt", reason="NeMo is not installed: `make test-peers`")
from nemo.collections.asr.modules.hybrid_autoregressive_transducer import HATJoint  # noqa: E402
from nemo.collections.asr.modules.rnnt import RNNTJoint, SampledRNNTJoint  # noqa: E402

FRAMES, LABELS = torch.tensor([23, 11, 17, 1, 20]), torch.tensor([6, 0, 5, 3, 6])
TRANSCRIPTS = torch.randint(0, 12, (5, 6), generator=torch.Generator().manual_seed(2))
REDUCTIONS = ["mean_batch", "mean_volume", "sum", None, "mean"]
EMIT, BIG, DURATIONS = {"fastemit_lambda": 0.1}, {"big_blank_durations": [2, 4], "sigma": 0.05}, {"durations": [0, 1, 2, 3]}


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    """Their TDT in PyTorch moves tensors to CUDA without asking."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)


def close(got, right, slack=3e-5):
    """By the largest right number."""
    scale = right.abs().max().clamp(min=1e-12)
    assert got.shape == right.shape and ((got - right).abs().max() / scale).item() <= slack


def lengths(reduction):
    """Without empty transcripts where NeMo would divide by their length."""
    return LABELS.clamp(min=1) if reduction == "mean" else LABELS


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name, options, extra, blank", [
    ("default", EMIT, 0, 12), ("warprnnt_numba", {}, 0, 12), ("pytorch", {}, 0, 12), ("multiblank_rnnt_pytorch", BIG, 2, 14),
    ("tdt_pytorch", {**DURATIONS, "sigma": 0.05}, 4, 12),
])  # fmt: skip
def test_loss(name, options, extra, blank, reduction):
    logits = torch.randn(5, 23, 7, 13 + extra, generator=torch.Generator().manual_seed(1))
    found = []
    for kind in (rnnt_losses.RNNTLoss, RNNTLoss):
        leaf = logits.clone().requires_grad_()
        loss = kind(num_classes=blank, reduction=reduction, loss_name=name, loss_kwargs=dict(options))
        value = loss(log_probs=leaf, targets=TRANSCRIPTS, input_lengths=FRAMES, target_lengths=lengths(reduction))
        (value * torch.arange(1.0, 1 + value.numel()).reshape(value.shape)).sum().backward()
        found.append((value.detach(), leaf.grad))
    assert found[0][0].dtype == found[1][0].dtype
    paths = found[1][0].isfinite()  # their TDT says about 1000 where there is none
    if reduction is None:
        close(found[1][0][paths], found[0][0][paths])
        close(found[1][1][paths], found[0][1][paths])
    elif paths:
        close(found[1][0], found[0][0])
        close(found[1][1], found[0][1])


def test_clamp_is_theirs_where_nothing_scales_the_loss():
    """On the CPU they bound after the reduction: the same with "sum", another bound with a mean."""
    logits = torch.randn(5, 23, 7, 13, generator=torch.Generator().manual_seed(1))
    gradients = {}
    for reduction in ("sum", "mean_batch"):
        for kind in (rnnt_losses.RNNTLoss, RNNTLoss):
            leaf = logits.clone().requires_grad_()
            loss = kind(num_classes=12, reduction=reduction, loss_kwargs={"clamp": 0.1})
            loss(log_probs=leaf, targets=TRANSCRIPTS, input_lengths=FRAMES, target_lengths=LABELS).backward()
            gradients[reduction, kind is RNNTLoss] = leaf.grad
    close(gradients["sum", True], gradients["sum", False])
    close(gradients["mean_batch", True] * 5, gradients["sum", False])
    assert (gradients["mean_batch", False] * 5).abs().max() > 0.1 + 1e-3


def test_settings_are_read_from_their_losses():
    for name, options, extra in (("tdt", {**DURATIONS, "omega": 0.1, "sigma": 0.02, "clamp": 0.5}, 4), ("default", EMIT, 0),
                                 ("multiblank_rnnt", BIG, 2), ("tdt_pytorch", DURATIONS, 4), ("pytorch", {}, 0)):  # fmt: skip
        theirs = rnnt_losses.RNNTLoss(num_classes=12, reduction="mean_volume", loss_name=name, loss_kwargs=dict(options))
        ours, read = RNNTLoss(12, "mean_volume", name, options), RNNTLoss.of(theirs)
        for setting in ("topology", "blank", "reduction", "fastemit_lambda", "omega"):
            assert getattr(read, setting) == getattr(ours, setting), (name, setting)
        assert max(read.clamp, 0) == max(ours.clamp, 0) and read.topology.extra in (0, extra)


def made(kind=RNNTJoint, activation="relu", dropout=0.0, loss_name="default", options=None, reduction="mean_batch", **more):
    torch.manual_seed(5)
    extra, blank = {"multiblank_rnnt_pytorch": (2, 14), "tdt_pytorch": (4, 12)}.get(loss_name, (0, 12))
    sizes = {"encoder_hidden": 16, "pred_hidden": 14, "joint_hidden": 20, "activation": activation, "dropout": dropout}
    more |= {"num_extra_outputs": extra} if extra else {}
    joint = kind(sizes, num_classes=12, fuse_loss_wer=True, fused_batch_size=more.pop("fused_batch_size", 2), **more)
    kwargs = None if options is None else dict(options)
    joint.set_loss(rnnt_losses.RNNTLoss(num_classes=blank, reduction=reduction, loss_name=loss_name, loss_kwargs=kwargs))
    joint.set_wer(Metric())
    return joint


class Metric(torch.nn.Module):
    _to_sync = True

    def update(self, predictions, predictions_lengths, targets, targets_lengths):
        self.errors, self.words = predictions_lengths.sum().float(), targets_lengths.sum().float()

    def compute(self):
        return self.errors / self.words, self.errors, self.words

    def reset(self):
        pass


def run(joint, labels=LABELS, seed=0, **changes):
    joint.zero_grad()
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(5, size, n, generator=generator).requires_grad_() for size, n in ((16, 23), (14, 7))]
    torch.manual_seed(seed)
    given = {"encoder_lengths": FRAMES, "transcripts": TRANSCRIPTS, "transcript_lengths": labels, "compute_wer": True} | changes
    loss, *rest = joint(encoder_outputs=inputs[0], decoder_outputs=inputs[1], **given)
    (loss * torch.arange(1.0, 1 + loss.numel()).reshape(loss.shape)).sum().backward()
    return loss.detach(), [x.grad for x in (*inputs, *joint.parameters())], rest


def assert_same(joint, labels=LABELS, **changes):
    loss, gradients, (_, errors, words) = run(joint, labels, **changes)
    again, others, (wer, all_errors, all_words) = run(patch(joint), labels, **changes)
    assert "forward" in vars(joint) and again.dtype == loss.dtype
    close(again, loss)
    for got, right in zip(others, gradients, strict=True):
        close(got, right, 1e-4)
    assert (all_errors, all_words) == (errors, words) and wer == errors / words
    close(run(unpatch(joint), labels, **changes)[0], loss)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind, loss_name, options", [
    (RNNTJoint, "default", EMIT), (RNNTJoint, "pytorch", None), (RNNTJoint, "multiblank_rnnt_pytorch", BIG),
    (HATJoint, "default", EMIT),
])  # fmt: skip
def test_fused_joint(kind, loss_name, options, reduction):
    activation = "tanh" if kind is HATJoint else "relu"
    joint = made(kind, activation, loss_name=loss_name, options=options, reduction=reduction)
    assert_same(joint.train(), lengths(reduction))
    assert_same(joint.eval(), lengths(reduction))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_activations_and_dropout_out_of_training(activation):
    assert_same(made(activation=activation, dropout=0.2).eval())


def test_dropout_in_training_has_their_expectation():
    """Means over many masks: the two agree within the spread of these means."""
    joint, means = made(dropout=0.2).train(), []
    for _ in range(2):
        found = torch.stack([run(joint, seed=seed)[0] for seed in range(40)])
        means.append((found.mean(), found.std() / len(found) ** 0.5))
        patch(joint)
    (one, spread), (other, also) = means
    assert spread > 0 and also > 0 and (one - other).abs() < 5 * (spread**2 + also**2).sqrt()
    assert (one - run(joint.eval())[0]).abs() > 1e-4


def test_tdt_of_theirs_in_pytorch():
    """It takes no utterance without a path."""
    assert_same(made(loss_name="tdt_pytorch", options={**DURATIONS, "sigma": 0.05}))


def test_temperature_and_masking():
    joint = made()
    joint.temperature = 2.0
    assert_same(joint)
    assert_same(made(masking_prob=0.5, fused_batch_size=5).train())


def test_hat_of_another_activation():
    assert_same(made(HATJoint, "relu"))


def test_sampled_joint_with_all_classes_is_the_full_one():
    """Theirs is, too, if the smallest of the transcripts' numbers, padding included, is no label: that one they take for the
    blank."""
    labels = torch.where(torch.arange(6) < LABELS[:, None], TRANSCRIPTS.clamp(min=1), 0)
    joint = made(SampledRNNTJoint, n_samples=12, fused_batch_size=5).train()
    assert_same(joint, transcripts=labels)
    theirs, right = run(joint)[0], run(made())[0]
    assert (TRANSCRIPTS == 0).any() and (theirs - right).abs() > 1e-3
    close(run(patch(joint))[0], right)


def test_copies_and_hypotheses():
    joint = patch(made())
    other = copy.deepcopy(joint)
    assert other.forward.joint is other
    close(run(other)[0], run(joint)[0])
    loss, wer, errors, words = joint(
        encoder_outputs=torch.zeros(5, 16, 23), decoder_outputs=None, encoder_lengths=FRAMES, transcripts=TRANSCRIPTS,
        transcript_lengths=LABELS, compute_wer=True,
    )  # fmt: skip
    assert loss is None and (errors, words) == (72, 20) and wer == errors / words


def model(fused: bool, loss_name="default", durations=None):
    """A tiny model of characters, on random sound."""
    from nemo.collections.asr.models import EncDecRNNTModel
    from omegaconf import DictConfig

    labels = list(" abcdefghijk")
    settings = {"warprnnt_numba_kwargs": {"fastemit_lambda": 0.01}, "tdt_kwargs": {"durations": durations, "sigma": 0.05}}
    config = {
        "labels": labels, "model_defaults": {"enc_hidden": 16, "pred_hidden": 14}, "rnnt_reduction": "mean_volume",
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "features": 16, "sample_rate": 16000,
            "dither": 0.0, "pad_to": 0,
        },
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_in": 16, "n_layers": 1, "d_model": 16,
            "n_heads": 2, "subsampling_conv_channels": 8, "conv_kernel_size": 3, "dropout": 0.0, "dropout_pre_encoder": 0.0,
            "dropout_emb": 0.0, "dropout_att": 0.0,
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "prednet": {"pred_hidden": 14, "pred_rnn_layers": 1, "t_max": None, "dropout": 0.0},
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint", "fuse_loss_wer": fused, "fused_batch_size": 2,
            "num_extra_outputs": len(durations or ()),
            "jointnet": {"joint_hidden": 20, "activation": "relu", "dropout": 0.0},
        },
        "loss": {"loss_name": loss_name, **settings},
        "decoding": {
            "strategy": "greedy_batch", "greedy": {"max_symbols": 5},
            **({"durations": durations, "model_type": "tdt"} if durations else {}),
        },
        "optim": {"name": "sgd", "lr": 0.1},
    }  # fmt: skip
    torch.manual_seed(7)
    return EncDecRNNTModel(cfg=DictConfig(config))


def trained(nemo_model):
    """The parameters after one step of Lightning's trainer."""
    from lightning.pytorch import Trainer

    generator = torch.Generator().manual_seed(8)
    sound, text = torch.randn(3, 24000, generator=generator), torch.randint(1, 12, (3, 7), generator=generator)
    batch = (sound, torch.tensor([24000, 16000, 20000]), text, torch.tensor([7, 3, 5]))
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, log_every_n_steps=1)  # fmt: skip
    nemo_model.set_trainer(trainer)
    torch.manual_seed(9)
    trainer.fit(nemo_model, train_dataloaders=torch.utils.data.DataLoader([batch], batch_size=None))
    return trainer.callback_metrics["train_loss"], {name: x.detach() for name, x in nemo_model.named_parameters()}


@pytest.mark.parametrize("fused", [True, False])
def test_a_model_trains_the_same(fused):
    logging.getLogger("nemo_logger").setLevel(logging.ERROR)
    stock, ours = model(fused), patch(model(fused))
    assert ours.joint.fuse_loss_wer
    (loss, right), (again, got) = trained(stock), trained(ours)
    close(again, loss)
    fresh = dict(model(fused).named_parameters())
    for name in right:
        close(got[name], right[name], 1e-4)
    assert sum((right[name] != fresh[name]).any().item() for name in right) > 20


def test_tdt_trains_on_the_cpu():
    """Their own loss is for CUDA alone."""
    ours = patch(model(True, "tdt", [0, 1, 2, 3, 4]))
    before = {name: x.detach().clone() for name, x in ours.named_parameters()}
    loss, after = trained(ours)
    assert loss.isfinite() and (after["joint.joint_net.1.weight"] != before["joint.joint_net.1.weight"]).any()
    assert samplewise.topology.tdt(range(5), 0.05) == RNNTLoss.of(ours.loss).topology
