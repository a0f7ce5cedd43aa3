"""Recipes: every key known and of its type, or an error that names it."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from samplewise.asr.problems import UserError
from samplewise.asr.recipe import (
    DigitStringsOptions,
    LSTMOptions,
    ManifestOptions,
    Recipe,
    SubsetOptions,
    load_recipe,
    parse_change,
    recipe_from_plain,
    recipe_to_plain,
)
from samplewise.asr.typed import difference

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
MINIMAL = "name: a\ndata: {kind: digit_strings}\n"


def load(tmp_path: Path, text: str, *changes: str):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return load_recipe(path, list(changes))


def test_recipes_exist():
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipes_of_the_project_load(path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe_from_plain(recipe_to_plain(recipe)) == recipe


def test_minimal_recipe_takes_defaults(tmp_path):
    recipe = load(tmp_path, MINIMAL)
    assert recipe.data == DigitStringsOptions()
    assert recipe.on_bad_data == "skip"


def test_manifest_recipe_with_nested_and_absent_parts(tmp_path):
    text = "name: a\ndata:\n  kind: manifest\n  train: {manifest: m.jsonl, split: train}\n  test: null\n"
    data = load(tmp_path, text).data
    assert isinstance(data, ManifestOptions)
    assert (data.train.split, data.valid, data.test) == ("train", None, None)


def test_changes_win_over_the_file(tmp_path):
    recipe = load(tmp_path, MINIMAL, "training.steps=7", "loss.memory_budget=64KiB", "data.pause=[0.1, 0.2]")
    assert (recipe.training.steps, recipe.loss.memory_budget, recipe.data.pause) == (7, "64KiB", (0.1, 0.2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "trainin: {steps: 1}\n", "unknown key 'trainin'; did you mean 'training'"),
        (MINIMAL + "training: {step: 1}\n", "unknown key 'training.step'; did you mean 'steps'"),
        (MINIMAL + "training: {steps: 1.5}\n", "training.steps: expected a whole number, got 1.5"),
        (MINIMAL + "training: {steps: true}\n", "training.steps: expected a whole number, got True"),
        (MINIMAL + "training: {learning_rate: 1e-3}\n", "write 1.0e-3"),
        (MINIMAL + "training: {steps: 0}\n", "training: steps must be greater than 0, got 0"),
        (MINIMAL + "training: {keep: 1}\n", "keep must be at least 2"),
        (MINIMAL + "encoder: {kind: lstn}\n", "encoder.kind"),
        (MINIMAL + "loss: {method: tilled}\n", "did you mean 'tiled'"),
        (MINIMAL + "loss: {memory_budget: [1]}\n", "loss.memory_budget: expected a whole number or text"),
        (MINIMAL + "loss: {fastemit_lambda: .inf}\n", "loss: fastemit_lambda must be finite, got inf"),
        (MINIMAL + "loss: {fastemit_lambda: -0.1}\n", "loss: fastemit_lambda must not be negative, got -0.1"),
        (MINIMAL + "ctc: {layers: 1}\n", "ctc.layers: expected a list, got 1"),
        (MINIMAL + "ctc: {layers: [1.5]}\n", "ctc.layers[0]: expected a whole number, got 1.5"),
        (MINIMAL + "ctc: {layers: [1, 1]}\n", "different numbers from 1 on, got [1, 1]"),
        (MINIMAL + "ctc: {weight: 0.0, layers: [1]}\n", "layers [1] get no CTC loss"),
        (MINIMAL + "predictor: {kind: stateless, layers: 2}\n", "predictor: a stateless predictor is one convolution"),
        (
            MINIMAL + "predictor: {kind: gru, context: 3}\n",
            "predictor: context is a key of a stateless predictor, this one is gru",
        ),
        (MINIMAL + "predictor: {kind: stateless, context: 0}\n", "predictor: context must be greater than 0, got 0"),
        (MINIMAL + "training: 3\n", "training: expected keys and values"),
        (MINIMAL + "on_bad_data: ignore\n", "expected one of skip, raise"),
        ("name: a\ndata: {kind: digit_string}\n", "did you mean 'digit_strings'"),
        ("name: a\ndata: {digits: [3, 7]}\n", "data: expected a mapping with a kind"),
        ("name: a\ndata: {kind: digit_strings, digits: [3]}\n", "data.digits: expected a list of 2 values"),
        ("name: a\ndata: {kind: digit_strings, digits: [7, 3]}\n", "1 <= fewest <= most, got [7, 3]"),
        ("name: a\ndata: {kind: feature_files, train: {manifest: m}, warp: 0.7}\n", "warp must lie between 0 and 0.5, got 0.7"),
        ("name: a\ndata: {kind: manifest}\n", "missing key 'data.train'"),
        ("data: {kind: digit_strings}\n", "missing key 'name'"),
        ("name: a/b\ndata: {kind: digit_strings}\n", "no slashes"),
        ("- a\n- b\n", "holds keys and values"),
        ("name: [\n", "not readable as YAML"),
    ],
)
def test_a_wrong_recipe_is_named(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        load(tmp_path, text)
    assert message in str(error.value)


def test_a_recipe_may_be_based_on_another(tmp_path):
    (tmp_path / "base.yaml").write_text(
        MINIMAL + "encoder: {kind: conformer, layers: 3, heads: 2}\ntraining: {steps: 7, keep: 5}\n"
    )
    recipe = load(tmp_path, "base: base.yaml\nname: b\nencoder: {layers: 4}\ntraining: {steps: 8}\n", "training.workers=1")
    assert (recipe.name, recipe.encoder.kind, recipe.encoder.layers, recipe.encoder.heads) == ("b", "conformer", 4, 2)
    assert (recipe.training.steps, recipe.training.keep, recipe.training.workers) == (8, 5, 1)
    assert load(tmp_path, "base: base.yaml\nencoder: {kind: lstm, hidden: 8}\n").encoder == LSTMOptions(hidden=8)


@pytest.mark.parametrize(
    ("base", "message"), [("none.yaml", "no recipe at"), ("recipe.yaml", "not based on this one"), ("3", "got 3")]
)
def test_a_wrong_base_is_named(tmp_path, base, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, f"base: {base}\n")


def test_a_missing_recipe_suggests_a_near_one(tmp_path):
    (tmp_path / "digits.yaml").write_text(MINIMAL)
    with pytest.raises(UserError, match=r"did you mean '.*digits\.yaml'"):
        load_recipe(tmp_path / "digit.yaml")


@pytest.mark.parametrize("change", ["training.steps", "=3", "a=[", "training.steps.x=1"])
def test_a_wrong_change_is_refused(tmp_path, change):
    with pytest.raises(UserError):
        load(tmp_path, MINIMAL + "training: {steps: 1}\n", change)


def test_changes_are_yaml():
    assert parse_change("a.b=null") == ("a.b", None)
    assert parse_change("a=x=y") == ("a", "x=y")


def test_difference_names_keys():
    assert difference({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "d": 4}) == [
        "a.b: 1 became 3",
        "c: 2 became None",
        "d: None became 4",
    ]


def keys(options, prefix: str = "") -> list[str]:
    """Dotted keys of the recipe's dataclasses, those of all kinds together."""
    found = []
    for name, hint in typing.get_type_hints(options).items():
        kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if dataclasses.is_dataclass(kind)]
        nested = [key for kind in kinds if kind is not SubsetOptions for key in keys(kind, f"{prefix}{name}.")]
        found += nested or [prefix + name]
    return found


def test_every_key_is_in_the_manual():
    manual = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    lines = [line for line in manual.splitlines() if line.startswith("| `")]
    known = {key for line in lines for key in re.findall(r"`([a-z_.]+)`", line.split("|")[1])}
    assert len(keys(Recipe)) > 50
    assert [key for key in keys(Recipe) if key not in known] == []
