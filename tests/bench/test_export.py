"""What the joint of a training run sees, as files of suite trained."""

import dataclasses

import pytest
import torch

pytest.importorskip("soundfile")
import safetensors.torch
import soundfile

import samplewise
from samplewise.asr import checkpoint
from samplewise.asr.checkpoint import Run, load_recogniser
from samplewise.asr.corpora import digit_test
from samplewise.asr.examples import EvaluationExamples, collate
from samplewise.asr.problems import BadDataLog
from samplewise.asr.scoring import silent
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.bench import export, joints
from samplewise.bench.cases import suite
from samplewise.bench.workloads import make_workload
from samplewise.cli import main
from tests.asr.made import RATE, make_recordings, tiny_recipe

CHARACTERS = " efghinorstuvwxz"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("digits") / "recordings"
    directory.mkdir()
    for recording in make_recordings():
        soundfile.write(directory / recording.key, recording.samples, RATE)
    return directory.parent


@pytest.fixture
def run_directory(tmp_path, monkeypatch):
    """Two checkpoints of an untrained model; what else a whole checkpoint has is not needed here."""
    monkeypatch.setattr(export, "is_whole", lambda path: (path / checkpoint.WEIGHTS).is_file())
    run = Run(tiny_recipe(), CharacterTokenizer(CHARACTERS), {})
    for step in (3, 10):
        save(run, tmp_path / "run" / f"checkpoint-{step}")
    (tmp_path / "run" / "checkpoint-11").mkdir()
    return tmp_path / "run"


def save(run, directory):
    directory.mkdir(parents=True)
    run.save(directory)
    torch.manual_seed(0)
    safetensors.torch.save_file(run.make_model()[0].state_dict(), directory / checkpoint.WEIGHTS)


def test_a_run_becomes_cases_of_the_suite(run_directory, recordings, tmp_path, monkeypatch, capsys):
    output = tmp_path / "joints"
    command = ["bench", "export", str(run_directory), "--output", str(output), "--data", str(recordings)]
    assert main([*command, "--labels", "10", "--utterances", "2"]) == 0
    said = capsys.readouterr().out.split()
    assert said == [str(output / "tiny_step3.npz"), str(output / "tiny_step10.npz")]
    monkeypatch.setenv(joints.DIRECTORY, str(output))
    found = suite("trained")
    assert [case.name for case in found] == ["tiny_step3", "tiny_step10"]
    assert all(labels >= 10 for _, labels in found[0].given) and found[0].batch == 2
    assert (found[0].classes, found[0].dim) == (len(CHARACTERS) + 1, 16)


def test_the_files_give_the_model_s_loss(run_directory, recordings, tmp_path, monkeypatch):
    """With one test string an utterance: the suite's workload has the loss that the model has on the strings."""
    path = next(export.export_run(run_directory / "checkpoint-3", tmp_path / "joints", str(recordings), 1, 3))
    monkeypatch.setenv(joints.DIRECTORY, str(path.parent))
    workload = make_workload(suite("trained")[0])
    loss = samplewise.transducer_loss(*workload.learned, *workload.integers, reduction="sum")
    recogniser, bad = load_recogniser(run_directory / "checkpoint-3"), BadDataLog()
    corpus = digit_test(recogniser.run.recipe, str(recordings), RATE, bad, silent)
    batch = collate(EvaluationExamples(corpus, recogniser.preparation(), bad).examples[:3])
    with torch.no_grad():
        names = ("features", "feature_lengths", "targets", "target_lengths")
        expected = 3 * float(recogniser.model(*(batch[name] for name in names))["transducer"])
    assert float(loss) == pytest.approx(expected, rel=1e-3), "encodings are rounded to float16"


def test_texts_are_joined_by_a_space_where_there_is_one(run_directory, recordings):
    recogniser, bad = load_recogniser(run_directory / "checkpoint-3"), BadDataLog()
    corpus = digit_test(recogniser.run.recipe, str(recordings), RATE, bad, silent)
    examples = EvaluationExamples(corpus, recogniser.preparation(), bad).examples
    tokenizer = recogniser.run.tokenizer
    joined = list(export.joined_examples(examples, tokenizer, 8))
    texts = " ".join(tokenizer.decode(targets.tolist()) for _, targets in joined)
    assert texts == " ".join(example.text for example in examples) and 1 < len(joined) < len(examples)
    assert sum(len(features) for features, _ in joined) == sum(len(example.features) for example in examples)
    for lacking in (CharacterTokenizer("efghinorstuvwxz"), CharacterTokenizer("efghinorstuvwxz", unknown=True)):
        targets = export.joined_targets(examples[:2], lacking)
        assert targets.tolist() == [*examples[0].targets.tolist(), *examples[1].targets.tolist()]


def test_what_cannot_be_exported_is_said(run_directory, recordings, tmp_path, capsys):
    command = ["bench", "export", "--output", str(tmp_path / "joints"), "--data", str(recordings)]
    assert main([*command, str(tmp_path / "nothing")]) == 1
    assert "nothing holds no whole checkpoint" in capsys.readouterr().err
    recipe = tiny_recipe(joiner={"dim": 16, "activation": "relu"})
    save(dataclasses.replace(Run.load(run_directory / "checkpoint-3"), recipe=recipe), tmp_path / "other" / "checkpoint-1")
    assert main([*command, str(tmp_path / "other")]) == 1
    assert "joints with tanh, this one has relu" in capsys.readouterr().err
