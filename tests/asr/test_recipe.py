"""Recipes: every key known and of its type, or an error that names it."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from pathlib import Path

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.features import make_features
from samplewise.asr.recipe import (
    DigitStringsOptions,
    LSTMOptions,
    ManifestOptions,
    Recipe,
    SubsetOptions,
    load_recipe,
    recipe_from_plain,
    recipe_to_plain,
)
from samplewise.asr.trainer import training_arguments
from samplewise.asr.typed import difference
from samplewise.asr.yaml_file import parse_change

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
        (MINIMAL + "training: {step: 1}\n", "unknown key 'training.step'; did you mean 'training.steps'"),
        (MINIMAL + "training: {steps: 1.5}\n", "training.steps: expected a whole number, got 1.5"),
        (MINIMAL + "training: {steps: true}\n", "training.steps: expected a whole number, got True"),
        (MINIMAL + "training: {learning_rate: 1e-3}\n", "write 1.0e-3"),
        (MINIMAL + "training: {steps: 0}\n", "training.steps must be between 1 and 1,000,000,000, got 0"),
        (MINIMAL + "training: {keep: 1}\n", "training.keep must be between 2 and"),
        (MINIMAL + "encoder: {kind: lstn}\n", "encoder.kind"),
        (MINIMAL + "loss: {method: tilled}\n", "did you mean 'tiled'"),
        (MINIMAL + "loss: {memory_budget: [1]}\n", "loss.memory_budget: expected a whole number or text"),
        (MINIMAL + "loss: {fastemit_lambda: .inf}\n", "loss.fastemit_lambda must be between 0 and 1,000,000, got inf"),
        (MINIMAL + "loss: {fastemit_lambda: -0.1}\n", "loss.fastemit_lambda must be between 0 and 1,000,000, got -0.1"),
        (
            MINIMAL + "loss: {topology: tdd}\n",
            "hat, multi_blank, tdt, got 'tdd' (str); did you mean 'tdt'",
        ),
        (MINIMAL + "loss: {durations: [0, 1]}\n", "loss.durations is a key of topology tdt, this one is regular"),
        (MINIMAL + "loss: {topology: tdt, durations: [0, 2]}\n", "durations must have 1 among them, got [0, 2]: no path"),
        (MINIMAL + "loss: {topology: tdt, durations: [1, 1]}\n", "loss.durations must be different numbers, one or more"),
        (
            MINIMAL + "loss: {topology: tdt, durations: []}\n",
            "loss.durations must be different numbers, one or more, got []",
        ),
        (MINIMAL + "loss: {topology: tdt, durations: [-1, 1]}\n", "loss.durations[0] must be between 0 and 1,000, got -1"),
        (MINIMAL + "loss: {topology: tdt, durations: [.5, 1]}\n", "loss.durations[0]: expected a whole number, got 0.5"),
        (MINIMAL + "loss: {topology: tdt, big_blank_durations: [2]}\n", "big_blank_durations is a key of topology multi_blank"),
        (MINIMAL + "loss: {topology: multi_blank, big_blank_durations: [1]}\n", "must be between 2 and 1,000, got 1"),
        (MINIMAL + "loss: {topology: hat, sigma: 0.05}\n", "sigma is a key of topologies tdt and multi_blank, this one is hat"),
        (MINIMAL + "joiner: {blank_head: true}\n", "joiner.blank_head goes with loss.topology hat alone, this one is regular"),
        (
            MINIMAL + "loss: {topology: multi_blank}\nsampling: {size: 9}\n",
            "sampling does not go with loss.topology multi_blank",
        ),
        (MINIMAL + "ctc: {layers: 1}\n", "ctc.layers: expected a list, got 1"),
        (MINIMAL + "ctc: {layers: [1.5]}\n", "ctc.layers[0]: expected a whole number, got 1.5"),
        (MINIMAL + "ctc: {layers: [1, 1]}\n", "ctc.layers must be different numbers, got [1, 1]"),
        (MINIMAL + "ctc: {weight: 0.0, layers: [1]}\n", "layers [1] get no CTC loss"),
        (
            MINIMAL + "predictor: {kind: stateless, layers: 2}\n",
            "predictor.layers must be 1, got 2: a stateless predictor is one convolution",
        ),
        (
            MINIMAL + "predictor: {kind: gru, context: 3}\n",
            "predictor.context is a key of a stateless predictor, this one is gru",
        ),
        (MINIMAL + "predictor: {kind: stateless, context: 0}\n", "predictor.context must be between 1 and 1,000, got 0"),
        (MINIMAL + "training: 3\n", "training: expected keys and values"),
        (MINIMAL + "on_bad_data: ignore\n", "expected one of skip, raise"),
        ("name: a\ndata: {kind: digit_string}\n", "did you mean 'digit_strings'"),
        ("name: a\ndata: {digits: [3, 7]}\n", "data: expected a mapping with a kind"),
        ("name: a\ndata: {kind: digit_strings, digits: [3]}\n", "data.digits: expected a list of 2 values"),
        ("name: a\ndata: {kind: digit_strings, digits: [7, 3]}\n", "data.digits must be [lowest, highest], got [7, 3]"),
        (
            "name: a\ndata: {kind: feature_files, train: {manifest: m}, warp: 0.7}\n",
            "data.warp must be between 0 and 0.5, got 0.7",
        ),
        ("name: a\ndata: {kind: manifest}\n", "missing key 'data.train'"),
        ("data: {kind: digit_strings}\n", "missing key 'name'"),
        ("name: a/b\ndata: {kind: digit_strings}\n", "no slashes"),
        ("- a\n- b\n", "holds keys and values"),
        ("name: [\n", "not readable as YAML"),
        ("name: " + "[" * 400 + "\n", "not readable as YAML"),
        ("name: 2020-99-99\n", "not readable as YAML"),
        ("name: " + 5000 * "9" + "\n", "not readable as YAML"),
        (MINIMAL + "training: {steps: 1}\nseed: 2\ntraining: {keep: 2}\n", "key 'training' is given twice, in lines 3 and 5"),
        (MINIMAL + "training:\n  steps: 1\n  steps: 2\n", "key 'steps' is given twice, in lines 4 and 5"),
        (MINIMAL + "seed: 4294967296\n", "seed must be between 0 and 4,294,967,295, got 4294967296"),
        (
            MINIMAL + "training: {batch_seconds: .inf}\n",
            "training.batch_seconds must be greater than 0 and at most 1,000,000, got inf",
        ),
        (MINIMAL + "features: {kind: log_mel, hop: 0.00001}\n", "features.hop must be between 0.001 and 1, got 1e-05"),
        (MINIMAL + "features: {sample_rate: 1000, window: 0.001}\n", "features.window of 0.001 s is 1 samples at 1000 Hz"),
        (MINIMAL + "loss: {memory_budget: -1}\n", "loss.memory_budget must be between 1 and"),
        (MINIMAL + "loss: {memory_budget: 64 parsecs}\n", "loss.memory_budget is '64 parsecs'; write bytes"),
        (
            MINIMAL + "encoder: {heads: 4}\n",
            "unknown key 'encoder.heads': encoder is of kind lstm, and this is a key of kind conformer",
        ),
        (MINIMAL + "loss: {memory_budget: " + 400 * "9" + "GiB}\n", "loss.memory_budget is '9999"),
        (MINIMAL + "features: {low: 9000}\n", "features.low: the bands must lie in order, got 9000 to 8000 Hz"),
        (MINIMAL + "features: {high: 9000}\n", "features.high must be at most half of the sampling rate, 8000 Hz, got 9000"),
        (MINIMAL + "encoder: {kind: [1]}\n", "encoder.kind: [1] (list) is not one of lstm, conformer"),
        ("name: ..\ndata: {kind: digit_strings}\n", "name names a directory"),
        ("name: " + 200 * "a" + "\ndata: {kind: digit_strings}\n", "name names a directory"),
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


@pytest.mark.parametrize("given", ["digits", "digits.yaml", "recipes/digits.yaml"])
def test_recipes_come_with_the_package(given, tmp_path, monkeypatch):
    """From any directory; a file of one's own goes before them."""
    monkeypatch.chdir(tmp_path)
    assert load_recipe(given) == load_recipe(RECIPES[0].parent / "digits.yaml")
    (tmp_path / "recipes").mkdir()
    for own in ("digits", "digits.yaml", "recipes/digits.yaml"):
        (tmp_path / own).write_text(MINIMAL)
    assert load_recipe(given).name == "a"


def test_a_missing_recipe_suggests_one_that_comes_with_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no recipe at recipes/digit.yaml; did you mean 'recipes/digits.yaml'"):
        load_recipe("recipes/digit.yaml")
    with pytest.raises(UserError, match=r"no recipe at elsewhere/digits\.yaml"):
        load_recipe("elsewhere/digits.yaml")


@pytest.mark.parametrize("change", ["training.steps", "=3", "a=[", "training.steps.x=1"])
def test_a_wrong_change_is_refused(tmp_path, change):
    with pytest.raises(UserError):
        load(tmp_path, MINIMAL + "training: {steps: 1}\n", change)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    text = "nam: a\ndata: {kind: digit_strings, digits: [3, 0]}\nseed: -1\n"
    with pytest.raises(UserError) as error:
        load(tmp_path, text + "training: {step: 3, keep: 1, batch_seconds: .nan}\nctc: {weight: a}\nencoder: {kernel: 2}\n")
    first, *lines = str(error.value).splitlines()
    assert first.endswith("recipe.yaml: 9 things are wrong:")
    begins = ("unknown key 'nam'; did you mean 'name'", "data.digits[1] must be", "seed must be", "unknown key 'training.step'")
    begins += (
        "training.keep must be",
        "training.batch_seconds must be",
        "ctc.weight: expected a number",
        "unknown key 'encoder.kernel'",
    )
    assert [line.strip().startswith(begin) for line, begin in zip(lines, begins, strict=False)] == [True] * 8, lines
    assert lines[8].strip() == "missing key 'name'"


def test_several_keys_that_do_not_go_together_are_said_at_once(tmp_path):
    with pytest.raises(UserError) as error:
        load(tmp_path, MINIMAL + "encoder: {kind: conformer, hidden: 9, kernel: 2}\nloss: {memory_budget: x}\n")
    assert [line.split()[0] for line in str(error.value).splitlines()[1:]] == [
        "encoder.hidden",
        "encoder.kernel",
        "loss.memory_budget",
    ]


@pytest.mark.parametrize("block", ["", "encoder: null\n", "encoder: {}\n", "encoder: {kind: lstm}\n"])
def test_a_key_of_a_group_that_the_recipe_does_not_have_is_of_the_default_kind(tmp_path, block):
    text = MINIMAL + block + "augment: null\n"
    recipe = load(tmp_path, text, "encoder.layers=3", "features.mels=20", "augment.time_masks=1", "tokenizer.lowercase=false")
    assert (recipe.encoder, recipe.features.mels) == (LSTMOptions(layers=3), 20)
    assert (recipe.augment.time_masks, recipe.tokenizer.lowercase) == (1, False)
    assert load(tmp_path, text, "encoder.layers=3", "encoder.kind=conformer").encoder.kind == "conformer"


def test_a_loop_of_bases_is_named_whatever_their_paths(tmp_path):
    with pytest.raises(UserError, match="not based on this one"):
        load(tmp_path, f"base: ../{tmp_path.name}/recipe.yaml\n")


def numbers(options, prefix: str = "", chosen: str = "") -> list[tuple[str, str]]:
    """Dotted keys that take numbers, each with the kind that the innermost group has to be of."""
    found = []
    for name, hint in typing.get_type_hints(options).items():
        parts = typing.get_args(hint) or (hint,)
        groups = [part for part in parts if dataclasses.is_dataclass(part)]
        for group in groups:
            kind = typing.get_type_hints(group).get("kind")
            found += numbers(group, f"{prefix}{name}.", f"{prefix}{name}.kind={typing.get_args(kind)[0]}" if kind else chosen)
        if not groups and name != "kind" and {int, float} & set(parts):
            found.append((prefix + name, chosen))
    return found


NUMBERS = numbers(Recipe)
HOSTILE = (".nan", ".inf", "-.inf", "-1", "0", "-0.0", "1.0e-300", "1.0e+300", "1", "18446744073709551616", "0x" + "f" * 5000)
HOSTILE += ("true", "text", "[1]", "{a: 1}", "2020-01-01", "!!binary aGk=")


def hostile(tmp_path, key: str, kind: str, value: str) -> Recipe:
    """The recipe with one wild number; a key that takes two of them gets it twice."""
    base = "name: a\ndata: {kind: digit_strings}\n"
    changes = [kind] if kind else []
    if kind.startswith("data.kind") and "digit" not in kind:
        changes += ["data.train={manifest: m}", *(["data.test={manifest: m}"] if "test" in key else [])]
        changes += ["data.valid={manifest: m}"] if "valid" in key else []
    if kind.endswith(("feature_files", "stored")):
        changes += ["features.kind=stored", "data={kind: feature_files, train: {manifest: m}}"][
            :: -1 if "stored" in kind else 1
        ]
        changes += ["data.test={manifest: m}", "data.valid={manifest: m}"]
    pair = key in ("data.digits", "data.pause", "data.noise_db", "data.speed")
    return load(tmp_path, base, *changes, f"{key}=[{value}, {value}]" if pair else f"{key}={value}")


@pytest.mark.parametrize(("key", "kind"), NUMBERS, ids=[f"{key}-{kind.rpartition('=')[2]}" for key, kind in NUMBERS])
def test_wild_numbers_are_refused_by_name_or_are_of_use(tmp_path, key, kind):
    refused = 0
    for value in HOSTILE:
        try:
            recipe = hostile(tmp_path, key, kind, value)
        except UserError as error:
            refused += 1
            said = str(error).partition("recipe.yaml: ")[2]
            assert key in said and len(said) < 400, (value, said)
            continue
        assert all(math.isfinite(number) for number in leaves(recipe_to_plain(recipe)))
        if key.startswith("features."):
            make_features(recipe.features)
        if key.startswith("training.") or key == "seed":
            training_arguments(recipe, tmp_path, evaluate=True)
    assert refused >= 9


def leaves(tree) -> list[float]:
    if isinstance(tree, (dict, list)):
        return [leaf for value in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(value)]
    return [tree] if isinstance(tree, (int, float)) else []


def test_the_wild_numbers_reach_every_group():
    assert len(NUMBERS) > 60
    assert {key.split(".")[0] for key, _ in NUMBERS} >= {"seed", "data", "features", "encoder", "predictor", "training", "ctc"}


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
