"""The drawings of docs/concepts.md, as SVG.

Usage: python scripts/pictures.py [--output docs/pictures] [--joint bible_step3000.npz]

The heat map is computed: occupancies of one utterance by the joint of a trained model (a file as `samplewise bench export`
makes it). Without such a file the other drawings are made alone. Colours are those of Okabe and Ito.
"""

from __future__ import annotations

import argparse
import itertools
import math
from html import escape
from pathlib import Path

BLUE, ORANGE, GREEN, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#888888"
STYLE = "font-family:system-ui,sans-serif;font-size:15px"


class Drawing:
    """Shapes of an SVG of a width and a height."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def rectangle(self, x: float, y: float, w: float, h: float, fill: str, opacity: float = 1.0, edge: str = "none") -> None:
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" fill-opacity="{opacity:g}" stroke="{edge}"/>'
        )

    def polygon(self, points: list[tuple[float, float]], fill: str, opacity: float = 1.0, edge: str = "none") -> None:
        listed = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(f'<polygon points="{listed}" fill="{fill}" fill-opacity="{opacity:g}" stroke="{edge}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.5, arrow: bool = False) -> None:
        if arrow:  # upwards or to the right
            head = 4 + 2 * width
            dx, dy = (1, 0) if x2 > x1 else (0, -1)
            x, y = x2 - head * dx, y2 - head * dy
            self.polygon([(x2, y2), (x - head / 2 * dy, y - head / 2 * dx), (x + head / 2 * dy, y + head / 2 * dx)], colour)
            x2, y2 = x, y
        self.shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="{width:g}"/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str, opacity: float = 1.0) -> None:
        self.shapes.append(f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{fill}" fill-opacity="{opacity:g}"/>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", colour: str = "#777", size: int = 15) -> None:
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" style="{STYLE}">'
            f"<title>{escape(self.title)}</title>" + "".join(self.shapes) + "</svg>\n"
        )


def box(drawing: Drawing, x: float, y: float, w: float, h: float, depth: float, fill: str, opacity: float = 0.25) -> None:
    """A block in parallel projection: its front, its top, its side."""
    dx, dy = depth * 0.7, -depth * 0.45
    drawing.polygon([(x, y), (x + dx, y + dy), (x + w + dx, y + dy), (x + w, y)], fill, opacity + 0.2, fill)
    drawing.polygon([(x + w, y), (x + w + dx, y + dy), (x + w + dx, y + h + dy), (x + w, y + h)], fill, opacity + 0.35, fill)
    drawing.rectangle(x, y, w, h, fill, opacity, fill)


def tensor() -> Drawing:
    """What others hold, and what is held here."""
    drawing = Drawing(760, 330, "The 4-D output tensor of four utterances, and one tile of it")
    drawing.text(20, 26, "others: every score of every node, padding too", colour=ORANGE)
    for b in range(4):
        x, y = 40 + 24 * b, 190 - 30 * b
        box(drawing, x, y, 150, 70, 110, ORANGE, 0.12)
    drawing.text(115, 282, "T frames", "middle", size=13)
    drawing.text(34, 232, "U+1", "end", size=13)
    drawing.text(262, 246, "V classes", size=13)
    drawing.text(40, 66, "B utterances", size=13)
    drawing.line(405, 40, 405, 300, GREY, 1)
    drawing.text(430, 26, "here: one tile of nodes at a time", colour=BLUE)
    for row in range(9):
        drawing.rectangle(440, 66 + 22 * row, 190 * (0.5 + 0.5 * ((row * 5) % 9) / 8), 15, SKY, 0.55)
    box(drawing, 440, 130, 120, 18, 90, BLUE, 0.75)
    drawing.text(640, 144, "tile: R nodes × V", size=13)
    drawing.text(440, 290, "nodes of all utterances, without padding;", size=13)
    drawing.text(440, 310, "a few numbers of each stay", size=13)
    return drawing


def lattice() -> Drawing:
    """A small lattice with one alignment."""
    frames, labels, step = 8, 4, 62
    drawing = Drawing(640, 370, "A transducer lattice of 8 frames and 4 labels, with one alignment")
    x0, y0 = 90, 300
    path = [(0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (6, 4), (7, 4)]
    for t in range(frames):
        for u in range(labels + 1):
            x, y = x0 + step * t, y0 - step * u
            if t + 1 < frames:
                drawing.line(x + 9, y, x + step - 9, y, GREY, 1, True)
            if u < labels:
                drawing.line(x, y - 9, x, y - step + 9, GREY, 1, True)
    for (t, u), (t2, u2) in itertools.pairwise(path):
        colour = BLUE if t2 > t else ORANGE
        dx, dy = (9, 0) if t2 > t else (0, -9)
        drawing.line(x0 + step * t + dx, y0 - step * u + dy, x0 + step * t2 - dx, y0 - step * u2 - dy, colour, 4, True)
    for t in range(frames):
        for u in range(labels + 1):
            on = (t, u) in path
            drawing.circle(x0 + step * t, y0 - step * u, 7 if on else 5, BLUE if on else GREY, 1 if on else 0.6)
    end = x0 + step * (frames - 1), y0 - step * labels
    drawing.line(end[0] + 9, end[1], end[0] + 48, end[1], BLUE, 4, True)
    drawing.text(end[0] + 54, end[1] + 5, "end", size=14)
    for u, label in enumerate(("", "c", "a", "t", "s")):
        drawing.text(x0 - 22, y0 - step * u + 5, label or "start", "end")
    drawing.text(x0 + step * (frames - 1) / 2, 345, "frames t, from left to right", "middle")
    drawing.text(x0, 28, "blank: next frame", colour=BLUE)
    drawing.text(x0 + 170, 28, "label: next symbol, same frame", colour=ORANGE)
    return drawing


def passes() -> Drawing:
    """The three passes of the guided method over one lattice."""
    drawing = Drawing(760, 250, "Bounds of all nodes, exact scores near the alignment, gradients on it")
    titles = ("1. bounds of every node", "2. exact scores in the band", "3. gradients on the alignment")
    notes = ("a few classes each", "all V classes; proof checked", "two products a node")
    for i, (title, note) in enumerate(zip(titles, notes, strict=True)):
        x0, y0, w, h = 20 + 250 * i, 50, 220, 140
        drawing.text(x0, 30, title, colour="#777")
        drawing.rectangle(x0, y0, w, h, GREY, 0.10 if i else 0.0, GREY)
        if i == 0:
            drawing.rectangle(x0, y0, w, h, SKY, 0.45)
        width = (0, 26, 9)[i]
        if width:
            centre = [(0.0, 1.0), (0.18, 0.82), (0.3, 0.74), (0.5, 0.52), (0.7, 0.3), (0.85, 0.2), (1.0, 0.0)]
            up = [(x0 + w * x, max(y0, y0 + h * y - width)) for x, y in centre]
            down = [(x0 + w * x, min(y0 + h, y0 + h * y + width)) for x, y in reversed(centre)]
            drawing.polygon(up + down, BLUE if i == 1 else ORANGE, 0.75)
        drawing.text(x0, y0 + h + 24, note, size=13)
    return drawing


def occupancy(joint: Path) -> Drawing:
    """Occupancies of the first utterance of a file, and the nodes that gradients visit at the default tolerance."""
    import torch

    import samplewise
    from samplewise.bench.joints import load
    from samplewise.bench.truth import emissions

    arrays = {name: torch.from_numpy(array) for name, array in load(joint).items()}
    encoder_out, predictor_out, weight, bias = (
        arrays[name].double() for name in ("encoder_out_0", "predictor_out_0", "weight", "bias")
    )
    targets = arrays["targets_0"].long()
    frames, labels = len(encoder_out), len(targets)
    parts = [emissions((row, predictor_out, weight, bias), targets) for row in encoder_out.split(1)]
    lp_blank, lp_label = (torch.cat(part)[None] for part in zip(*parts, strict=True))
    lengths = torch.tensor([frames]), torch.tensor([labels])
    _, (blanks, symbols) = samplewise.lattice_loss(lp_blank, lp_label, *lengths, return_posteriors=True)
    gamma = blanks[0] + torch.nn.functional.pad(symbols[0], (0, 1))  # (T, U+1)
    order = gamma.flatten().sort(descending=True).values
    count = int((order.cumsum(0) < gamma.sum() * (1 - 1.2e-7)).sum()) + 1
    least = float(order[count - 1])
    cell = 2
    drawing = Drawing(cell * frames + 60, cell * (labels + 1) + 80, "Occupancies of a real utterance's lattice")
    for t in range(frames):
        for u in range(labels + 1):
            value = float(gamma[t, u])
            if value >= least:
                shade = 0.25 + 0.75 * max(0.0, 1 + math.log10(max(value, 1e-7)) / 7)
                drawing.rectangle(50 + cell * t, 40 + cell * (labels - u), cell, cell, ORANGE if value > 0.1 else BLUE, shade)
    drawing.rectangle(50, 40, cell * frames, cell * (labels + 1), "none", edge=GREY)
    share = count / gamma.numel()
    drawing.text(50, 26, f"{joint.stem}: {share:.1%} of {gamma.numel():,} nodes carry all but 1.2e-7 of the occupancy", size=14)
    drawing.text(50 + cell * frames / 2, 40 + cell * (labels + 1) + 24, f"{frames} frames", "middle", size=14)
    drawing.text(44, 40 + cell * (labels + 1) / 2, f"{labels}", "end", size=14)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"), metavar="DIR")
    parser.add_argument("--joint", type=Path, metavar="FILE", help="of a trained model, for the heat map")
    arguments = parser.parse_args()
    made = {"tensor": tensor(), "lattice": lattice(), "passes": passes()}
    if arguments.joint:
        made["occupancy"] = occupancy(arguments.joint)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, drawing in made.items():
        (arguments.output / f"{name}.svg").write_text(drawing.svg())
        print(arguments.output / f"{name}.svg")


if __name__ == "__main__":
    main()
