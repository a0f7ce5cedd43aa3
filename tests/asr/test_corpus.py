"""Digit strings are a pure function of seed, epoch and index; manifests tell what is wrong with a line."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import soundfile

from samplewise.asr.corpora import spread
from samplewise.asr.corpus import (
    TEST,
    TRAIN,
    VALID,
    VALID_RECORDINGS,
    WORDS,
    DigitStrings,
    ManifestCorpus,
    read_manifest,
    split_recordings,
)
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataLog
from samplewise.asr.recipe import DigitStringsOptions

from .made import RATE, SHARED, tone

OPTIONS = DigitStringsOptions(strings_per_epoch=50, test_strings=40, valid_strings=8)


def strings(recordings, part=TRAIN, seed=1, options=OPTIONS) -> DigitStrings:
    chosen = split_recordings(recordings, part, options)
    return DigitStrings(chosen, options, part=part, seed=seed, sample_rate=RATE)


def test_a_string_depends_on_seed_epoch_and_index_alone(recordings):
    first, second = strings(recordings), strings(recordings)
    for _ in range(3):  # what was asked for before has no influence
        second.utterance(0, 5)
    one, other = first.utterance(2, 7), second.utterance(2, 7)
    assert one.text == other.text
    np.testing.assert_array_equal(one.samples, other.samples)


def test_seed_epoch_and_index_each_matter(recordings):
    samples = [
        strings(recordings, seed=seed).utterance(epoch, index).samples.tobytes()
        for seed, epoch, index in ((1, 2, 7), (2, 2, 7), (1, 3, 7), (1, 2, 8))
    ]
    assert len(set(samples)) == 4


def test_strings_are_of_one_speaker_and_the_lengths_asked_for(recordings):
    corpus = strings(recordings)
    lengths = Counter()
    for index in range(50):
        plan = corpus.plan(0, index)
        assert {recording.speaker for recording in plan.recordings} == {plan.speaker}
        assert all(0.05 * RATE - 1 <= pause <= 0.35 * RATE for pause in plan.pauses)
        lengths[len(plan.recordings)] += 1
    assert set(lengths) == {3, 4, 5, 6, 7}


def test_the_text_is_what_is_spoken(recordings):
    corpus = strings(recordings)
    utterance, plan = corpus.utterance(0, 0), corpus.plan(0, 0)
    assert utterance.text == " ".join(WORDS[recording.digit] for recording in plan.recordings)
    assert len(utterance.samples) == sum(len(recording.samples) for recording in plan.recordings) + sum(plan.pauses)
    assert corpus.seconds(0, 0) == len(utterance.samples) / RATE


def test_training_strings_vary_in_level_and_noise_and_test_strings_do_not(recordings):
    train, test = strings(recordings), strings(recordings, TEST)
    peaks = [np.abs(train.utterance(0, index).samples).max() for index in range(20)]
    assert max(peaks) / min(peaks) > 2
    pause = test.plan(0, 0).pauses[0]
    assert not test.utterance(0, 0).samples[:pause].any()
    assert train.utterance(0, 0).samples[: train.plan(0, 0).pauses[0]].any()


def test_parts_share_no_recording(recordings):
    keys = {part: {r.key for r in split_recordings(recordings, part, OPTIONS)} for part in (TRAIN, VALID, TEST)}
    assert not keys[TRAIN] & keys[VALID] and not keys[TRAIN] & keys[TEST] and not keys[VALID] & keys[TEST]
    assert len(keys[TEST]) == 2 * 10 * 5
    assert len(keys[VALID]) == 2 * 10 * VALID_RECORDINGS
    everything = DigitStringsOptions(valid_strings=0)
    assert len(split_recordings(recordings, TRAIN, everything)) == 2 * 10 * 3


def test_test_strings_are_made_of_test_recordings_evenly(recordings):
    options = DigitStringsOptions(test_strings=200)
    corpus = strings(recordings, TEST, options=options)
    used = Counter(r.key for index in range(200) for r in corpus.plan(0, index).recordings)
    assert set(used) == {r.key for r in recordings if r.split == "test"}
    assert max(used.values()) - min(used.values()) <= 1 + 1  # one more or less, for each of the two speakers


def test_test_strings_are_fixed(recordings):
    one, other = strings(recordings, TEST, seed=1), strings(recordings, TEST, seed=99)
    for index in range(len(one)):
        np.testing.assert_array_equal(one.utterance(0, index).samples, other.utterance(5, index).samples)


def test_a_speaker_without_a_digit_is_refused(recordings):
    few = [r for r in recordings if not (r.speaker == "bob" and r.digit == 4)]
    with pytest.raises(UserError, match="four by bob"):
        strings(few)


def test_nothing_to_make_strings_from_is_refused():
    with pytest.raises(UserError):
        strings([])


@pytest.fixture
def manifest(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(1, 0, 0), RATE)
    soundfile.write(tmp_path / "b.wav", tone(2, 0, 0), RATE)
    lines = [
        {"audio": "a.wav", "text": "one", "speaker": "ann", "split": "train", "duration": 0.2},
        {"audio": "b.wav", "text": "two", "split": "test"},
        {"audio": "none.wav", "text": "two"},
        {"audio": "a.wav", "text": "  "},
        {"audio": "a.wav"},
        {"text": "two"},
    ]
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n\n{"audio": \n')
    return path


def test_manifest_lines_are_read_or_named(manifest, bad):
    entries = read_manifest(manifest, bad)
    assert [(e.path.name, e.text, e.speaker, e.duration) for e in entries] == [
        ("a.wav", "one", "ann", 0.2),
        ("b.wav", "two", "", None),
        ("a.wav", "  ", "", None),
    ], "an empty text can be scored"
    assert bad.counts() == {
        "no transcript": 1,
        "missing file": 1,
        "no audio path in the manifest": 1,
        "not a line of JSON": 1,
    }
    assert "manifest.jsonl:3 none.wav" in bad.report()
    assert len(read_manifest(manifest.parent, BadDataLog())) == 3


def test_a_split_takes_its_lines_only(manifest, bad):
    assert [e.text for e in read_manifest(manifest, bad, "test")] == ["two"]
    with pytest.raises(UserError, match=r"no line of split 'dev'; those there are: 'train' \(1\), 'test' \(1\)\n"):
        read_manifest(manifest, bad, "dev")


def test_bad_lines_are_refused_if_the_recipe_says_so(manifest):
    with pytest.raises(UserError, match=r"manifest\.jsonl:3 none\.wav: missing file"):
        read_manifest(manifest, BadDataLog("raise"))


def test_a_missing_manifest_is_refused(tmp_path, bad):
    with pytest.raises(UserError, match="no manifest at"):
        read_manifest(tmp_path, bad)


def test_manifest_corpus_reads_and_resamples(manifest, bad):
    corpus = ManifestCorpus(read_manifest(manifest, bad), 2 * RATE)
    utterance = corpus.utterance(0, 0)
    assert (utterance.text, utterance.speaker) == ("one", "ann")
    assert len(utterance.samples) == pytest.approx(2 * len(tone(1, 0, 0)), abs=4)
    assert (corpus.seconds(0, 0), corpus.seconds(0, 1)) == (0.2, 0.0)


def test_a_subset_may_be_thinned_out():
    assert spread([1, 2, 3, 4, 5, 6, 7], 3) == [1, 3, 5]
    assert spread([1, 2, 3], 3) == spread([1, 2, 3], None) == spread([1, 2, 3], 9) == [1, 2, 3]


def test_training_utterances_may_be_played_faster_or_slower(manifest, bad):
    entries = read_manifest(manifest, bad)[:1]
    corpus, plain = ManifestCorpus(entries, RATE, (0.8, 1.25), seed=1), ManifestCorpus(entries, RATE)
    lengths = [len(corpus.utterance(epoch, 0).samples) / len(plain.utterance(0, 0).samples) for epoch in range(30)]
    assert 0.79 < min(lengths) < 0.9 and 1.1 < max(lengths) < 1.26
    np.testing.assert_array_equal(corpus.utterance(3, 0).samples, corpus.utterance(3, 0).samples)
    other = ManifestCorpus(entries, RATE, (0.8, 1.25), seed=2)
    assert len(other.utterance(3, 0).samples) != len(corpus.utterance(3, 0).samples)
    assert corpus.seconds(0, 0) == pytest.approx(0.25), "as long as it may become"


def test_pieces_of_recordings(tmp_path, bad):
    soundfile.write(tmp_path / "talk.wav", np.linspace(0.1, 0.9, 2 * RATE), RATE)
    line = {"audio": "talk.wav", "text": "one"}
    places = [{"start": 0.5, "duration": 0.25}, {"start": 1.0, "duration": 0.5}, {"start": 1.0}, {"start": -1.0, "duration": 1}]
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(json.dumps({**line, **place}) for place in places))
    corpus = ManifestCorpus(read_manifest(path, bad), RATE)
    assert bad.counts() == {"a start without a duration": 1, "a start that is no time": 1}
    pieces = [corpus.utterance(0, index) for index in range(2)]
    assert [len(piece.samples) for piece in pieces] == [RATE // 4, RATE // 2]
    assert pieces[1].samples[0] > pieces[0].samples[-1]
    assert len({piece.key for piece in pieces}) == 2 and "from 0.5 s" in pieces[0].key


@pytest.mark.parametrize("name", ["an4_mini", "kathleen_en", "ljspeech_mini"])
def test_real_manifests_can_be_read(name, bad):
    directory = SHARED / name
    if not directory.is_dir():
        pytest.skip(f"no {directory}; any speech with a manifest.jsonl of audio and text does")
    corpus = ManifestCorpus(read_manifest(directory, bad), 16000)
    assert bad.counts() == {}
    utterance = corpus.utterance(0, len(corpus) // 2)
    assert utterance.text
    assert len(utterance.samples) / 16000 == pytest.approx(corpus.seconds(0, len(corpus) // 2), abs=0.1)
