"""Rows on disk, statistics of steps, and tables between markers."""

import json

import pytest

from samplewise.bench.errors import BenchError
from samplewise.bench.figures import pairwise, summary
from samplewise.bench.names import Method
from samplewise.bench.records import append_row, done_keys, key_of, latest, read_rows
from samplewise.bench.report.markers import insert
from tests.bench.made import row


def test_rows_survive_a_kill_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, row("random", "auto"))
    with path.open("a") as file:
        file.write('{"schema": 1, "cas')
    assert [r["method"] for r in read_rows([path])] == ["auto"]
    append_row(path, row("random", "tiled"))
    assert [r["method"] for r in read_rows([path])] == ["auto", "tiled"]
    with path.open("a") as file:
        file.write(json.dumps(row("random", "plain")))  # a whole one, to the newline
    append_row(path, row("random", "batched"))
    assert [r["method"] for r in read_rows([path])] == ["auto", "tiled", "plain", "batched"]


@pytest.mark.parametrize("broken", ['{"schema": 1, "cas\n', "seconds: 3\n", "seconds: 3"])
def test_a_broken_line_is_refused_where_no_kill_leaves_one(tmp_path, broken):
    path = tmp_path / "rows.jsonl"
    append_row(path, row("random", "auto"))
    path.write_text(path.read_text() + broken)
    with pytest.raises(BenchError, match="line 2: not JSON"):
        read_rows([path])


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"loss": 1.0}) + "\n")
    with pytest.raises(BenchError, match="not a measurement"):
        read_rows([path])
    with pytest.raises(BenchError, match="No such file"):
        read_rows([tmp_path / "none.jsonl"])


def test_busy_or_failed_rows_are_not_done():
    good, busy = row("random", "auto"), row("random", "tiled", busy=True)
    failed, lost = row("random", "plain", "failed"), row("random", "batched", "out of memory")
    rows = [good, busy, failed, lost]
    assert done_keys(rows, accept_busy=False) == {key_of(good), key_of(lost)}
    assert done_keys(rows, accept_busy=True) == {key_of(good), key_of(lost), key_of(busy)}


@pytest.mark.parametrize("change", [{"commit": "other"}, {"threads": 1}, {"budget": 5}, {"method": "tiled"}])
def test_another_code_or_setting_is_another_measurement(change):
    assert key_of(row("random", "auto")) != key_of({**row("random", "auto"), **change})


def test_the_last_row_counts_unless_it_has_no_figures():
    old, new = row("random", "auto", workspace=1), row("random", "auto", workspace=2)
    missing = row("random", "auto", "not installed")
    assert latest([old, new, missing]) == [new]
    assert latest([missing, old]) == [old]


def test_the_first_step_counts_only_alone():
    assert summary([9.0, 1.0, 2.0, 3.0]) == {"median": 2.0, "q1": 1.5, "q3": 2.5, "n": 3}
    assert summary([9.0]) == {"median": 9.0, "q1": 9.0, "q3": 9.0, "n": 1}
    assert pairwise([9.0, 2.0, 6.0], [1.0, 1.0, 2.0, 5.0])["median"] == 2.5
    assert pairwise([9.0], [3.0, 1.0])["median"] == 3.0


def test_unknown_methods_are_named():
    assert Method.parse("auto:bf16") == ("auto", "bf16")
    assert Method.parse("fast-rnnt-pruned").approximate and not Method.parse("fast-rnnt").approximate
    for text in ("fastest", "auto:fp8", ""):
        with pytest.raises(BenchError, match=f"unknown method '{text}'"):
            Method.parse(text)


def test_tables_go_between_their_markers(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# Page\n<!-- bench:one -->\nold\n<!-- /bench -->\ntext\n<!-- bench:two -->\nkept\n<!-- /bench -->\n")
    assert insert(path, {"one": "| new |"}) == ["two"]
    assert "old" not in path.read_text() and "<!-- bench:one -->\n| new |\n<!-- /bench -->\ntext" in path.read_text()
    assert "kept" in path.read_text()
    before = path.read_text()
    assert insert(path, {"one": "| new |"}) == ["two"] and path.read_text() == before


def test_a_marker_without_an_end_is_an_error(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("<!-- bench:one -->\ntext\n")
    with pytest.raises(BenchError, match="without its"):
        insert(path, {"one": "table"})
