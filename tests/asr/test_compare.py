"""`samplewise compare`: the runs that it plans, one line a finished run, runs that are stopped and gone on with, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from filelock import FileLock

from samplewise.asr import compare as comparison
from samplewise.asr.checkpoint import is_whole
from samplewise.asr.compare import compare, make_plans, read_results, variants
from samplewise.asr.errors import UserError
from samplewise.asr.run_directory import LOCK_FILE
from samplewise.cli import main

from .made import TINY, changed

VALUES = changed(TINY, {"training.steps": 4, "training.save_every": 2})
SECONDS = 180  # to wait for processes


@pytest.fixture
def recipe(tmp_path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(VALUES))
    return str(path)


def test_plans_go_seed_by_seed(recipe):
    found = variants([8, 14], ["uniform", "ctc"], ["utterance", "batch"], ["none", "logq"], full=True)
    assert len(found) == 1 + 2 * 2 * 2 * 2
    assert [variant.name for variant in found[:3]] == ["full", "uniform-utterance-8", "uniform-utterance-8-logq"]
    plans = make_plans(recipe, ["training.steps=3"], found[:3], [5, 6])
    assert [plan.name for plan in plans][2:5] == ["uniform-utterance-8-logq-seed5", "full-seed6", "uniform-utterance-8-seed6"]
    assert plans[0].expected["sampling"] is None and plans[0].expected["training"]["steps"] == 3
    expected = {"size": 8, "scope": "utterance", "negatives": "uniform", "correction": "logq"}
    assert plans[2].expected["sampling"] == expected and plans[2].expected["seed"] == 5


def test_a_wrong_size_is_refused_before_anything_runs(recipe):
    with pytest.raises(UserError, match=r"sampling\.size must be between 1 and 1,000,000,000, got 0"):
        make_plans(recipe, [], variants([0], ["ctc"], ["batch"], ["none"], full=True), [1])


def test_runs_are_stopped_and_gone_on_with(recipe, digits_directory, tmp_path, said, monkeypatch):
    plans = make_plans(recipe, ["training.steps=40"], variants([14], ["ctc"], ["batch"], ["none"], full=False), [1])
    options = {"data": str(digits_directory), "say": said}
    results, directory = tmp_path / "r.jsonl", tmp_path / "runs"
    asked: list = []
    ended = comparison.stop

    def at_step_two(processes):  # what --minutes does, at a moment that is known
        processes = list(processes)
        if comparison.last_step(directory / plans[0].name) >= 2:
            asked.append(processes)
            ended(processes)

    monkeypatch.setattr(comparison, "stop", at_step_two)
    clock = iter([0.0, 0.0, 0.0])
    monkeypatch.setattr(comparison.time, "monotonic", lambda: next(clock, 61.0))
    assert compare(recipe, plans, directory, results, minutes=1, **options) is False
    monkeypatch.undo()
    assert asked and "stopped at step" in said.text and not results.exists()
    assert compare(recipe, plans, directory, results, **options) is True
    (line,) = read_results(results)
    assert (line["variant"], line["seed"], line["steps"]) == ("ctc-batch-14", 1, 40)
    assert line["sampling"] == {"size": 14, "scope": "batch", "negatives": "ctc", "correction": None}
    assert line["memory"]["peak_bytes"] > 0 and line["step_seconds"] > 0 and line["load_average"] >= 0
    assert line["test"]["wer"] >= 0 and line["test"]["nats_per_label"] > 0 and "by_speaker" not in line["test"]
    assert "resuming from" in (directory / "ctc-batch-14-seed1.log").read_text()
    assert compare(recipe, plans, directory, results, **options) is True
    assert len(read_results(results)) == 1 and "1 of 1 runs are in" in said.text


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals of Unix")
@pytest.mark.parametrize(("name", "heard"), [("SIGINT", True), ("SIGHUP", False)])
def test_an_interrupted_command_leaves_checkpoints_and_no_process(recipe, digits_directory, tmp_path, name, heard):
    """All processes of a terminal get its Ctrl-C, and a run takes a second signal as the wish to lose everything. A terminal
    that is closed hears nothing any more."""
    number = signal.Signals[name]
    runs = [tmp_path / "runs" / f"ctc-{scope}-14-seed1" for scope in ("utterance", "batch")]
    command = [
        *(sys.executable, "-m", "samplewise.cli", "compare", recipe, "--data", str(digits_directory), "--no-full"),
        *("--size", "14", "--negatives", "ctc", "--seeds", "1", "--jobs", "2", "--output", str(runs[0].parent)),
        *("--results", str(tmp_path / "r.jsonl"), "--set", "training.steps=100000", "--set", "training.save_every=100000"),
    ]

    def hear() -> None:  # these tests themselves may run under nohup
        signal.signal(number, signal.SIG_DFL)

    pipe = subprocess.PIPE
    with subprocess.Popen(command, start_new_session=True, stdout=pipe, text=True, preexec_fn=hear) as process:
        assert process.stdout is not None
        try:
            deadline = time.monotonic() + SECONDS
            while min(map(comparison.last_step, runs)) < 2 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if not heard:
                process.stdout.close()
            os.killpg(process.pid, number)
            process.wait(SECONDS)
        finally:
            process.terminate()
        said = process.stdout.read() if heard else ""
    for run in runs:
        FileLock(run / LOCK_FILE, timeout=0).acquire()  # its process has ended
        (checkpoint,) = run.glob("checkpoint-*")
        step = int(checkpoint.name.removeprefix("checkpoint-"))
        assert step >= 2 and is_whole(checkpoint)
        assert not heard or f"{run.name}: stopped at step {step}" in said
    assert not heard or (process.returncode == 128 + number and f"{name}: the runs save checkpoints" in said)


def test_a_run_that_fails_stops_those_beside_it(recipe, tmp_path, said, monkeypatch):
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1, 2, 3])
    results = tmp_path / "r.jsonl"
    codes = {"full-seed1": "raise SystemExit(3)", "full-seed2": "import time; time.sleep(600)"}

    def begin(recipe, plan, directory, *rest, **options):
        (directory / f"{plan.name}.log").write_text("what it said")
        return subprocess.Popen([sys.executable, "-c", codes[plan.name]])

    monkeypatch.setattr(comparison, "start", begin)
    with pytest.raises(UserError, match=r"full-seed1 failed with status 3; its log ends:\n  what it said"):
        compare(recipe, plans, tmp_path / "runs", results, jobs=2, say=said)
    assert "full-seed2: stopped at step 0" in said.text and not results.exists()


def test_commands_beside_each_other_share_the_runs(recipe, tmp_path, said, monkeypatch):
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1, 2, 3])
    results, directory = tmp_path / "r.jsonl", tmp_path / "runs"
    directory.mkdir()
    elsewhere = FileLock(directory / "full-seed1.lock")
    elsewhere.acquire()
    started: list[str] = []

    def begin(recipe, plan, *rest, **options):
        started.append(plan.name)
        return subprocess.Popen([sys.executable, "-c", ""])

    def end(plan, status, *rest):
        add(plan)
        if plan.seed == 2:  # the other command finishes its run, and another one
            add(plans[0])
            add(plans[2])
            elsewhere.release()
        return True

    def add(plan):
        with results.open("a") as file:
            file.write(json.dumps({"recipe_keys": plan.expected}) + "\n")

    monkeypatch.setattr(comparison, "start", begin)
    monkeypatch.setattr(comparison, "finish", end)
    assert compare(recipe, plans, directory, results, say=said) is True
    assert started == ["full-seed2"], "seed 1 was in another hand, seed 3 was done when its turn came"
    assert len(read_results(results)) == 3


def ended(plan, status, directory, results, say) -> bool:
    with results.open("a") as file:
        file.write(json.dumps({"recipe_keys": plan.expected}) + "\n")
    return True


HOLD = (
    "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


def test_a_run_whose_command_was_killed_is_waited_for(recipe, tmp_path, said, monkeypatch):
    """It holds the lock of its directory; the one of its command has gone with that."""
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1, 2])
    directory, started = tmp_path / "runs", []
    (directory / "full-seed1").mkdir(parents=True)
    pipe = subprocess.PIPE
    lock = str(directory / "full-seed1" / LOCK_FILE)
    with subprocess.Popen([sys.executable, "-c", HOLD, lock], stdin=pipe, stdout=pipe) as orphan:
        assert orphan.stdout is not None and orphan.stdout.readline() == b"held\n"

        def begin(recipe, plan, *rest, **options):
            started.append((plan.name, orphan.poll()))
            return subprocess.Popen([sys.executable, "-c", ""])

        def hear(line):
            said(line)
            if line.startswith("waiting for runs that other processes have in hand: full-seed1"):
                orphan.communicate()

        monkeypatch.setattr(comparison, "PAUSE", 0.01)
        monkeypatch.setattr(comparison, "start", begin)
        monkeypatch.setattr(comparison, "finish", ended)
        assert compare(recipe, plans, directory, tmp_path / "r.jsonl", say=hear) is True
    assert started == [("full-seed2", None), ("full-seed1", 0)]


def test_the_lock_of_a_run_in_other_hands_is_left_alone(recipe, tmp_path, monkeypatch):
    """A look at it takes it for a moment, in which the run itself would not get it."""
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1, 2])
    looked: list[str] = []
    elsewhere = FileLock(tmp_path / "full-seed1.lock")
    elsewhere.acquire()
    monkeypatch.setattr(comparison, "is_held", lambda path: looked.append(path.parent.name) or len(looked) == 1)
    assert comparison.take(plans, tmp_path) is None, "seed 2 still trains"
    plan, lock = comparison.take(plans, tmp_path)
    assert plan is plans[1] and lock.is_locked and looked == ["full-seed2"] * 2


def test_a_run_that_finds_another_one_in_its_place_has_not_failed(recipe, tmp_path, said, monkeypatch):
    """The command was killed before its run had taken its lock, so this one did not see it."""
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1])
    directory, started = tmp_path / "runs", []
    (directory / "full-seed1").mkdir(parents=True)
    elsewhere = FileLock(directory / "full-seed1" / LOCK_FILE)

    def begin(recipe, plan, *rest, **options):
        started.append(plan.name)
        if len(started) == 1:
            elsewhere.acquire()
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({2 - len(started)})"])

    monkeypatch.setattr(comparison, "start", begin)
    monkeypatch.setattr(comparison, "finish", ended)
    monkeypatch.setattr(comparison, "PAUSE", 0.01)

    def hear(line):
        said(line)
        if line.startswith("waiting for"):
            elsewhere.release()

    assert compare(recipe, plans, directory, tmp_path / "r.jsonl", say=hear) is True
    assert started == ["full-seed1"] * 2


def test_locks_are_kept_as_long_as_runs_may_write(recipe, tmp_path, said, monkeypatch):
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1, 2])
    slow = "signal.signal(signal.SIGTERM, lambda *rest: (time.sleep(0.3), os._exit(0))); print(flush=True); time.sleep(60)"
    runs: list[subprocess.Popen] = []

    def begin(recipe, plan, *rest, **options):
        if runs:
            raise ZeroDivisionError
        runs.append(subprocess.Popen([sys.executable, "-c", f"import os, signal, time; {slow}"], stdout=subprocess.PIPE))
        assert runs[0].stdout is not None and runs[0].stdout.readline()
        return runs[0]

    monkeypatch.setattr(comparison, "start", begin)
    with pytest.raises(ZeroDivisionError):
        compare(recipe, plans, tmp_path / "runs", tmp_path / "r.jsonl", jobs=2, say=said)
    assert runs[0].returncode is not None, "it was waited for"
    runs[0].communicate()


def test_results_that_a_kill_cut_short_are_made_again(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"recipe_keys": 1}\n{"recipe_ke')
    assert read_results(path) == [{"recipe_keys": 1}]
    path.write_text('["recipe_keys"]\n')
    with pytest.raises(UserError, match=r"r\.jsonl cannot be read as results of this command: one of its lines"):
        read_results(path)
    path.write_text("no results\n")
    with pytest.raises(UserError, match=r"r\.jsonl cannot be read as results of this command: line 1: not JSON"):
        read_results(path)


def test_a_line_of_an_older_recipe_is_known_by_its_values(recipe):
    (plan,) = make_plans(recipe, [], [comparison.Variant(None)], [1])
    old = {key: value for key, value in plan.expected.items() if key != "ctc"}  # its default is what was meant
    assert comparison.is_there(plan, [{"recipe_keys": old}])
    assert not comparison.is_there(plan, [{"recipe_keys": {**old, "seed": 2}}, {"recipe_keys": {**old, "gone": 1}}])


def test_a_run_without_a_rate_or_a_loss_is_told_too():
    assert comparison.in_short({"cer": 0.125, "nats_per_label": 1.5}) == "CER 12.50%, 1.5000 nats per label"
    assert comparison.in_short({"wer": None, "nats_per_label": None}) == "WER undefined, no loss"


def test_a_run_that_fails_is_told_with_the_end_of_its_log(recipe, tmp_path, said):
    plans = make_plans(recipe, [], [comparison.Variant(None)], [1])
    with pytest.raises(UserError, match=r"full-seed1 failed with status 1; its log ends:(.|\n)*no directory .*nowhere"):
        compare(recipe, plans, tmp_path / "runs", tmp_path / "r.jsonl", data=str(tmp_path / "nowhere"), say=said)


def test_the_command_says_when_to_give_it_again(recipe, tmp_path, monkeypatch, capsys):
    calls = []

    def fake(path, plans, directory, results, **options):
        calls.append((plans, directory, results, options))
        return len(calls) > 1

    monkeypatch.setattr(comparison, "compare", fake)
    command = ["compare", recipe, "--size", "6", "--negatives", "ctc", "--seeds", "1", "--results", str(tmp_path / "r.jsonl")]
    assert main([*command, "--minutes", "2"]) == 75
    assert main(command) == 0
    plans, directory, results, options = calls[0]
    assert [plan.name for plan in plans] == ["full-seed1", "ctc-utterance-6-seed1", "ctc-batch-6-seed1"]
    assert (directory.as_posix(), results, options["minutes"]) == ("runs/compare/tiny", tmp_path / "r.jsonl", 2.0)
    assert json.loads(json.dumps(plans[0].expected)) == plans[0].expected
