"""To start from another run's weights: what has to be as it was there, what need not be, and taking them over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samplewise.asr.checkpoint import Recogniser
from samplewise.asr.errors import UserError
from samplewise.asr.model import Transducer
from samplewise.asr.recipe import Recipe, recipe_to_plain
from samplewise.asr.typed import differing

MUST = {"encoder": ("features", "encoder"), "model": ("features", "encoder", "predictor", "joiner", "tokenizer")}
MAY = ("data", "augment", "loss", "ctc", "sampling")
MEANT = ("loss.topology", "loss.durations", "loss.big_blank_durations")  # what the output layer's rows stand for
FREE = ("encoder.dropout", "predictor.dropout")  # no weight depends on them
PLACES = ("data.root", "data.train", "data.valid", "data.test")  # other data are what one starts from a model for


def take_weights(model: Transducer, before: Recogniser, recipe: Recipe) -> list[str]:
    """Copy weights of a trained recogniser, all or the encoder's.

    Returns:
        Lines for the user: what was taken, and in what that run was another one.

    Raises:
        UserError: features, tokenizer or network are not those of the other run; the keys, each with both values.
    """
    part = recipe.training.start_with
    apart, other = compared(before.run.recipe, recipe, part)
    if apart:
        raise UserError(
            f"training.start_from: the model in {before.directory} is not one of this recipe:\n  " + "\n  ".join(apart) + "\n"
            "Its weights would mean something else here. Give these keys their values there, or start from another run"
            + ("." if part == "encoder" else ", or take its encoder alone (training.start_with: encoder).")
        )
    try:
        if part == "encoder":
            model.encoder.load_state_dict(before.model.encoder.state_dict())
        else:
            model.load_state_dict(before.model.state_dict())
    except RuntimeError as error:
        reason = str(error).splitlines()[1:2] or [str(error)]
        raise UserError(
            f"training.start_from: the model in {before.directory} is not of this recipe's sizes: {reason[0].strip()}"
        ) from None
    taken = (
        "the encoder" if part == "encoder" else f"the whole model, and its vocabulary of {before.run.tokenizer.size} classes"
    )
    said = [f"starting from {before.directory}: {taken}"]
    return said + ([f"not as they were there: {'; '.join(other)}"] if other else [])


def compared(before: Recipe, recipe: Recipe, part: str) -> tuple[list[str], list[str]]:
    """The keys in which two recipes differ and must not, and those in which they may, each with both values."""
    old, new = recipe_to_plain(before), recipe_to_plain(recipe)
    apart = [line(*found) for group in MUST[part] for found in keys(old, new, group) if found[0] not in FREE]
    if part == "model" and (before.ctc.weight > 0) != (recipe.ctc.weight > 0):
        apart.append(line("ctc.weight", before.ctc.weight, recipe.ctc.weight) + ", and with 0 there is no CTC head")
    if part == "model":
        apart += [line(*found) for found in keys(old, new, "loss") if found[0] in MEANT]
    other = [(group, found) for group in (*MAY, *MUST["model"]) for found in keys(old, new, group)]
    told = [line(*found) for group, found in other if found[0] in FREE or (group not in MUST[part] and not place(found[0]))]
    return apart, told


def keys(old: dict[str, Any], new: dict[str, Any], group: str) -> Iterator[tuple[str, Any, Any]]:
    """Keys of a group that differ; of a group of another kind the kind alone."""
    kinds = [(values[group] or {}).get("kind") for values in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"{group}.kind" if all(kinds) else group, kinds[0] or "none", kinds[1] or "none"
    else:
        yield from differing(old[group], new[group], group)


def place(key: str) -> bool:
    return key in PLACES or key.startswith(tuple(f"{name}." for name in PLACES))


def line(key: str, old: Any, new: Any) -> str:
    return f"{key}: {old!r} there, {new!r} here"
