"""The order of the house: who imports whom, what `import samplewise` loads, how long a file may be. Each checker is seen to
fail, too."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "samplewise"
HEAVY = ("numba", "llvmlite", "triton", "transformers", "matplotlib", "torchaudio", "accelerate", "soundfile", "rich", "psutil")
LONGEST = 400

# What a part may import from the package at module level. Only downwards.
ALLOWED = {
    "errors": set(),
    "choices": set(),
    "observation": {"errors"},
    "topology": {"errors"},
    "kernels": {"errors", "cache", "kernels", "topology"},
    "planning": {"errors", "choices", "checks", "planning", "topology"},
    "checks": {"errors", "choices", "kernels", "topology"},
    "labels": {"errors", "checks"},
    "lattice": {"errors", "choices", "checks", "functional", "ops", "topology"},
    "vocabulary": {"errors", "checks"},
    "reference_topologies": {"topology"},
    "reference": {"reference_topologies", "topology"},
    "ops": {"errors", "choices", "checks", "kernels", "observation", "planning", "ops", "topology", "vocabulary"},
    "functional": {"errors", "choices", "checks", "ops", "planning", "topology", "vocabulary"},
    "modules": {"errors", "choices", "checks", "functional", "kernels", "planning", "topology", "vocabulary"},
    "__init__": {"errors", "functional", "labels", "lattice", "modules", "observation", "planning", "topology", "vocabulary"},
    "cache": set(),
    "extras": set(),
    "strict_json": set(),
}
USERS = ("asr", "bench", "integrations", "cli", "__main__")  # they use the public names, and nothing imports them
PUBLIC_TO_USERS = {
    "samplewise",
    "errors",
    "functional",
    "modules",
    "observation",
    "planning",
    "vocabulary",
    "checks",
    "reference",
}
PUBLIC_TO_USERS |= {"choices", "topology", "reference_topologies", "labels"}
PUBLIC_TO_USERS |= {"cache", "extras", "strict_json"}  # what users share with each other


def parts() -> dict[str, list[Path]]:
    """Files of every part: a folder of the package, or a module beside the folders."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


def imported(source: str) -> set[str]:
    """Modules that a source imports, wherever in it, with the names taken from them: "samplewise.ops.tiles"."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_parts(source: str) -> set[str]:
    """Parts of the package that a source imports."""
    names = (name.split(".") for name in imported(source))
    return {name[1] if len(name) > 1 else "samplewise" for name in names if name[0] == "samplewise"}


def offences(part: str, source: str) -> set[str]:
    if part in USERS:
        inside = {name for name in own_parts(source) if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()}
        return inside - PUBLIC_TO_USERS - set(USERS) - ({"ops"} if part == "integrations" else set())
    return own_parts(source) - ALLOWED[part]


def test_every_part_is_known():
    assert set(parts()) <= set(ALLOWED) | set(USERS)


@pytest.mark.parametrize("part", sorted(parts()))
def test_imports_go_downwards(part):
    for path in parts()[part]:
        wrong = offences(part, path.read_text())
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    "part, source",
    [
        ("kernels", "from samplewise.ops.tiles import Tile"),
        ("kernels", "def late():\n    import samplewise.functional"),
        ("planning", "from samplewise import ops"),
        ("ops", "from samplewise.reference import reference_loss"),
        ("functional", "import samplewise.asr.model"),
        ("__init__", "from samplewise import cli"),
        ("asr", "from samplewise.ops.transducer import run"),
        ("bench", "import samplewise.kernels.backend"),
        ("integrations", "import samplewise.kernels.backend"),
    ],
)
def test_an_import_upwards_is_found(part, source):
    assert offences(part, source)


def test_the_reference_is_for_tests_and_benchmarks():
    for part, paths in parts().items():
        for path in paths:
            assert part in ("bench", "reference") or "reference" not in own_parts(path.read_text()), path


def test_backends_do_not_know_each_other():
    for backend in ("eager", "numba", "triton"):
        for path in (PACKAGE / "kernels" / backend).glob("*.py"):
            names = {name.split(".")[2] for name in imported(path.read_text()) if name.startswith("samplewise.kernels.")}
            assert names <= {backend, "activations", "layout", "masks"}, f"{path.name} imports {names}"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Chains of modules that come back to where they began."""
    found, done = [], set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(path[path.index(module) :])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def module_graph() -> dict[str, set[str]]:
    files = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    graph = {}
    for name, path in files.items():
        graph[name] = set()
        for target in imported(path.read_text()):
            module = target if target in files else target.rpartition(".")[0]
            # `from samplewise import checks` needs checks, not what the package itself gathers
            if module in files and module not in (name, "samplewise"):
                graph[name].add(module)
    return graph


def test_no_circles():
    assert circles(module_graph()) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]
    graph = module_graph()
    assert "samplewise.ops.transducer" in graph["samplewise.functional"], "the graph has edges"
    graph["samplewise.kernels.layout"].add("samplewise.functional")
    assert circles(graph)


def modules_after(statement: str) -> set[str]:
    """All that a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ, cwd=ROOT)
    return set(done.stdout.split())


def test_import_loads_nothing_heavy():
    """Not even PyTorch before a name is used; then PyTorch, and not its compiler, which takes as long again."""
    assert "torch" not in modules_after("import samplewise")
    every = "import samplewise; [getattr(samplewise, name) for name in samplewise.__all__]"
    loaded = modules_after(every)
    assert "torch" in loaded
    assert not {"torch._dynamo", "samplewise.kernels.triton", *HEAVY} & loaded - modules_after("import torch")


def test_something_heavy_would_be_seen():
    assert {"numba", "torch._dynamo"} <= modules_after("import samplewise, numba, torch._dynamo")


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_too_long():
    paths = [path for folder in ("src", "tests", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 30
    assert [f"{path.relative_to(ROOT)}: {lines(path)}" for path in paths if lines(path) > LONGEST] == []


def test_a_long_file_is_seen(tmp_path):
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * (LONGEST + 1))
    assert lines(path) > LONGEST


def test_public_names():
    import samplewise

    assert all(hasattr(samplewise, name) for name in samplewise.__all__)
    assert set(samplewise.__all__) <= set(dir(samplewise))
    importlib.import_module("samplewise.planning.plan")
    assert inspect.isfunction(samplewise.plan) and inspect.isfunction(samplewise.observe), "no module of the package hides them"
    with pytest.raises(AttributeError, match="no attribute 'transduce_loss'"):
        _ = samplewise.transduce_loss
    assert {"transducer_loss", "rnnt_loss", "joint_loss", "TransducerLoss", "Joiner", "TransducerError"} <= set(
        samplewise.__all__
    )
