"""Suite trained: files of encodings become cases and workloads."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from samplewise.bench import cases, joints, truth
from samplewise.bench.cases import LONGER, case_from, suite
from samplewise.bench.errors import BenchError
from samplewise.bench.report.results import Results
from samplewise.bench.report.tables import all_tables
from samplewise.bench.report.targets import TARGETS
from samplewise.bench.worker import Worker
from samplewise.bench.workloads import make_workload
from samplewise.cli import main
from samplewise.reference import reference_loss
from tests.bench.made import row

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "trained_joints"
LENGTHS = ((9, 3), (7, 4))


def write(path, classes=300, dim=4, lengths=LENGTHS, **changes):
    draw = np.random.default_rng(0)
    arrays = {"weight": draw.normal(size=(classes, dim)).astype(np.float16), "bias": np.zeros(classes, np.float32)}
    for i, (frames, labels) in enumerate(lengths):
        arrays[f"encoder_out_{i}"] = draw.normal(size=(frames, dim)).astype(np.float16)
        arrays[f"predictor_out_{i}"] = draw.normal(size=(labels + 1, dim)).astype(np.float16)
        arrays[f"targets_{i}"] = draw.integers(1, classes, labels).astype(np.int16)
    np.savez(path, **{name: array for name, array in {**arrays, **changes}.items() if array is not None})
    return arrays


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv(joints.DIRECTORY, str(tmp_path))
    write(tmp_path / "bible_step3000.npz")
    write(tmp_path / "bible_step250.npz")
    write(tmp_path / "letters_step60.npz", classes=20)
    return tmp_path


def test_every_file_is_a_case_in_the_order_of_its_steps(directory):
    found = {case.name: case for case in suite("trained")}
    assert list(found) == ["bible_step250", "bible_step3000", "bible_step3000-long", "letters_step60"]
    case = found["bible_step250"]
    assert (case.batch, case.frames, case.labels, case.classes, case.dim) == (2, 9, 4, 300, 4)
    assert case.lengths() == ([9, 7], [3, 4]) and case.nodes == 9 * 4 + 7 * 5
    assert {"auto", "tiled", "guided", "plain", "sampled", "gemm3"} == set(case.methods)
    assert "sampled" not in found["letters_step60"].methods, "it has not more classes than are sampled"
    for case in found.values():
        assert case_from(json.loads(json.dumps(asdict(case)))) == case


def test_plain_pytorch_is_left_out_where_its_logits_are_large(directory, monkeypatch):
    monkeypatch.setattr(cases, "LARGEST_PLAIN", 4 * 2 * 9 * 5 * 20)
    assert {case.name for case in suite("trained") if "plain" in case.methods} == {"letters_step60"}


def test_the_workload_is_what_the_file_holds(directory):
    case = suite("trained")[0]
    arrays, workload = write(directory / "same.npz"), make_workload(case)
    for b, (frames, labels) in enumerate(LENGTHS):
        for name, rows in (("encoder_out", frames), ("predictor_out", labels + 1), ("targets", labels)):
            tensor = getattr(workload, name)[b]
            assert torch.equal(tensor[:rows], torch.from_numpy(arrays[f"{name}_{b}"]).to(tensor.dtype))
            assert not tensor[rows:].any()
    assert workload.encoder_lengths.tolist() == [9, 7] and workload.target_lengths.tolist() == [3, 4]
    assert torch.equal(workload.weight, torch.from_numpy(arrays["weight"]).float())


def test_joined_utterances_follow_each_other(directory):
    case = next(case for case in suite("trained") if case.name.endswith("-long"))
    arrays, workload = write(directory / "same.npz"), make_workload(case)
    assert LONGER[case.source] == (0, 1, 0) and case.lengths() == ([9 + 7 + 9], [3 + 4 + 3])
    assert workload.targets[0].tolist() == [*arrays["targets_0"], *arrays["targets_1"], *arrays["targets_0"]]
    assert torch.equal(workload.predictor_out[0, 3], torch.from_numpy(arrays["predictor_out_1"][0]).float())
    assert torch.equal(workload.encoder_out[0, 9:16], torch.from_numpy(arrays["encoder_out_1"]).float())
    assert workload.predictor_out.shape == (1, 11, 4)


def test_scaled_cases_have_other_labels_or_classes_of_the_same_joint(directory):
    arrays = write(directory / "same.npz")
    found = {case.name: case for case in suite("scaling")}
    case = found["scaling-labels-20"]
    workload = make_workload(case)
    assert case.labels == 20 and workload.target_lengths.tolist() == [20] and case.lengths()[0] == [9 * 20 // 3]
    assert workload.targets[0, :6].tolist() == [*arrays["targets_0"], *arrays["targets_0"]]
    whole = make_workload(suite("trained")[1])
    fewer, more = (make_workload(found[f"scaling-classes-{count}"]) for count in (128, 512))
    assert fewer.weight.shape[0] == 128 and torch.equal(fewer.weight[fewer.targets], whole.weight[whole.targets])
    assert torch.equal(fewer.bias[0], whole.bias[0]) and len(set(map(tuple, fewer.weight.tolist()))) == 128
    assert more.weight.shape[0] == 512 and torch.equal(more.targets, whole.targets)
    assert torch.equal(more.weight[300:], whole.weight[:212]) and torch.equal(more.bias[300:], whole.bias[:212] - 5.0)


def test_a_reduced_case_is_a_part_of_it(directory):
    case = suite("trained")[0].reduced(4000)
    assert case.products <= 4000 and case.lengths()[0][0] < 9
    workload = make_workload(case)
    loss, _ = truth.true_gradients(workload)
    expected = reference_loss(*(x.double() for x in workload.learned), *workload.integers, reduction="sum")
    assert float(loss) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("method", ["auto", "guided", "sampled"])
def test_a_step_is_checked_like_any_other(directory, method, tmp_path):
    case = asdict(suite("trained")[1])
    worker = Worker()
    worker.prepare(case, method, threads=1, budget=None, limit=None)
    value = worker.truth(case, str(tmp_path / "truth.pt"), threads=1)["loss"]
    checked = worker.check(case, str(tmp_path / "truth.pt"))
    assert checked["on"] == "all of it" and checked["value"] == value > 0
    assert checked["ok"] == (method != "sampled")


def test_where_no_file_is_it_is_said_how_to_get_some(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(joints.DIRECTORY, str(tmp_path))
    assert main(["bench", "run", "--suite", "trained", "--dry-run"]) == 1
    said = capsys.readouterr().err
    assert str(tmp_path) in said and "samplewise bench export" in said and joints.DIRECTORY in said


def test_the_directory_can_be_given(directory, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(joints.DIRECTORY, "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", "--suite", "trained", "--joints", str(directory), "--dry-run"]) == 0
    assert "bible_step3000-long: auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": None}, "no array 'bias'"),
        ({"targets_0": np.ones(9, np.int16)}, "arrays of utterance 0 do not fit"),
        ({"weight": np.ones((300, 5), np.float16)}, "arrays of utterance 0 do not fit"),
    ],
)
def test_a_file_that_is_none_is_named(directory, changes, message):
    write(directory / "wrong.npz", **changes)
    with pytest.raises(BenchError, match=rf"wrong.npz: .*{message}"):
        suite("trained")
    (directory / "wrong.npz").write_bytes(b"nothing")
    with pytest.raises(BenchError, match=r"wrong.npz"):
        suite("trained")


def test_tables_and_targets(directory):
    found = {case.name: case for case in suite("trained")}
    checked = {"check": {"value": 35.0, "loss": 1e-8, "gradient": 1e-6}}
    ours = {
        "active_share": 0.039,
        "exact_share": 0.055,
        "outside": 4e-8,
        "rounds": 1,
        "ran": "guided",
        "predicted_workspace": 2 << 20,
    }
    long, early = found["bible_step3000-long"], found["bible_step250"]
    results = Results([
        row(long, "auto", times=[0.02] * 4, ours=ours, **checked), row(long, "sampled", times=[0.01] * 4),
        row(early, "auto", times=[0.1] * 4, **checked), row(early, "tiled", times=[0.08] * 4),
        row("planted", "auto", times=[0.1] * 4),
    ])  # fmt: skip
    tables = all_tables(results)
    lines = tables["trained"].splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| bible_step250", "| bible_step3000-long"]
    assert "| 1×25×10×300, 4 | 3.5 | 20 ms | 0.08 |  | 3.9% | 4e-08 | 1.0 MiB |" in lines[1]
    assert "| 2×9×4×300, 4 | 5 | 100 ms | 0.4 | 0.32 |" in lines[0]
    (line,) = tables["trained-sampled"].splitlines()[2:]
    assert line.startswith("| bible_step3000-long | 300 | 20 ms | 10 ms | 2 | 1.0 MiB | 1.0 MiB |")
    assert "| guided | 3.9% | 5.5% | 1 | 4e-08 | 1.0 MiB | 2.0 MiB | 2.00 |" in tables["active"]
    wanted = {(target.case, target.figure): target for target in TARGETS}
    assert wanted["bible_step3000-long", "`auto`, of the three GEMMs"].value(results) == pytest.approx(0.08)
    target = wanted["bible_step250", "`auto`, of `tiled`"]
    assert target.value(results) == pytest.approx(1.25) and not target.met(1.25) and target.met(1.03)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no encodings of trained models in {FOLDER}")
def test_the_files_beside_the_checkout(monkeypatch):
    monkeypatch.delenv(joints.DIRECTORY, raising=False)
    found = {case.name: case for case in suite("trained")}
    named = {target.case for target in TARGETS if "_step" in target.case}
    assert named <= set(found)
    long = found["bible_step3000-long"]
    assert (long.frames, long.labels) == (1241, 308) and "plain" not in long.methods
