"""Searches of every topology: hand-made joints whose best path is known, and beams against every label sequence there is."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from samplewise import Joiner
from samplewise import topology as topologies
from samplewise.asr.beam import Hypothesis, Search, beam_search
from samplewise.asr.decode import greedy
from samplewise.asr.model import Transducer
from samplewise.asr.moves import moves_of
from samplewise.reference import reference_loss_from_logits
from samplewise.topology import Topology

from .made import network

RECIPES = {
    "regular": {},
    "modified": {"loss": {"topology": "modified"}},
    "constrained": {"loss": {"topology": "constrained"}},
    "hat": {"loss": {"topology": "hat"}},
    "hat, head": {"loss": {"topology": "hat"}, "joiner": {"dim": 16, "blank_head": True}},
    "multi_blank": {"loss": {"topology": "multi_blank", "big_blank_durations": [2, 3], "sigma": 0.05}},
    "tdt": {"loss": {"topology": "tdt", "durations": [0, 1, 2, 3], "sigma": 0.05}},
    "tdt, one symbol": {"loss": {"topology": "tdt", "durations": [2, 1]}},
}


class Tabled(Joiner):
    """Scores by frame and number of labels: a table (T, U+1, V + extra)."""

    def __init__(self, table: torch.Tensor, topology: Topology):
        super().__init__(1, 1, 1, table.shape[2] - topology.extra, topology=topology)
        self.table = table

    def forward(self, encoder_out, predictor_out, *_):
        return self.table[encoder_out[..., 0].long(), predictor_out[..., 0].long()]


class Counting:
    """A predictor whose output is the number of labels."""

    def start(self, batch):
        return torch.zeros(batch, 1), (torch.zeros(1, batch, 1),)

    def step(self, labels, state):
        return state[0][0] + 1, (state[0] + 1,)


def decode(topology: Topology, path: dict, frames: int, classes: int = 6, beam: int = 1, max_symbols: int = 5):
    """What is found where the nodes of `path` say their symbol and perhaps a duration, and all others the last class."""
    table = torch.zeros(frames, 12, classes + topology.extra)
    table[..., classes - 1], table[..., 0] = 8.0, -9.0
    for (t, u), said in path.items():
        table[t, u, classes - 1] = 0.0
        symbol, *duration = said if isinstance(said, tuple) else (said,)
        table[t, u, symbol] = 9.0
        for each in duration:
            table[t, u, classes + each] = 9.0
    model = SimpleNamespace(
        encoder=lambda features, lengths: (features, lengths), predictor=Counting(), joiner=Tabled(table, topology),
        moves=moves_of(topology, 0),
    )  # fmt: skip
    features, lengths = torch.arange(frames, dtype=torch.float32)[None, :, None], torch.tensor([frames])
    if beam == 1:
        return greedy(model, features, lengths, max_symbols)
    return beam_search(model, features, lengths, beam, max_symbols)


PATHS = [
    (topologies.regular(), {(0, 0): 1, (0, 1): 0, (1, 1): 2, (1, 2): 0}, 2, [1, 2], 4),
    (topologies.hat(), {(0, 0): 1, (0, 1): 0, (1, 1): 2, (1, 2): 0}, 2, [1, 2], 4),
    (topologies.modified(), {(0, 0): 1, (1, 1): 2, (2, 2): 0}, 3, [1, 2], 3),
    (topologies.modified(), {(0, 0): 0, (1, 0): 2, (2, 1): 2}, 3, [2, 2], 3),
    (topologies.constrained(), {(0, 0): 1, (0, 1): 0, (1, 1): 0, (2, 1): 0}, 3, [1], 3),
    (topologies.multi_blank((2, 3), (3, 4)), {(0, 0): 3, (2, 0): 1, (2, 1): 4}, 5, [1], 3),
    (topologies.tdt((0, 1, 3)), {(0, 0): (1, 0), (0, 1): (2, 2), (3, 2): (0, 1)}, 4, [1, 2], 3),
    (topologies.tdt((2, 1)), {(0, 0): (1, 0), (2, 1): (3, 1), (3, 2): (0, 0)}, 5, [1, 3], 3),
]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(("topology", "path", "frames", "labels", "steps"), PATHS, ids=lambda value: str(value)[:30])
def test_the_best_path_is_found(topology, path, frames, labels, steps, beam):
    found = decode(topology, path, frames, beam=beam)
    assert found == [labels] and found.capped == [0] and found.frames == [frames]
    assert beam > 1 or found.steps == [steps]


def test_a_blank_goes_on_a_frame_whatever_its_duration():
    path = {(0, 0): (0, 0), (1, 0): (2, 1), (2, 1): (0, 0), (3, 1): (0, 0)}
    found = decode(topologies.tdt((0, 1)), path, 4)
    assert found == [[2]] and found.steps == [4]


@pytest.mark.parametrize("topology", [topologies.multi_blank((4,), (3,)), topologies.tdt((0, 1, 4))], ids=str)
def test_greedy_search_may_go_beyond_the_end(topology):
    symbol = 3 if topology.name == "multi_blank" else (0, 2)
    found = decode(topology, {(0, 0): symbol}, 2)
    assert found == [[]] and found.steps == [1]


@pytest.mark.parametrize("name", ["regular", "hat", "multi_blank", "tdt"])
def test_a_label_that_stays_may_come_so_often(name):
    topology = topologies.multi_blank((2,), (1,)) if name == "multi_blank" else topologies.named(name)
    path = {(t, u): (2, 0) if name == "tdt" else 2 for t in range(3) for u in range(12)}
    found = decode(topology, path, 3, max_symbols=2)
    assert found == [[2] * 6] and found.capped == [3] and found.steps == [6]


def test_a_label_that_leaves_its_frame_is_not_cut_short():
    path = {(t, u): (2, 1) for t in range(3) for u in range(12)}
    found = decode(topologies.tdt((0, 1)), path, 3, max_symbols=1)
    assert found == [[2] * 3] and found.capped == [0]


@pytest.mark.parametrize(("score", "labels"), [(0.2, []), (-0.2, [1])])
def test_the_blank_of_hat_stands_against_what_it_leaves_to_the_labels(score, labels):
    """P(blank) = sigmoid(0.2) is more than half, however high a label scores among the labels."""
    table = torch.tensor([score, 5.0, 0.0, 0.0]).expand(1, 2, 4).clone()
    table[0, 1, 0] = 9.0
    joiner = Tabled(table, topologies.hat())
    probabilities = joiner.log_probs(table)[0][0, 0].exp()
    torch.testing.assert_close(probabilities[0], torch.tensor(score).sigmoid())
    torch.testing.assert_close(probabilities[1:], (1 - probabilities[0]) * table[0, 0, 1:].softmax(0))
    model = SimpleNamespace(
        encoder=lambda x, n: (x, n), predictor=Counting(), joiner=joiner, moves=moves_of(topologies.hat(), 0)
    )
    assert greedy(model, torch.zeros(1, 1, 1), torch.tensor([1])) == [labels]


def slow(model: Transducer, features: torch.Tensor, max_symbols: int) -> tuple[list[int], int]:
    """One utterance, greedily, the predictor run anew at every node; its labels and the number of nodes."""
    encoder_out, _ = model.encoder(features.unsqueeze(0), torch.tensor([len(features)]))
    options, vocabulary = model.options, model.vocab_size
    labels: list[int] = []
    frame = emitted = nodes = 0
    while frame < encoder_out.shape[1]:
        predicted = model.predictor(torch.tensor([labels], dtype=torch.long).reshape(1, -1))[:, -1:]
        scores = model.joiner(encoder_out[:, frame : frame + 1], predicted).flatten()
        nodes += 1
        goes_on = int(options.topology in ("modified", "constrained"))
        best = int(scores[: len(scores) - len(options.durations or ())].argmax())
        if options.topology == "hat":
            best = 1 + int(scores[1:].argmax())
            if scores[0].sigmoid() > (-scores[0]).sigmoid() * scores[1:].softmax(0).max():
                best = 0
        if options.topology == "tdt":
            goes_on = options.durations[int(scores[vocabulary:].argmax())]
        if best == 0 or best >= vocabulary:
            of_blank = {0: max(1, goes_on), vocabulary: 2, vocabulary + 1: 3}
            frame, emitted = frame + of_blank[best], 0
            continue
        labels.append(best)
        emitted += 1
        if goes_on or emitted == max_symbols:
            frame, emitted = frame + max(1, goes_on), 0
    return labels, nodes


@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_greedy_search_of_a_batch_against_one_utterance_at_a_time(name):
    found, lengths = [], torch.tensor([24, 2, 11, 17, 6])
    for seed, bias in itertools.product(range(3), (-1.0, 1.0)):
        model = network(seed, bias if name != "hat, head" else 0.0, **RECIPES[name])
        features = torch.randn(5, 24, 12)
        decoded = greedy(model, features, lengths, max_symbols=3)
        expected = [slow(model, features[i, :n], 3) for i, n in enumerate(lengths.tolist())]
        assert list(zip(decoded, decoded.steps, strict=True)) == expected
        found += decoded
    assert len(set(map(len, found))) > 3, "the cases are not all alike"


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_utterances_have_no_influence_on_each_other(name, beam):
    model = network(6, -1.0, scale=4.0, **RECIPES[name])
    features, lengths = torch.randn(5, 24, 12), torch.tensor([24, 2, 11, 1, 6])

    def decoded(features, lengths):
        found = greedy(model, features, lengths, 3) if beam == 1 else beam_search(model, features, lengths, beam, 3)
        return list(zip(found, found.steps, found.capped, found.frames, strict=True))

    together = decoded(features, lengths)
    assert together == [
        each for i, n in enumerate(lengths.tolist()) for each in decoded(features[i : i + 1, :n], lengths[i : i + 1])
    ]
    assert together[3] == ([], 0, 0, 0) and any(labels for labels, *_ in together)


def likelihood(model: Transducer, features: torch.Tensor, labels: tuple[int, ...]) -> float:
    """Log-probability of a label sequence over all its alignments, without what training takes from it (sigma)."""
    targets = torch.tensor([labels], dtype=torch.long).reshape(1, -1)
    encoder_out, lengths = model.encoder(features[None], torch.tensor([len(features)]))
    scores = model.joiner(encoder_out, model.predictor(targets))
    topology = model.joiner.topology
    if topology.parameters:
        topology = getattr(topologies, topology.name)(**{**dict(topology.parameters), "sigma": 0.0})
    return -reference_loss_from_logits(scores, targets, lengths, torch.tensor([len(labels)]), topology=topology).item()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_a_wide_beam_has_the_score_of_every_label_sequence(name, seed):
    most, frames = 2, 4 if name.startswith("tdt") else 3
    model = network(seed, 1.0 if name != "hat, head" else 0.0, classes=3, **RECIPES[name])
    features = torch.randn(2 * frames, 12)
    encoder_out, _ = model.encoder(features[None], torch.tensor([2 * frames]))
    [found] = Search(model, 3000, most, [frames]).run(encoder_out)
    every = [labels for length in range(most + 1) for labels in itertools.product((1, 2), repeat=length)]
    exact = {labels: likelihood(model, features, labels) for labels in every}
    possible = {labels: score for labels, score in exact.items() if score > -float("inf")}
    assert {labels: found[labels].score for labels in every if labels in found} == pytest.approx(possible, abs=1e-4)
    if name in ("modified", "constrained"):  # there are no more
        assert max(map(len, found)) == frames and len(found) == sum(2**length for length in range(frames + 1))
    likeliest = max(found, key=lambda labels: found[labels].score)
    assert tuple(beam_search(model, features[None], torch.tensor([2 * frames]), 3000, most)[0]) == likeliest


@torch.no_grad()
def test_equal_sequences_that_reach_a_frame_by_several_ways_are_merged():
    model = network(0, 1.0, classes=3, **RECIPES["tdt"])
    search = Search(model, 100, 1, [9])
    one, two = Hypothesis(-1.0, 0), Hypothesis(-2.0, 0)
    left = {0: {2: {(): two}}}
    search.one_frame(torch.randn(1, model.encoder.dim), 0, {0: {(): one}}, left)
    assert set(left[0]) == {1, 2, 3} and left[0][2][()].score > -2.0
    symbols, durations = search.look(torch.randn(1, model.encoder.dim), [(0, (), one)])
    assert symbols.shape == (1, 3) and len(durations[0]) == 4


@pytest.mark.parametrize("name", RECIPES)
def test_a_narrow_beam_finds_something_for_every_length(name):
    model = network(5, 0.5 if name != "hat, head" else 0.0, scale=4.0, **RECIPES[name])
    lengths = torch.arange(1, 25)
    found = beam_search(model, torch.randn(24, 24, 12), lengths, 2, 2)
    assert len(found) == 24 and found.frames == [length // 2 for length in range(1, 25)]
    assert all(steps >= 1 for steps in found.steps[1:]) and found.steps[0] == 0


@pytest.mark.parametrize(
    ("topology", "least"),
    [
        (topologies.regular(), [1, 1, 1]),
        (topologies.modified(), [1, 1, 5]),
        (topologies.constrained(), [1, 1, 5]),
        (topologies.hat(), [1, 1, 1]),
        (topologies.multi_blank((2,), (9,)), [1, 1, 1]),
        (topologies.tdt((0, 1)), [1, 1, 1]),
        (topologies.tdt((2, 1)), [1, 2, 6]),
    ],
    ids=str,
)
def test_the_fewest_frames_are_those_that_have_a_path(topology, least):
    moves = moves_of(topology, 0)
    for labels, frames in zip((0, 1, 5), least, strict=True):
        assert moves.least_frames(labels) == frames
        for length in (frames - 1, frames):
            scores = torch.randn(1, max(1, length), labels + 1, 10 + topology.extra)
            targets = torch.randint(1, 9, (1, labels))
            sizes = torch.tensor([length]), torch.tensor([labels])
            possible = length > 0 and reference_loss_from_logits(scores, targets, *sizes, topology=topology).isfinite()
            assert bool(possible) == (length >= frames)
