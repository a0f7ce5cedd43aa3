"""Joints with the attributes and the arithmetic of NeMo's, and a metric: what the patch touches of them."""

from __future__ import annotations

import torch
from torch import nn


class RNNTJoint(nn.Module):
    """Linear + linear, activation, dropout, linear; NeMo's fused path: parts of the batch, their 4-D tensors, then the loss."""

    def __init__(
        self, jointnet, num_classes, num_extra_outputs=0, log_softmax=None, fuse_loss_wer=True, fused_batch_size=2,
        masking_prob=-1.0,
    ):  # fmt: skip
        super().__init__()
        self.encoder_hidden, self.pred_hidden = jointnet["encoder_hidden"], jointnet["pred_hidden"]
        self.activation, dropout = jointnet["activation"], jointnet.get("dropout", 0.0)
        self.num_classes_with_blank, self.num_extra_outputs = num_classes + 1 + num_extra_outputs, num_extra_outputs
        self.log_softmax, self.masking_prob, self.temperature = log_softmax, masking_prob, 1.0
        self.fuse_loss_wer, self.fused_batch_size = fuse_loss_wer, fused_batch_size
        self._loss = self._wer = self.hypotheses = self.adapter = None
        width = jointnet["joint_hidden"]
        self.enc, self.pred = nn.Linear(self.encoder_hidden, width), nn.Linear(self.pred_hidden, width)
        squash = {"relu": nn.ReLU(inplace=True), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}[self.activation]
        drop = [nn.Dropout(dropout)] if dropout else []
        self.joint_net = nn.Sequential(squash, *drop, nn.Linear(width, self.outputs()))

    def outputs(self):
        return self.num_classes_with_blank

    loss = property(lambda self: self._loss)
    wer = property(lambda self: self._wer)

    def set_loss(self, loss):
        self._loss = loss

    def set_wer(self, wer):
        self._wer = wer

    def set_fuse_loss_wer(self, fuse_loss_wer, loss=None, metric=None):
        self.fuse_loss_wer, self._loss, self._wer = fuse_loss_wer, loss, metric

    def is_adapter_available(self):
        return self.adapter is not None

    def project_encoder(self, encoder_output):
        return self.enc(encoder_output)

    def project_prednet(self, prednet_output):
        return self.pred(prednet_output)

    def joint(self, f, g):
        return self.joint_after_projection(self.project_encoder(f), self.project_prednet(g))

    def added(self, f, g):
        total = f[:, :, None] + g[:, None]  # (B, T, U+1, D)
        return total if self.adapter is None else total + self.adapter(total)

    def joint_after_projection(self, f, g):
        if self.training and self.masking_prob > 0:
            g = g * (torch.rand(len(g), 1, g.shape[1], 1)[:, 0] > self.masking_prob)
        scores = self.joint_net(self.added(f, g))
        if self.log_softmax or self.log_softmax is None:  # here the device is the host
            return (scores / self.temperature).log_softmax(-1)
        return scores

    def forward(
        self, encoder_outputs, decoder_outputs, encoder_lengths=None, transcripts=None, transcript_lengths=None,
        compute_wer=False, keep_hypotheses=False,
    ):  # fmt: skip
        f, g = encoder_outputs.transpose(1, 2), decoder_outputs.transpose(1, 2)
        if not self.fuse_loss_wer:
            return self.joint(f, g)
        losses, reduction, parts = [], self.loss.reduction, []
        for start in range(0, len(f), self.fused_batch_size):
            part = slice(start, start + self.fused_batch_size)
            frames, labels = encoder_lengths[part], transcript_lengths[part]
            scores = self.joint(f[part, : frames.max()], g[part, : labels.max() + 1])
            self.loss.reduction = None
            targets = transcripts[part, : labels.max()]
            losses.append(self.loss(log_probs=scores, targets=targets, input_lengths=frames, target_lengths=labels))
            self.loss.reduction = reduction
            parts.append(labels)
        return self.loss.reduce(losses, parts), None, None, None


class HATJoint(RNNTJoint):
    """The blank is read by a head of its own, from tanh of the sum."""

    def __init__(self, jointnet, num_classes, **options):
        super().__init__(jointnet, num_classes, **options)
        head = nn.Linear(jointnet["joint_hidden"], 1)
        self.blank_pred = nn.Sequential(nn.Tanh(), nn.Dropout(jointnet.get("dropout", 0.0)), head, nn.LogSigmoid())

    def outputs(self):
        return self.num_classes_with_blank - 1

    def joint_after_projection(self, f, g):
        total = self.added(f, g)
        blank = self.blank_pred(total)
        labels = self.joint_net(total).log_softmax(-1)
        return torch.cat(((1 - blank.exp()).clamp(min=1e-6).log() + labels, blank), -1)


class SampledRNNTJoint(RNNTJoint):
    def __init__(self, jointnet, num_classes, n_samples, **options):
        super().__init__(jointnet, num_classes, **options)
        self.n_samples = n_samples


class Metric(nn.Module):
    """Of NeMo's WER the calls; an error is a frame of the batch, a word is a label."""

    def __init__(self):
        super().__init__()
        self._to_sync, self.seen, self.synchronised = True, None, []

    def update(self, predictions, predictions_lengths, targets, targets_lengths):
        assert not predictions.requires_grad
        self.seen = (predictions.shape, targets.shape, predictions_lengths.sum().float(), targets_lengths.sum().float())

    def get_hypotheses(self):
        return ["hypothesis"] * self.seen[0][0]

    def compute(self):
        self.synchronised.append(self._to_sync)
        return self.seen[2] / self.seen[3], self.seen[2], self.seen[3]

    def reset(self):
        self.seen = None


class Model(nn.Module):
    def __init__(self, joint, loss, wer):
        super().__init__()
        self.joint, self.loss, self.wer = joint, loss, wer
