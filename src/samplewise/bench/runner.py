"""One case: every method weighed alone, checked, and then timed in turns with all others."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samplewise.bench import machine
from samplewise.bench.cases import Case
from samplewise.bench.environments import Place, here, place_of
from samplewise.bench.figures import pairwise, summary
from samplewise.bench.names import YARDSTICK, Method
from samplewise.bench.protocol import WorkerError, WorkerProcess, worker_environment
from samplewise.bench.records import SCHEMA, Row
from samplewise.cache import cache_directory

CHECK_WHOLE = 5 * 10**11  # multiply-adds of one output layer up to which a case is checked as it is
CHECK_NODES = 4 * 10**6  # nodes likewise: the truth keeps a graph of them, some 600 bytes each
CHECK_REDUCED = 2 * 10**9  # and what larger ones are cut down to
SLOW, VERY_SLOW, FEW_ROUNDS = 10.0, 60.0, 3  # seconds of a step; rounds of a slow one. A very slow one's first step counts
PATIENCE = 3600.0  # seconds for the truth


@dataclass(frozen=True)
class Settings:
    """How to measure. budget: of our methods, bytes; limit: of a worker beyond what it holds, bytes; timeout: of a step, s."""

    threads: int
    rounds: int = 7
    budget: int | None = None
    limit: int | None = None
    timeout: float = 600.0


class CaseRun:
    """The rows of some methods on one case. A method that fails gets its row at once and takes no further part."""

    def __init__(
        self,
        case: Case,
        settings: Settings,
        commit: str,
        scratch: Path,
        sink: Callable[[Row], None],
        say: Callable[[str], None],
    ) -> None:
        self.case, self.settings, self.commit, self.scratch, self.sink, self.say = case, settings, commit, scratch, sink, say
        self.session = uuid.uuid4().hex[:12]
        self.found: dict[str, dict[str, Any]] = {}  # of the methods that are still in
        self.places: dict[str, Place] = {}
        self.watch = machine.Watch()

    def run(self, methods: Sequence[str]) -> None:
        for method in methods:
            place = place_of(method)
            if isinstance(place, Place):
                self.places[method], self.found[method] = place, {}
            else:
                self.finish(method, "not installed" if place.startswith("not installed") else "failed", place)
        timed = "time" in self.case.measures and bool(self.found)
        if "memory" in self.case.measures:
            self.each(self.weigh)
        if timed or "check" in self.case.measures:
            self.check_and_time(timed)
        yardstick = self.found.get(YARDSTICK, {}).get("times")
        for method in list(self.found):
            if method in methods:
                self.finish(method, "ok", "", yardstick)

    def each(self, do: Callable[[str], None]) -> None:
        """Do it for every method that is still in; one that fails gets its row."""
        for method in list(self.found):
            try:
                do(method)
            except WorkerError as error:
                self.finish(method, error.status, error.reason)

    def worker(self, method: str, memory: bool) -> WorkerProcess:
        environment = worker_environment(self.settings.threads, cache_directory(), memory)
        return WorkerProcess(self.places[method].python, environment)

    def prepare(self, worker: WorkerProcess, method: str) -> dict[str, Any]:
        s = self.settings
        return worker.ask(
            s.timeout, do="prepare", case=asdict(self.case), method=method, threads=s.threads, budget=s.budget, limit=s.limit
        )

    def weigh(self, method: str) -> None:
        if Method.parse(method).kind == "yardstick":
            return
        self.say(f"{self.case.name}: memory of {method}")
        with self.worker(method, memory=True) as worker:
            inputs = self.prepare(worker, method)["inputs"]
            weighed = worker.ask(self.settings.timeout, do="weigh")
        self.found[method]["ours"] = weighed.pop("ours")
        self.found[method]["memory"] = {**weighed, "inputs": inputs}

    def check_and_time(self, timed: bool) -> None:
        if timed and YARDSTICK not in self.found:  # its own row may be there already, but ratios are taken within one run
            self.places[YARDSTICK], self.found[YARDSTICK] = here(), {}
        with ExitStack() as stack:
            workers: dict[str, WorkerProcess] = {}

            def start(method: str) -> None:
                self.say(f"{self.case.name}: check of {method}")
                workers[method] = stack.enter_context(self.worker(method, memory=False))
                self.prepare(workers[method], method)
                if Method.parse(method).kind != "yardstick":
                    self.check(workers[method], method)
                if not timed:
                    workers[method].close()

            self.each(start)
            if timed:
                self.watch = machine.Watch()
                self.time(workers)

    def check(self, worker: WorkerProcess, method: str) -> None:
        whole = self.case.products <= CHECK_WHOLE and self.case.nodes <= CHECK_NODES
        case = self.case if whole else self.case.reduced(CHECK_REDUCED)
        checked = worker.ask(self.settings.timeout, do="check", case=asdict(case), path=str(self.truth(case)))
        self.found[method]["check"] = checked
        if not checked["ok"] and not Method.parse(method).approximate:
            worker.close()
            raise WorkerError("wrong", f"loss off by {checked['loss']:.1e}, gradients by {checked['gradient'] or 0.0:.1e}")

    def truth(self, case: Case) -> Path:
        """The file of the case's loss and gradients in float64, made once a run."""
        digest = hashlib.sha256(json.dumps(case.sizes(), sort_keys=True, allow_nan=False).encode()).hexdigest()
        path = self.scratch / f"{digest[:16]}.pt"
        if not path.exists():
            self.say(f"{self.case.name}: truth in float64")
            environment = worker_environment(self.settings.threads, cache_directory(), False)
            with WorkerProcess(here().python, environment) as worker:
                worker.ask(PATIENCE, do="truth", case=asdict(case), path=str(path), threads=self.settings.threads)
        return path

    def time(self, workers: dict[str, WorkerProcess]) -> None:
        """Round after round, forwards and backwards in turn, so that whatever drifts is shared."""
        rounds = dict.fromkeys(self.found, self.settings.rounds)

        def step(method: str) -> None:
            times = self.found[method].setdefault("times", [])
            if len(times) > rounds[method]:
                return
            self.say(f"{self.case.name}: {method}, step {len(times)} of {rounds[method]}")
            answer = workers[method].ask(self.settings.timeout, do="step")
            times.append(answer["seconds"])
            if len(times) == 1:
                self.found[method].setdefault("ours", {}).update(answer.get("ours", {}))
                wanted = 0 if times[0] > VERY_SLOW else FEW_ROUNDS if times[0] > SLOW else self.settings.rounds
                rounds[method] = min(wanted, self.settings.rounds)

        for _ in range(self.settings.rounds + 1):
            self.each(step)
            self.found = dict(reversed(self.found.items()))

    def finish(self, method: str, status: str, reason: str, yardstick: Sequence[float] | None = None) -> None:
        found = self.found.pop(method, {})
        times = found.get("times") if status == "ok" else None
        others = self.watch.others()
        self.sink({
            "schema": SCHEMA, "case": self.case.name, "method": method, "status": status, "reason": reason,
            "seconds": summary(times) if times else None, "ratio": pairwise(times, yardstick) if times and yardstick else None,
            "times": times, "memory": found.get("memory"), "check": found.get("check"), "ours": found.get("ours") or None,
            "sizes": self.case.sizes(), "nodes": self.case.nodes,
            "commit": self.commit, "session": self.session, "threads": self.settings.threads, "budget": self.settings.budget,
            "limit": self.settings.limit,
            "versions": {**machine.versions(), **(self.places[method].versions if method in self.places else {})},
            "machine": machine.describe_machine(), "load": machine.load_average(), "others": round(others, 3),
            "steal": round(self.watch.steal(), 3), "busy": others > machine.MOST_BY_OTHERS,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        })  # fmt: skip
