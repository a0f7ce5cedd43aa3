"""From plain YAML values to a tree of frozen dataclasses, every key and type checked."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from samplewise.asr.problems import UserError

Plain = dict[str, Any]


def positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be greater than 0, got {value}")


def at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def share(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and less than 1, got {value}")


def build(cls: Any, values: Any, where: str = "") -> Any:
    """Build the dataclass `cls` from a mapping; raise UserError naming the key, what was found and what is wanted."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where or 'the recipe'}: expected keys and values, got {shown(values)}")
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            raise UserError(f"unknown key {join(where, key)!r}{suggest(str(key), names)}")
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise UserError(f"missing key {join(where, field.name)!r}")
    made = {key: convert(hints[key], value, join(where, key)) for key, value in values.items()}
    try:
        return cls(**made)
    except ValueError as error:  # raised by __post_init__ for a value out of its range
        raise UserError(f"{where + ': ' if where else ''}{error}") from None


def convert(hint: Any, value: Any, where: str) -> Any:
    """Check one value against its annotation and return it as that type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return convert_union(get_args(hint), value, where)
    if origin is Literal:
        choices = get_args(hint)
        if value in choices and type(value) in {type(choice) for choice in choices}:
            return value
        hints = suggest(str(value), [str(choice) for choice in choices])
        raise UserError(f"{where}: expected one of {', '.join(map(str, choices))}, got {shown(value)}{hints}")
    if origin is tuple:
        return convert_tuple(get_args(hint), value, where)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is hint:
        return value
    note = ""
    if hint is float and isinstance(value, str) and is_number(value):
        note = "; YAML reads 1e-3 as text, write 1.0e-3"
    raise UserError(f"{where}: expected {named(hint)}, got {shown(value)}{note}")


def convert_union(options: tuple, value: Any, where: str) -> Any:
    """A value or null, or one of several dataclasses told apart by their `kind`."""
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return convert(options[0], value, where)
    if not any(dataclasses.is_dataclass(option) for option in options):
        if type(value) in options:
            return value
        raise UserError(f"{where}: expected {' or '.join(map(named, options))}, got {shown(value)}")
    kinds = {kind_of(option): option for option in options}
    if not isinstance(value, Mapping) or "kind" not in value:
        raise UserError(f"{where}: expected a mapping with a kind, one of {', '.join(kinds)}; got {shown(value)}")
    kind = value["kind"]
    if kind not in kinds:
        raise UserError(f"{where}.kind: {shown(kind)} is not one of {', '.join(kinds)}{suggest(str(kind), kinds)}")
    return build(kinds[kind], value, where)


def convert_tuple(items: tuple, value: Any, where: str) -> tuple:
    if isinstance(value, (list, tuple)) and items[-1] is Ellipsis:
        return tuple(convert(items[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if items[-1] is Ellipsis:
        raise UserError(f"{where}: expected a list, got {shown(value)}")
    if not isinstance(value, (list, tuple)) or len(value) != len(items):
        raise UserError(f"{where}: expected a list of {len(items)} values, got {shown(value)}")
    return tuple(convert(item, v, f"{where}[{i}]") for i, (item, v) in enumerate(zip(items, value, strict=True)))


def kind_of(cls: Any) -> str:
    """The value of the `kind` field by which the dataclass is chosen."""
    return get_args(typing.get_type_hints(cls)["kind"])[0]


def plain(value: Any) -> Any:
    """The reverse of `build`: dictionaries, lists and scalars, as YAML and JSON hold them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def set_key(values: Plain, dotted: str, value: Any) -> None:
    """Set `a.b.c` in nested dictionaries, making those on the way."""
    *parents, last = dotted.split(".")
    for depth, parent in enumerate(parents):
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {dotted}: {'.'.join(parents[: depth + 1])} is a value, not a group of keys")
    values[last] = value


def merge(base: Plain, own: Plain) -> Plain:
    """`base` with the keys of `own` put over it, group by group; a group of another `kind` replaces the base's whole."""
    merged = dict(base)
    for key, value in own.items():
        before = merged.get(key, {})
        alike = isinstance(before, dict) and isinstance(value, dict) and value.get("kind") in (None, before.get("kind"))
        merged[key] = merge(before, value) if alike else value
    return merged


def difference(old: Any, new: Any, where: str = "") -> list[str]:
    """The dotted keys in which two plain trees differ, each with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [line for key in keys for line in difference(old.get(key), new.get(key), join(where, key))]
    return [] if old == new else [f"{where}: {old!r} became {new!r}"]


def join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(map(str, known))}"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def named(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def shown(value: Any) -> str:
    text = repr(value)
    return (text if len(text) <= 60 else text[:57] + "...") + f" ({type(value).__name__})"
