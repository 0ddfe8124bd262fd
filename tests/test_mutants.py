"""`make mutants`: what is tried, and that a changed function is the one that runs."""

import sys
from pathlib import Path

import pytest

from jaxpr_opt.engine import registry
from mutants.__main__ import asked, modules
from mutants.find import mutants, numbered
from mutants.harmless import HARMLESS

ROOT = Path(__file__).resolve().parents[1]

MODULE = '''"""A module.

Sound when

1. it is small;
2. it is odd.
"""


def refuse(x):
    if x > 9:
        return "large"  # (1)
    if x % 2 == 0 and x != 2:
        return "even"  # (2)
    return None


def is_odd(x) -> bool:  # (2)
    return x % 2 == 1


class Pass:
    def find(self, xs):
        xs.sort()  # (1)
        xs.reverse()
        yield from [x for x in xs if x]
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mutated_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import mutated_module

    yield mutated_module
    del sys.modules["mutated_module"]


def test_each_condition_once(module, tmp_path):
    path = tmp_path / "mutated_module.py"
    assert numbered(path) == ["1", "2"]
    assert [(m.line, m.function, m.text, m.conditions) for m in mutants(path)] == [
        (11, "refuse", "never: x > 9", ("1",)),
        (13, "refuse", "never: x % 2 == 0 and x != 2", ("2",)),
        (13, "refuse", "without: and x % 2 == 0", ("2",)),
        (13, "refuse", "without: and x != 2", ("2",)),
        (19, "is_odd", "always: x % 2 == 1", ("2",)),
        (19, "is_odd", "never: x % 2 == 1", ("2",)),
        (24, "Pass.find", "left out: xs.sort()", ("1",)),
        (26, "Pass.find", "all, not only if x", ()),
    ]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="mutants need sys.monitoring")
def test_a_mutant_runs(module, tmp_path):
    from mutants import kill

    small, _, _, two, *_, unsorted, _ = mutants(tmp_path / "mutated_module.py")
    assert (module.refuse(11), module.refuse(2)) == ("large", None)
    kill.apply(two)
    assert (module.refuse(11), module.refuse(2)) == ("large", "even")
    kill.apply(small)
    assert (module.refuse(11), module.refuse(2)) == (None, None)
    kill.apply(unsorted)
    assert list(module.Pass().find([1, 3, 2])) == [2, 3, 1]


@pytest.mark.parametrize("function", HARMLESS)
def test_reasons_are_of_mutants_that_are_there(function):
    """A module or a function that is renamed takes its reasons with it."""
    module, _, name = function.partition(".")
    files = [*(ROOT / "passes").rglob(f"{module}.py"), *(ROOT / "jaxpr_opt").rglob(f"{module}.py")]
    there = set()
    for file in files:
        text = file.read_text()  # what cites a condition is broken as a whole
        asked_by = ["", *(each for each in registry.available() if each in text)]
        found = (m for each in asked_by for m in mutants(file, each))
        there |= {m.text for m in found if m.function == name}
    assert there >= HARMLESS[function].keys()


def test_every_condition_is_asked_for_somewhere():
    """What no line cites, `make mutants` does not break."""
    for path in modules():
        cited = {number for mutant in asked(path) for number in mutant.conditions}
        assert cited.issuperset(numbered(path)), path.stem
