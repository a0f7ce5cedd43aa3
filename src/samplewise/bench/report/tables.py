"""Markdown tables, by name. Each name can stand in a marker <!-- bench:NAME -->."""

from __future__ import annotations

from collections.abc import Sequence

from samplewise.bench.cases import FRAMES_A_SECOND, suite
from samplewise.bench.joints import by_step
from samplewise.bench.names import SAMPLED, SAMPLED_CLASSES, Method
from samplewise.bench.peers.registry import BY_METHOD
from samplewise.bench.records import Row
from samplewise.bench.report.results import Results, is_exact_peer
from samplewise.bench.report.targets import TARGETS
from samplewise.planning.budget import show_bytes

BUSY_NOTE = "† measured beside other work: not to be relied on."
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def all_tables(results: Results) -> dict[str, str]:
    """Every table that has something in it."""
    tables = {case: markdown(case_table(results, case), results) for case in results.cases}
    for name, make in (
        ("trained", trained_table),
        ("trained-sampled", trained_sampled_table),
        ("summary", summary_table),
        ("targets", targets_table),
        ("accuracy", accuracy_table),
        ("headline", headline_table),
        ("libraries", libraries_table),
        ("active", active_table),
        ("machine", machine_table),
        ("peers", peers_table),
    ):
        header, body = make(results)
        if body:
            tables[name] = markdown((header, body), results)
    return tables


def markdown(table: Table, results: Results) -> str:
    header, body = table
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join([*lines, *(["", BUSY_NOTE] if results.busy else [])])


def case_table(results: Results, case: str) -> Table:
    """Every method of a case."""
    header = ("method", "time", "quartiles", "of three GEMMs", "workspace", "error of the loss", "of the gradients")
    return header, [(shown(row), *figures(row)) for row in results.of_case(case)]


def figures(row: Row) -> tuple[str, ...]:
    if row["status"] not in ("ok", "wrong"):
        return (row["status"], *[""] * 5)
    seconds, ratio, memory, check = row["seconds"], row["ratio"], row["memory"], row["check"]
    weighed = (memory or {}).get("seconds") if row["status"] == "ok" and not seconds else None
    took = seconds["median"] if seconds else weighed
    return (
        time_of(took) if took else "wrong" if row["status"] == "wrong" else "",
        f"{time_of(seconds['q1'])} to {time_of(seconds['q3'])}, n={seconds['n']}" if seconds else "once" if weighed else "",
        f"{ratio['median']:.3g}" if ratio else "",
        show_bytes(memory["workspace"]) if memory else "",
        error(check["loss"]) if check else "",
        error(check["gradient"]) if check else "",
    )


def trained_table(results: Results) -> Table:
    """The joints of trained models under `auto`, a line a model and step."""
    header = (
        "joint of", "B×T×U×V, D", "nats a label", "`auto`", "of three GEMMs", "`tiled`, of them", "active share",
        "proved bound", "workspace",
    )  # fmt: skip
    body = []
    for row in trained_rows(results):
        case, ours = row["case"], row["ours"] or {}
        labels = sum(labels for _, labels in row["sizes"]["given"])
        body.append((
            case + mark(row), sizes_of(row), f"{row['check']['value'] / labels:.2g}" if row["check"] else "",
            seconds_of(results, case, "auto"), multiple_of(results, case, "auto"), multiple_of(results, case, "tiled"),
            share(ours.get("active_share")), bound(ours.get("outside")), bytes_of(results, case, "auto"),
        ))  # fmt: skip
    return header, body


def trained_sampled_table(results: Results) -> Table:
    """The exact loss beside the loss over sampled classes, on the joints of trained models."""
    header = (
        "joint of", "V", "exact (`auto`)", f"over {SAMPLED_CLASSES} sampled classes", "exact / sampled", "workspace, exact",
        "workspace, sampled", "the sampled loss is off by",
    )  # fmt: skip
    body = []
    for row in trained_rows(results):
        case, sampled = row["case"], results.row(row["case"], SAMPLED[0])
        quotient = results.quotient(case, "auto", SAMPLED[0])
        if sampled and quotient:
            times = seconds_of(results, case, "auto"), seconds_of(results, case, SAMPLED[0])
            off = f"{sampled['check']['loss']:.0%}" if sampled["check"] else ""
            space = bytes_of(results, case, "auto"), bytes_of(results, case, SAMPLED[0])
            body.append((case + mark(row), str(row["sizes"]["classes"]), *times, f"{quotient:.2g}", *space, off))
    return header, body


def trained_rows(results: Results) -> list[Row]:
    """Those of `auto`, in the order of the suite: models by name and step."""
    rows = [results.row(case, "auto") for case in results.cases]
    found = [row for row in rows if row and row["sizes"]["weights"] == "trained"]
    return sorted(found, key=lambda row: (*by_step(row["sizes"]["source"]), row["case"]))


def summary_table(results: Results) -> Table:
    """`auto` beside the best that there is, a line a workload."""
    header = (
        "workload",
        "B×T×U×V, D",
        "`auto`",
        "of three GEMMs",
        "workspace",
        "plain PyTorch",
        "best exact peer",
        "faster by",
    )
    body = []
    for case in (case.name for case in suite("table") if results.row(case.name, "auto")):
        row = results.row(case, "auto")
        peer = results.best_exact_peer(case)
        faster = results.quotient(case, peer, "auto") if peer else None
        assert row is not None
        body.append((
            case + mark(row), sizes_of(row), seconds_of(results, case, "auto"), multiple_of(results, case, "auto"),
            bytes_of(results, case, "auto"), f"{seconds_of(results, case, 'plain')}, {bytes_of(results, case, 'plain')}",
            f"{peer}: {seconds_of(results, case, peer)}, {bytes_of(results, case, peer)}" if peer else "none installed",
            f"{faster:.1f}×" if faster else "",
        ))  # fmt: skip
    return header, body


def targets_table(results: Results) -> Table:
    header = ("workload", "figure", "wanted", "measured", "")
    body = []
    for target in TARGETS:
        value = target.value(results)
        if value is not None:
            sign = "≤" if target.at_most else "≥"
            body.append((target.case, target.figure, f"{sign} {target.show(target.limit)}", target.show(value),
                         "met" if target.met(value) else "missed"))  # fmt: skip
    return header, body


def accuracy_table(results: Results) -> Table:
    """Errors against float64, a line a method."""
    cases = [case.name for case in suite("accuracy") if case.name in results.cases]
    header = ("method", *(f"{case}: {what}" for case in cases for what in ("loss", "gradients")))
    methods = dict.fromkeys(row["method"] for case in cases for row in results.of_case(case))
    body = []
    for method in methods:
        cells: list[str] = []
        for case in cases:
            row = results.by_key.get((case, method))
            check = row["check"] if row else None
            cells += [error(check["loss"]), error(check["gradient"])] if check else [row["status"] if row else "", ""]
        body.append((method, *cells))
    return header, body


def headline_table(results: Results) -> Table:
    """Batches from 1 to 1024, each length of audio."""
    header = ("audio", "batch", "nodes", "`auto`", "a node", "workspace", "plain PyTorch", "best exact peer")
    body = []
    for case in suite("sweep"):
        row = results.row(case.name, "auto")
        if row is None or not row["seconds"]:
            continue
        peer = results.best_exact_peer(case.name)
        plain = results.by_key.get((case.name, "plain"))
        told = [
            r["status"] for r in results.of_case(case.name) if is_exact_peer(r["method"]) and r["status"] != "not installed"
        ]
        body.append((
            f"{case.frames // FRAMES_A_SECOND} s", str(case.batch) + mark(row), f"{case.nodes:.3g}",
            time_of(row["seconds"]["median"]), f"{1e9 * row['seconds']['median'] / case.nodes:.0f} ns",
            bytes_of(results, case.name, "auto"),
            (figures(plain)[0] + ", " + figures(plain)[3]).rstrip(", ") if plain else "",
            f"{peer}: {seconds_of(results, case.name, peer)}, {bytes_of(results, case.name, peer)}" if peer
            else (told or ["none installed"])[0],
        ))  # fmt: skip
    return header, body


def libraries_table(results: Results) -> Table:
    """Every library on one batch, and what `auto` takes in its place."""
    header = ("batch", "library", "time", "of `auto`", "workspace", "of `auto`", "error of the loss", "of the gradients")
    body = []
    for case in (case.name for case in suite("migrate")):
        for row in results.of_case(case):
            method = row["method"]
            if row["status"] != "ok" or Method.parse(method).kind == "yardstick":
                continue
            times = results.quotient(case, method, "auto")
            ours, space = results.workspace(case, "auto"), results.workspace(case, method)
            check = row["check"]
            body.append((
                row["sizes"]["weights"], shown(row), seconds_of(results, case, method), f"{times:.3g}×" if times else "",
                bytes_of(results, case, method), f"{space / ours:.3g}×" if ours and space is not None else "",
                error(check["loss"]) if check else "", error(check["gradient"]) if check else "",
            ))  # fmt: skip
    return header, body


def active_table(results: Results) -> Table:
    """What our methods say about themselves."""
    header = (
        "workload", "method", "ran", "active share", "exact share", "rounds", "proved bound", "workspace", "predicted",
        "predicted / measured",
    )  # fmt: skip
    body = []
    for row in results.rows:
        ours, memory = row["ours"] or {}, row["memory"]
        predicted = ours.get("predicted_workspace")
        if row["status"] == "ok" and memory and predicted:
            body.append((
                row["case"], shown(row), ours.get("ran") or ours.get("chosen", ""),
                share(ours.get("active_share")), share(ours.get("exact_share")), f"{ours.get('rounds', 0):.0f}",
                bound(ours.get("outside")),
                show_bytes(memory["workspace"]), show_bytes(predicted), f"{predicted / max(memory['workspace'], 1):.2f}",
            ))  # fmt: skip
    return header, body


def machine_table(results: Results) -> Table:
    """Where, when and of what the figures are, a line each combination."""
    header = ("processor", "cores", "threads", "torch", "numba", "code", "when")
    found: dict[tuple[str, ...], list[str]] = {}
    for row in (row for row in results.rows if Method.parse(row["method"]).kind != "peer"):
        own, there = row["versions"], row["machine"]
        key = (there["cpu"], str(there["cores"]), str(row["threads"]), own["torch"], own["numba"], row["commit"])
        found.setdefault(key, []).append(row["when"][:10])
    return header, [
        (*key, min(when) if min(when) == max(when) else f"{min(when)} to {max(when)}") for key, when in found.items()
    ]


def peers_table(results: Results) -> Table:
    """The other libraries that were measured, and with which torch."""
    found = {}
    for row in results.rows:
        base = Method.parse(row["method"]).base
        if base in BY_METHOD and row["status"] != "not installed":
            peer = BY_METHOD[base]
            found[peer.name] = (peer.name, row["versions"].get(peer.distribution, ""), row["versions"].get("torch", ""))
    return ("library", "version", "torch"), list(found.values())


def shown(row: Row) -> str:
    return row["method"] + mark(row)


def mark(row: Row) -> str:
    return " †" if row["busy"] and row["status"] == "ok" else ""


def sizes_of(row: Row) -> str:
    s = row["sizes"]
    return f"{s['batch']}×{s['frames']}×{s['labels']}×{s['classes']}, {s['dim']}"


def seconds_of(results: Results, case: str, method: str) -> str:
    """The time, or why there is none."""
    seconds, row = results.seconds(case, method), results.by_key.get((case, method))
    return time_of(seconds) if seconds is not None else row["status"] if row else "not measured"


def multiple_of(results: Results, case: str, method: str) -> str:
    """The time as a multiple of the three matrix products'."""
    ratio = results.ratio(case, method)
    return "" if ratio is None else f"{ratio:.2g}"


def bytes_of(results: Results, case: str, method: str) -> str:
    workspace = results.workspace(case, method)
    return show_bytes(workspace) if workspace is not None else "no figure"


def time_of(seconds: float) -> str:
    if seconds >= 60:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def bound(value: float | None) -> str:
    """Of the share of occupancy outside the exact nodes."""
    return "" if value is None else f"{value:.0e}" if value else "0"


def error(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"
