"""From plain YAML values to a tree of frozen dataclasses: every key, type and range checked, all that is wrong told at once."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from samplewise.asr.errors import UserError

Plain = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number may be, as metadata of its annotation; NaN lies in no range.

    Attributes:
        low, high: the ends, which belong to it; without `low` it begins above 0.
    """

    low: float | None
    high: float

    def holds(self, value: float) -> bool:
        return (value > 0 if self.low is None else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        return f"greater than 0 and at most {self.high:,}" if self.low is None else f"between {self.low:,} and {self.high:,}"


MANY = 10**9
Count = Annotated[int, Range(1, MANY)]
CountOrNone = Annotated[int, Range(0, MANY)]  # 0: none at all
Size = Annotated[int, Range(1, 1 << 16)]  # of a layer
Seed = Annotated[int, Range(0, (1 << 32) - 1)]  # what all random number generators take
Positive = Annotated[float, Range(None, 10**6)]
Weight = Annotated[float, Range(0, 10**6)]
Share = Annotated[float, Range(0, 1)]
Dropout = Annotated[float, Range(0, 0.99)]


class Options:
    """A group of keys: dataclasses that refuse numbers outside of their ranges, and what `conflicts` yields.

    Raises:
        ValueError: all that is wrong, a line each, which begins with the key.
    """

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self), include_extras=True)
        found = [line for name, hint in hints.items() for line in outside(hint, getattr(self, name), name)]
        if lines := found or list(self.conflicts()):
            raise ValueError("\n".join(lines))

    def conflicts(self) -> Iterator[str]:
        """What does not go together, a line each, which begins with a key."""
        yield from ()


def outside(hint: Any, value: Any, name: str) -> list[str]:
    """A line for every number that is not in the range of its annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        wrong = isinstance(value, (int, float)) and not hint.__metadata__[0].holds(value)
        return [f"{name} must be {hint.__metadata__[0]}, got {short(value)}"] if wrong else []
    if origin in (Union, types.UnionType):
        return [line for option in inner for line in outside(option, value, name)]
    if origin is tuple and isinstance(value, tuple):
        items = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        pairs = zip(items, value, strict=True)
        return [line for i, (item, v) in enumerate(pairs) for line in outside(item, v, f"{name}[{i}]")]
    return []


def in_order(name: str, ends: tuple[float, float]) -> Iterator[str]:
    """A line if the ends of a stretch stand the wrong way round."""
    if not ends[0] <= ends[1]:
        yield f"{name} must be [lowest, highest], got {list(ends)}"


@contextlib.contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """Put down what is wrong, and go on."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


def build(cls: Any, values: Any, where: str = "", kinds: Mapping[str, Any] | None = None) -> Any:
    """Build the dataclass `cls` from a mapping; raise UserError naming the key, what was found and what is wanted, a line for
    everything that is wrong. `kinds` are the dataclasses of which this is one."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where or 'the recipe'}: expected keys and values, got {shown(values)}")
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    problems: list[str] = []
    made = {}
    for key, value in values.items():
        with collected(problems):
            if key not in fields:
                raise UserError(f"unknown key {join(where, key)!r}{elsewhere(cls, key, kinds, where)}")
            made[key] = convert(hints[key], value, join(where, key), fields[key])
    for field in fields.values():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            problems.append(f"missing key {join(where, field.name)!r}")
    if not problems:
        try:
            return cls(**made)
        except ValueError as error:  # what does not go together
            problems = [join(where, line) for line in str(error).splitlines()]
    raise UserError("\n".join(problems))


def elsewhere(cls: Any, key: Any, kinds: Mapping[str, Any] | None, where: str) -> str:
    """Which key was meant, or which other kind of the group has it."""
    for kind, other in (kinds or {}).items():
        if other is not cls and key in {field.name for field in dataclasses.fields(other)}:
            return f": {where} is of kind {kind_of(cls)}, and this is a key of kind {kind}"
    return suggest(str(key), [field.name for field in dataclasses.fields(cls)], where)


def convert(hint: Any, value: Any, where: str, field: Any = None) -> Any:
    """Check one value against its annotation and return it as that type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return convert_union(get_args(hint), value, where, field)
    if origin is Annotated:
        made = convert(get_args(hint)[0], value, where)
        for line in outside(hint, made, where):
            raise UserError(line)
        return made
    if origin is Literal:
        choices = get_args(hint)
        if value in choices and type(value) in {type(choice) for choice in choices}:
            return value
        hints = suggest(str(value), [str(choice) for choice in choices]) if isinstance(value, str) else ""
        raise UserError(f"{where}: expected one of {', '.join(map(str, choices))}, got {shown(value)}{hints}")
    if origin is tuple:
        return convert_tuple(get_args(hint), value, where)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{where}: {shown(value)} is too large for a number") from None
    if type(value) is hint:
        return value
    note = ""
    if hint is float and isinstance(value, str) and is_number(value):
        note = "; YAML reads 1e-3 as text, write 1.0e-3"
    raise UserError(f"{where}: expected {type_name(hint)}, got {shown(value)}{note}")


def convert_union(options: tuple, value: Any, where: str, field: Any = None) -> Any:
    """A value or null, or one of several dataclasses told apart by their `kind`: that of the default if none is given."""
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return convert(options[0], value, where)
    if not any(dataclasses.is_dataclass(option) for option in options):
        bare = {get_args(option)[0] if get_origin(option) is Annotated else option: option for option in options}
        if type(value) in bare:
            return convert(bare[type(value)], value, where)
        raise UserError(f"{where}: expected {' or '.join(map(type_name, bare))}, got {shown(value)}")
    kinds = {kind_of(option): option for option in options}
    default = getattr(field, "default_factory", None)
    if not isinstance(value, Mapping) or ("kind" not in value and default not in options):
        raise UserError(f"{where}: expected a mapping with a kind, one of {', '.join(kinds)}; got {shown(value)}")
    kind = value["kind"] if "kind" in value else kind_of(default)
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{where}.kind: {shown(kind)} is not one of {', '.join(kinds)}{suggest(str(kind), kinds)}")
    return build(kinds[kind], value, where, kinds)


def convert_tuple(items: tuple, value: Any, where: str) -> tuple:
    listed = isinstance(value, (list, tuple))
    if items[-1] is Ellipsis:
        if not listed:
            raise UserError(f"{where}: expected a list, got {shown(value)}")
        items = items[:1] * len(value)
    if not listed or len(value) != len(items):
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
        if values.get(parent) is None:  # not there, or null, which a group of keys may be
            values[parent] = {}
        values = values[parent]
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
    return [f"{key}: {before!r} became {after!r}" for key, before, after in differing(old, new, where)]


def differing(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys in which two plain trees differ, and the values in both."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differing(old.get(key), new.get(key), join(where, key))
    elif old != new:
        yield where, old, new


def join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def suggest(word: str, known: Any, where: str = "") -> str:
    """The nearest of the known words, or all of them; `where` is the group that they are keys of."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {join(where, close[0])!r}?"
    return f"; known here: {', '.join(join(where, one) for one in known)}"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def type_name(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def shown(value: Any) -> str:
    return f"{short(value)} ({type(value).__name__})"


def short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        text = f"a whole number of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:57] + "..."
