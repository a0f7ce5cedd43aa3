"""Reports of rows that were made up."""

import pytest

from samplewise.bench.errors import BenchError
from samplewise.bench.report.results import Results
from samplewise.bench.report.tables import all_tables
from samplewise.bench.report.targets import TARGETS
from tests.bench.made import row

pytest.importorskip("matplotlib")
from samplewise.bench.report.write import write_report


def rows():
    yield row("planted", "auto", times=[0.1] * 4, ours={"predicted_workspace": 2 << 20, "active_share": 0.05, "rounds": 1.0})
    yield row("planted", "tiled", times=[0.2] * 4)
    yield row("planted", "optimized-transducer", times=[4.0] * 4)
    yield row("planted", "fast-rnnt", times=[2.0] * 4)
    yield row("planted", "fast-rnnt-pruned", times=[0.05] * 4)
    yield row("planted", "torchaudio", "not installed")
    yield row("accuracy", "auto", times=None, workspace=None, gradient=2e-6)
    yield row("accuracy", "torchaudio", "wrong", gradient=7e-2)
    for batch in (1, 16, 1024):
        yield row(f"sweep-40s-{batch}", "auto", times=[0.01 * batch] * 4)
        yield row(f"sweep-40s-{batch}", "plain", "ok" if batch == 1 else "out of memory")
    for frames, labels in ((50, 10), (100, 20), (200, 40)):
        yield row(f"lattice-{frames}x{labels}", "auto", times=None)
        yield row(f"lattice-{frames}x{labels}", "plain", "ok" if frames < 200 else "out of memory", times=None)
    for frames in (50, 100, 200):
        yield row(f"axes-4x{frames}x40x1024", "auto")


def test_report_has_tables_plots_and_a_page_that_stands_alone(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench:summary -->\n<!-- /bench -->\n")
    written = write_report(rows(), tmp_path / "results", [readme])
    names = {path.name for path in written}
    assert names == {"tables.md", "index.html", "against-frames.png", "memory.png", "sweep.png", "README.md"} | {
        f"against-{axis}.png" for axis in ("batch", "labels", "classes")  # the base case is on every axis
    }  # fmt: skip
    page = (tmp_path / "results" / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 6 and 'src="http' not in page and "out of memory" in page
    assert "| planted |" in readme.read_text()


def test_comparisons():
    results = Results(rows())
    assert results.best_exact_peer("planted") == "fast-rnnt"
    assert results.best_fixed("planted") == "tiled"
    assert results.quotient("planted", "fast-rnnt", "auto") == pytest.approx(20.0)
    assert results.quotient("planted", "auto", "torchaudio") is None


def test_pairs_are_taken_only_within_a_session():
    slow_drift = [row("random", "auto", times=[1, 1, 2]), row("random", "tiled", times=[2, 2, 4])]
    assert Results(slow_drift).quotient("random", "tiled", "auto") == 2.0
    apart = [slow_drift[0], {**slow_drift[1], "session": "two", "ratio": {"median": 9.0}}]
    assert Results(apart).quotient("random", "tiled", "auto") == pytest.approx(9.0 / slow_drift[0]["ratio"]["median"])


def test_targets_are_met_missed_or_left_out():
    table = all_tables(Results(rows()))["targets"]
    lines = {line.split(" | ")[1]: line for line in table.splitlines()[2:]}
    assert "≥ 10 | 20 | met" in lines["`auto` faster than the best exact peer"]
    assert "≤ 1 | 2 | missed" in lines["`auto`, of fast-rnnt's pruned loss"]
    assert "≤ 1e-05 | 2e-06 | met" in lines["error of the gradient of `auto`"]
    assert "a node, of that at batch 1" in lines
    assert "characters" not in table
    assert all(target.value(Results([row("quick-random", "auto")])) is None for target in TARGETS)


def test_every_library_beside_auto():
    made = [
        row("migrate", "auto", times=[0.1] * 4, workspace=1 << 20), row("migrate", "plain", times=[0.4] * 4, workspace=8 << 20),
        row("migrate", "gemm3"), row("migrate", "torchaudio", "not installed"), row("migrate", "nemo", times=[1.5] * 4),
    ]  # fmt: skip
    table = all_tables(Results(made))["libraries"].splitlines()[2:]
    assert [line.split(" | ")[1] for line in table] == ["auto", "plain", "nemo"]
    assert "| plain | 400 ms | 4× | 8.0 MiB | 8× |" in table[1] and "| 15× |" in table[2]


def test_what_went_wrong_is_in_the_table_and_busy_rows_are_marked():
    results = Results([*rows(), row("planted", "batched", busy=True), row("planted", "plain", "out of memory")])
    table = all_tables(results)["planted"]
    assert "| torchaudio | not installed |" in table and "| plain | out of memory |" in table
    assert "| batched † |" in table and "not to be relied on" in table
    assert "| torchaudio | 1e-08 | 7e-02 |" in all_tables(results)["accuracy"]


def test_nothing_to_report(tmp_path):
    with pytest.raises(BenchError, match="no measurement"):
        write_report([], tmp_path, [])
