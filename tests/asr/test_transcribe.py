"""Text of files of any kind; what cannot be read is named, and the others still get their text."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch

from samplewise.asr.beam import Decoded
from samplewise.asr.checkpoint import Recogniser, Run
from samplewise.asr.decode import greedy
from samplewise.asr.problems import BadData
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.asr.transcribe import transcribe

from .made import RATE, tiny_recipe, tone


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    torch.manual_seed(3)
    run = Run(tiny_recipe(), CharacterTokenizer(" efghinorstuvwxz"), {})
    model, features = run.make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
        model.joiner.output.bias[0] = -1.0
    return Recogniser(model.eval(), features, run, tmp_path_factory.mktemp("run"))


def text(recogniser, samples: np.ndarray) -> str:
    features = recogniser.features(samples)
    found = greedy(recogniser.model, features[None], torch.tensor([len(features)]), max_symbols=3)
    return recogniser.run.tokenizer.decode(found[0])


def test_wav_flac_and_stereo_give_the_same_text(recogniser, tmp_path):
    samples = np.round(tone(3, 0, 0, 0.5) * 32767) / np.float32(32768)
    samples = samples.astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    soundfile.write(tmp_path / "a.flac", samples, RATE)
    soundfile.write(tmp_path / "b.wav", np.stack([samples * 2, samples * 0], axis=1), RATE, subtype="FLOAT")
    expected = text(recogniser, samples)
    assert expected
    found = dict(transcribe(recogniser, [tmp_path / name for name in ("a.wav", "a.flac", "b.wav")]))
    assert set(found.values()) == {expected}


@pytest.mark.parametrize("rate", [16000, 44100])
def test_other_rates_are_resampled(recogniser, tmp_path, rate):
    soundfile.write(tmp_path / "a.ogg", np.tile(tone(3, 0, 0, 0.5), 2), rate)
    ((_, found),) = transcribe(recogniser, [tmp_path / "a.ogg"])
    assert isinstance(found, str)


def test_a_file_that_cannot_be_used_stops_nothing(recogniser, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(8000, np.float32), RATE)
    soundfile.write(tmp_path / "short.wav", tone(1, 0, 0, 0.02), RATE)
    soundfile.write(tmp_path / "good.wav", tone(1, 0, 0), RATE)
    paths = [tmp_path / name for name in ("none.wav", "silent.wav", "short.wav", "good.wav")]
    found = [result for _, result in transcribe(recogniser, paths)]
    assert [result.reason for result in found if isinstance(result, BadData)] == [
        "missing file",
        "silent recording",
        "too few frames",
    ]
    assert isinstance(found[3], str)


def test_a_file_that_is_too_long_for_the_memory_stops_nothing(recogniser, tmp_path, monkeypatch, said):
    soundfile.write(tmp_path / "a.wav", tone(1, 0, 0), RATE)
    searched = []

    def search(model, features, lengths, options):
        searched.append(features)
        if len(searched) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return Decoded([[]], [2], [0], [0])

    monkeypatch.setattr("samplewise.asr.transcribe.search", search)
    first, second = (found for _, found in transcribe(recogniser, [tmp_path / "a.wav"] * 2, say=said))
    assert str(first).endswith("a.wav: cannot be transcribed (RuntimeError: DefaultCPUAllocator: can't allocate memory)")
    assert second == ""
    (line,) = said.lines
    assert line.endswith("a.wav: decoding.max_symbols=3 labels were emitted in 2 encoder frames: more may have been said there")
