"""Training over sampled classes: which are drawn, what the losses are called, and a run that goes on as if unbroken."""

from __future__ import annotations

import json

import pytest
import torch

import samplewise
from samplewise.asr import model as models
from samplewise.asr import train as training
from samplewise.asr.checkpoint import checkpoints
from samplewise.asr.errors import UserError
from samplewise.asr.meters import StepTimes, summary
from samplewise.asr.model import Transducer
from samplewise.asr.tokenizer import CharacterTokenizer, class_counts
from samplewise.asr.train import train

from .made import tiny_recipe

CLASSES = 12


def network(**sampling) -> Transducer:
    torch.manual_seed(1)
    recipe = tiny_recipe(encoder__dropout=0.0, predictor__dropout=0.0, sampling={"size": 6, **sampling})
    return Transducer(recipe, dim=12, vocab_size=CLASSES)


def batch() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(3, 30, 12), torch.tensor([21, 13, 30]), torch.randint(1, 4, (3, 5)), torch.tensor([4, 2, 5])


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[dict, samplewise.SampledVocabulary]]:
    """What `sample_vocabulary` was asked for and gave."""
    calls: list = []

    def spy(*args, **options):
        calls.append((options, samplewise.sample_vocabulary(*args, **options)))
        return calls[-1][1]

    monkeypatch.setattr(models, "sample_vocabulary", spy)
    return calls


@pytest.mark.parametrize("scope", ["utterance", "batch"])
@pytest.mark.parametrize("negatives", ["uniform", "ctc", "unigram"])
@pytest.mark.parametrize("correction", [None, "logq"])
def test_the_sampled_loss_is_that_of_the_public_function(scope, negatives, correction, drawn):
    model, inputs = network(scope=scope, negatives=negatives, correction=correction), batch()
    model.class_counts = torch.arange(CLASSES, dtype=torch.float64)
    losses = model(*inputs, generator=torch.Generator().manual_seed(5))
    assert set(losses) == {"loss", "sampled", "ctc", "classes"} and losses["classes"] == 6
    ((options, vocabulary),) = drawn
    assert (options["ctc_log_probs"] is not None) == (negatives == "ctc")
    assert (options["weights"] is not None) == (negatives == "unigram")
    assert vocabulary.classes.shape == (1 if scope == "batch" else 3, 6)
    encoder_out, encoder_lengths = model.encoder(*inputs[:2])
    predictor_out = model.predictor(inputs[2])
    same = model.joiner.loss(encoder_out, predictor_out, inputs[2], encoder_lengths, inputs[3], vocabulary=vocabulary)
    torch.testing.assert_close(losses["sampled"], same.detach())
    torch.testing.assert_close(losses["loss"].detach(), losses["sampled"] + 0.3 * losses["ctc"])


def test_the_head_says_what_to_sample_and_learns_nothing_by_it(drawn):
    model, inputs = network(negatives="ctc"), batch()
    with torch.no_grad():
        model.ctc_head.bias.copy_(torch.tensor([0.0] * 9 + [50.0] * 3))  # classes 9 to 11 in every frame
    model(*inputs)
    ((options, vocabulary),) = drawn
    assert not options["ctc_log_probs"].requires_grad
    for row in vocabulary.classes.tolist():
        free = 6 - 1 - len({label for label in row if 0 < label < 4})
        assert sum(label > 8 for label in row) == min(3, free)


def test_gradients_reach_the_sampled_classes_alone(drawn):
    model = network(scope="batch", negatives="uniform")
    model(*batch())["loss"].backward()
    ((_, vocabulary),) = drawn
    touched = model.joiner.output.weight.grad.abs().sum(dim=1).nonzero().squeeze(1)
    assert touched.tolist() == vocabulary.classes[0].tolist()


def test_evaluation_is_never_sampled(drawn):
    model, inputs = network().eval(), batch()
    losses = model(*inputs)
    assert set(losses) == {"loss", "transducer", "ctc"} and drawn == []


def test_without_a_head_there_is_nothing_to_sample_by():
    with pytest.raises(UserError, match=r"sampling.negatives is ctc, but with ctc.weight 0"):
        tiny_recipe(sampling={"size": 6}, ctc={"weight": 0.0})
    tiny_recipe(sampling={"size": 6, "negatives": "uniform"}, ctc={"weight": 0.0})


def test_class_counts():
    counts = class_counts(CharacterTokenizer("ab"), ["abb", "a?", "b"])
    assert counts.tolist() == [0, 1, 3]


def log(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def losses(directory) -> list[tuple]:
    return [(line["step"], line["loss"], line["sampled_nats_per_label"]) for line in log(directory) if "loss" in line]


@pytest.mark.parametrize("negatives", ["ctc", "unigram"])
def test_a_resumed_run_samples_as_the_unbroken_one(digits_directory, tmp_path, monkeypatch, negatives):
    monkeypatch.setattr(training, "measure", lambda step: None)
    changes = {"training__evaluate_every": 3, "training__accumulate": 2}
    recipe = tiny_recipe(sampling={"size": 14, "negatives": negatives}, **changes)
    lines: list[str] = []
    outcome = train(recipe, tmp_path / "a", data=str(digits_directory), resume=False, say=lines.append)
    before = losses(tmp_path / "a")
    first, last = checkpoints(tmp_path / "a")
    assert (first.name, last.name) == ("checkpoint-3", "checkpoint-6")
    (last / "trainer_state.json").unlink()  # as if it had been killed on the way to step 6
    train(recipe, tmp_path / "a", data=str(digits_directory), resume=True, say=lines.append)
    assert losses(tmp_path / "a") == before and len(before) == 6
    evaluations = [line for line in log(tmp_path / "a") if "eval_wer" in line]
    assert all(line["eval_transducer_nats_per_label"] > 0 and "sampled_nats_per_label" not in line for line in evaluations)
    assert len({loss for _, _, loss in before}) == 6
    assert "over sampled classes" in "\n".join(lines)
    results = outcome.results
    assert results["sampled_classes"] >= 14 and all(
        line["sampled_classes"] >= 14 for line in log(tmp_path / "a") if "loss" in line
    )
    assert 0 < results["step_seconds"] < 60 and results["step_cpu_seconds"] > 0 and results["training_cpu_seconds"] > 0
    assert results.get("peak_bytes", 2e6) > 1e6


def test_step_times_leave_out_the_first_step():
    times = StepTimes()
    for _ in range(3):
        times.on_step_begin(None, None, None)
        times.on_step_end(None, None, None)
    assert len(times.steps) == 2 and times.take()["step_seconds"] >= 0 and times.take() == {}


def test_a_summary_of_steps():
    log = [
        {"step_seconds": 3.0, "peak_bytes": 5},
        {"eval_loss": 1},
        {"step_seconds": 1.0, "peak_bytes": 7},
        {"step_seconds": 2.0},
    ]
    assert summary(log) == {"step_seconds": 2.0, "peak_bytes": 7}
