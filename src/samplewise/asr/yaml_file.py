"""YAML as recipes are written in it: one value a key, and a recipe's own keys over those of its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from samplewise.asr.errors import UserError
from samplewise.asr.typed import merge, suggest


class Loader(yaml.SafeLoader):
    """YAML's plain types; a key that is given twice is an error, not a value less."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (before := seen.get((key.tag, key.value))) is not None:
                lines = f"lines {before.start_mark.line + 1} and {key.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is given twice, in {lines}")
            seen[key.tag, key.value] = key
        return super().construct_mapping(node, deep)


def parse(text: str, what: str) -> Any:
    """The value of a YAML text; raise UserError with `what` it is if it is none."""
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or a number that there is not
        raise UserError(f"{what}: {error or type(error).__name__}") from None


def shipped() -> Path:
    """The directory of the recipes that come with samplewise: inside the package, or beside `src` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def located(path: Path) -> Path:
    """The file itself, or what `digits`, `digits.yaml` and `recipes/digits.yaml` mean where there is no such file: one of the
    recipes that come with samplewise."""
    if path.is_file() or path.parent not in (Path(), Path("recipes")):
        return path
    own = (shipped() / path.name).with_suffix(".yaml")
    return own if own.is_file() else path


def read_values(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Keys and values of a YAML file, those of its base included."""
    path = located(path)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        near = near or sorted(f"recipes/{p.name}" for p in shipped().glob("*.yaml"))
        hint = suggest(str(path), near) if near else "; a recipe is a YAML file such as recipes/digits.yaml"
        raise UserError(f"no recipe at {path}{hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable: {error}") from None
    values = parse(text, f"{path} is not readable as YAML")
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe holds keys and values, this file holds {type(values).__name__}")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or path.resolve() in seen:
        raise UserError(f"{path}: base names another recipe that is not based on this one, got {base!r}")
    return merge(read_values(path.parent / base, (*seen, path.resolve())), values)


def parse_change(change: str) -> tuple[str, Any]:
    """`training.steps=10` as ("training.steps", 10)."""
    key, sign, value = change.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes key=value, for example --set training.steps=200; got {change!r}")
    return key.strip(), parse(value, f"--set {change}: the value is not YAML")
