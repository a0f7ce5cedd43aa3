"""What is measured: sizes, lengths and seeds, by name, in suites. No torch here."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from samplewise.bench.joints import Joint, joints
from samplewise.bench.names import OURS, PEER_METHODS, SAMPLED, SAMPLED_CLASSES, YARDSTICK

WEIGHED = ("auto", "tiled", "batched", "plain")

LONGER = {"bible_step3000": (0, 1, 0)}  # utterances of a file that are joined to one long one
LARGEST_PLAIN = 1 << 30  # bytes of 4-D logits up to which plain PyTorch is measured on a trained model's joint

FRAMES_A_SECOND, LABELS_A_SECOND = 25, 2.5  # of the sweep's audio: 40 ms a frame after subsampling, words or large word pieces


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
        name: unique among all cases.
        weights: "random"; "planted" alignments, the extreme of a model that is sure; "trained", what the joint of a trained
            model sees; or "sure", one utterance without a loss to speak of, to warm up with.
        batch, frames, labels, classes, dim: B, T, U, V and D.
        ragged: lengths from 20% to 100% of T and U; otherwise every utterance has T frames and U labels.
        scale: factor on the output layer, to make logits large.
        seed: of the random numbers.
        measures: what is measured of "check", "time" and "memory"; a check comes before a time in any case.
        methods: which ones are run unless the command names some.
        source: trained: the name of the file (joints.py).
        utterances: trained: which ones of the file are joined to each utterance of the batch.
        given: trained: frames and labels of each utterance of the batch.
    """

    name: str
    weights: str
    batch: int
    frames: int
    labels: int
    classes: int
    dim: int
    ragged: bool = False
    scale: float = 1.0
    seed: int = 1
    measures: tuple[str, ...] = ("check", "time", "memory")
    methods: tuple[str, ...] = (*OURS, "auto:loss", "plain", "gemm1", YARDSTICK, "tanh", *PEER_METHODS)
    source: str = ""
    utterances: tuple[tuple[int, ...], ...] = ()
    given: tuple[tuple[int, int], ...] = ()

    def lengths(self) -> tuple[list[int], list[int]]:
        """Frames and labels of each utterance; but for trained models the first one is full."""
        if self.given:
            each = self.given[: self.batch]
            return [min(t, self.frames) for t, _ in each], [min(u, self.labels) for _, u in each]
        if not self.ragged:
            return [self.frames] * self.batch, [self.labels] * self.batch
        draw = random.Random(self.seed)
        shares = [1.0] + [0.2 + 0.8 * draw.betavariate(2.0, 1.5) for _ in range(self.batch - 1)]
        frames = [max(1, round(self.frames * share)) for share in shares]
        labels = [self.labels] + [round(self.labels * share * draw.uniform(0.8, 1.0)) for share in shares[1:]]
        return frames, labels

    @property
    def nodes(self) -> int:
        """N, without padding."""
        return sum(t * (u + 1) for t, u in zip(*self.lengths(), strict=True))

    @property
    def products(self) -> int:
        """Multiply-adds of one output layer, N D V."""
        return self.nodes * self.dim * self.classes

    def reduced(self, products: int) -> Case:
        """The same kind of workload with at most so many multiply-adds: fewer utterances, then shorter ones."""
        case = self
        while case.products > products and (case.batch, case.frames, case.labels) != (1, 1, 0):
            if case.batch > 2:
                case = replace(case, batch=max(2, case.batch // 2))
            else:
                case = replace(case, frames=max(1, case.frames * 3 // 4), labels=case.labels * 3 // 4)
        return case

    def sizes(self) -> dict[str, Any]:
        """What decides the workload, without names and choices: the key under which rows of it are found again."""
        unused = {"name", "measures", "methods", *(() if self.source else ("source", "utterances", "given"))}
        return {key: value for key, value in asdict(self).items() if key not in unused}


def case_from(values: dict[str, Any]) -> Case:
    """The inverse of dataclasses.asdict, after a trip through JSON."""
    arguments: dict[str, Any] = {key: tuples(value) for key, value in values.items()}
    return Case(**arguments)


def tuples(value: Any) -> Any:
    """Lists within lists as tuples."""
    return tuple(tuples(inner) for inner in value) if isinstance(value, list) else value


def quick() -> list[Case]:
    """A trial of everything: no figure of it means anything."""
    ours = ("auto", "guided", "tiled-exact", "batched")
    return [
        Case("quick-planted", "planted", 2, 40, 8, 64, 32, methods=(*ours, "plain", YARDSTICK, "optimized-transducer")),
        Case("quick-random", "random", 2, 30, 6, 40, 24, methods=("auto", "auto:loss", "auto:bf16", YARDSTICK)),
        Case("quick-ragged", "random", 4, 30, 6, 40, 24, ragged=True, methods=("auto", YARDSTICK)),
    ]


def trained() -> list[Case]:
    """What the joints of trained models see: the utterances of each file as one batch; of some, joined to a longer one, too."""
    found = []
    for joint in joints():
        found.append(of_joint(joint.name, joint, tuple((i,) for i in range(len(joint.lengths)))))
        if joint.name in LONGER:
            found.append(of_joint(f"{joint.name}-long", joint, (LONGER[joint.name],)))
    return found


def of_joint(name: str, joint: Joint, utterances: tuple[tuple[int, ...], ...]) -> Case:
    given = tuple((sum(joint.lengths[i][0] for i in some), sum(joint.lengths[i][1] for i in some)) for some in utterances)
    frames, labels = max(t for t, _ in given), max(u for _, u in given)
    plain = ("plain",) if 4 * len(given) * frames * (labels + 1) * joint.classes <= LARGEST_PLAIN else ()
    sampled = SAMPLED[:1] if joint.classes > SAMPLED_CLASSES else ()
    return Case(
        name, "trained", len(given), frames, labels, joint.classes, joint.dim,
        methods=("auto", "tiled", "guided", *plain, *sampled, YARDSTICK),
        source=joint.name, utterances=utterances, given=given,
    )  # fmt: skip


def table() -> list[Case]:
    """The sizes at which samplewise has to reach its figures."""
    more = ("tiled-exact:loss", "auto:bf16", "tiled-exact:bf16", "gemm3:bf16")
    everything = Case.methods
    lengths = ("auto", "tiled", "tiled-exact", YARDSTICK)
    return [
        Case("planted", "planted", 4, 300, 60, 2048, 512, methods=(*everything, *more)),
        Case("planted-long", "planted", 2, 600, 120, 4096, 512),
        Case("random", "random", 4, 300, 60, 2048, 512, methods=(*everything, *more)),
        Case("planted-8192", "planted", 4, 300, 60, 8192, 512),
        Case("planted-1500", "planted", 1, 1500, 300, 2048, 512),
        Case("characters", "random", 16, 400, 100, 32, 256),
        Case("dense", "random", 8, 300, 60, 1024, 256, methods=lengths),
        Case("ragged", "random", 12, 300, 60, 1024, 256, ragged=True, methods=lengths),
    ]


def accuracy() -> list[Case]:
    """Errors alone. Large output weights make most sums underflow."""
    methods = (*OURS, "plain", *PEER_METHODS)
    base = Case("accuracy", "random", 2, 800, 60, 500, 256, measures=("check",), methods=methods)
    planted = replace(base, name="accuracy-planted", weights="planted")
    return [base, planted, replace(base, name="accuracy-x300", scale=300.0)]


def sweep(seconds: tuple[int, ...] = (10, 20, 30, 40)) -> list[Case]:
    """The paper's sweep: batches from 1 to 1024, 10 to 40 s of audio, at sizes of the output layer that a CPU can do."""
    methods = ("auto", "tiled", "batched", "plain", YARDSTICK, "optimized-transducer", "fast-rnnt", "torchaudio")
    return [
        Case(
            f"sweep-{length}s-{batch}", "random", batch, length * FRAMES_A_SECOND, round(length * LABELS_A_SECOND), 256, 64,
            methods=methods,
        )
        for length in seconds
        for batch in (1, 4, 16, 64, 256, 1024)
    ]  # fmt: skip


def headline() -> list[Case]:
    """Batches from 1 to 1024 of 1000 frames and 100 labels: the 40 s of the sweep."""
    return sweep((40,))


AXES = {
    "batch": (1, 2, 4, 8, 16, 32),
    "frames": (50, 100, 200, 400, 800),
    "labels": (10, 20, 40, 80, 160),
    "classes": (64, 256, 1024, 4096, 8192),
}
AXES_BASE = Case(
    "axes", "planted", 4, 200, 40, 1024, 256,
    methods=(*WEIGHED, YARDSTICK, "optimized-transducer", "fast-rnnt", "fast-rnnt-pruned", "torchaudio"),
)  # fmt: skip


def axes() -> list[Case]:
    """One size changed at a time, for the plots of time and memory against B, T, U and V."""
    found = {}
    for axis, values in AXES.items():
        for value in values:
            change: dict[str, Any] = {axis: value}
            case = replace(AXES_BASE, **change)
            name = f"axes-{case.batch}x{case.frames}x{case.labels}x{case.classes}"
            found[name] = replace(case, name=name)
    return list(found.values())


def lattice() -> list[Case]:
    """Memory alone, against the size of the lattice."""
    sizes = ((50, 10), (100, 20), (200, 40), (400, 80), (800, 160), (1600, 320))
    methods = ("auto", "plain", "optimized-transducer", "fast-rnnt", "torchaudio", "warprnnt-numba", "nemo")
    return [
        Case(f"lattice-{t}x{u}", "planted", 4, t, u, 1024, 512, measures=("memory",), methods=methods) for t, u in sizes
    ]  # fmt: skip


def sampled() -> list[Case]:
    """Sampled softmax beside the full one: its loss is another one, so its errors are shown and not judged."""
    methods = ("auto", "guided", "tiled", "batched", *SAMPLED, YARDSTICK)
    return [Case(f"sampled-{classes}", "random", 4, 300, 60, classes, 512, methods=methods) for classes in (2048, 8192)]


SCALING_LABELS = (20, 50, 100, 200, 400, 800, 2000)
SCALING_CLASSES = (128, 256, 512, 1024, 2048, 4096, 8192)


def scaling() -> list[Case]:
    """One trained model over U, its utterances cut or joined, and over V, with fewer classes, or each class several times: time
    a node must have no cliff."""
    source = next((joint for joint in joints() if joint.name in LONGER), None)
    if source is None:
        return []
    found = []
    for count in SCALING_LABELS:
        case = of_joint(f"scaling-labels-{count}", source, ((0,) * -(-count // source.lengths[0][1]),))
        found.append(replace(case, frames=case.frames * count // case.labels, labels=count))
    pair = tuple((i,) for i in range(len(source.lengths)))
    found += [replace(of_joint(f"scaling-classes-{count}", source, pair), classes=count) for count in SCALING_CLASSES]
    methods = ("auto", YARDSTICK)
    return [replace(case, measures=("time",), methods=methods[: 2 if case.labels < 1000 else 1]) for case in found]


def long() -> list[Case]:
    """Utterances of which not even three floats a node would fit the workspace; the second is an hour of frames of 100 ms. One
    step each, timed as it is weighed."""
    measures = ("memory", "check")
    return [
        Case("long-20000", "planted", 1, 20000, 2000, 64, 32, measures=measures, methods=("auto", "tiled")),
        Case("long-36000", "planted", 1, 36000, 9000, 1024, 256, measures=measures, methods=("auto",)),
    ]


def migrate() -> list[Case]:
    """One batch for every library side by side: 8 utterances of 16 s at 80 ms a frame, 1025 word pieces, as NeMo's recipes have
    them; at random weights, and as sure as a trained model."""
    methods = ("auto", "plain", YARDSTICK, *PEER_METHODS)
    base = Case("migrate", "random", 8, 200, 60, 1025, 640, ragged=True, methods=methods)
    return [base, replace(base, name="migrate-planted", weights="planted")]


SUITES = {
    made.__name__: made
    for made in (quick, trained, table, accuracy, headline, sweep, axes, lattice, sampled, scaling, long, migrate)
}
FROM_FILES = ("trained", "scaling")  # suites whose cases are joints of trained models, which the repository does not hold


def suite(name: str) -> list[Case]:
    return SUITES[name]()
