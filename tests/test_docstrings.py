"""The examples in the docstrings run, and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import samplewise
import samplewise.integrations

INTEGRATIONS = [module.name for module in pkgutil.iter_modules(samplewise.integrations.__path__)]


def is_documented(name: str) -> bool:
    thing = getattr(samplewise, name)
    return inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, torch.nn.Module))


@pytest.mark.parametrize("name", [name for name in samplewise.__all__ if is_documented(name)])
def test_examples(name):
    """Every public function and module has one."""
    tests = [t for t in doctest.DocTestFinder(recurse=False).find(getattr(samplewise, name), name) if t.examples]
    assert len(tests) == 1, f"{name} has no example"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(tests[0]).failed == 0


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_examples_of_integrations(name):
    module = importlib.import_module(f"samplewise.integrations.{name}")
    for test in doctest.DocTestFinder().find(module):
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0, test.name
