"""From names to targets to subjects."""

from __future__ import annotations

import functools
import gc
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint import lint_target
from jaxpr_opt.lint.config import Config, load, read
from jaxpr_opt.lint.discover import Asked, targets
from jaxpr_opt.lint.options import Options, Scale, Spec
from jaxpr_opt.lint.target import Target
from jaxpr_opt.targets import arguments_of
from tests.lint import programs

FILE = "tests/lint/programs.py"
EMPTY = Config(root=Path.cwd())


@pytest.fixture(autouse=True)
def restored_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def named(*names, config=EMPTY, asked=Asked()):  # noqa: B008
    return {target.name: target for target in targets(names, config, asked)}


# -- what is found


@pytest.mark.parametrize("module", [FILE, "tests.lint.programs"])
def test_a_module_stands_for_all_that_is_marked_or_optimised(module):
    found = named(module)
    assert list(found) == ["marked", f"{module}:below", f"{module}:unmarked"]
    assert found["marked"].spec.mode == "gradient"
    assert found["marked"].settings["max_residual_bytes"].fail == 1
    below = found[f"{module}:below"]
    assert isinstance(below.function, jax.stages.Wrapped)  # with the decorator above the mark
    assert [arg.shape for arg in below.subject(Options()).args] == [(8, 8), (4, 8)]


def test_a_marked_function_may_be_named_and_keeps_what_it_was_marked_with():
    found = named(f"{FILE}:above")
    assert list(found) == ["marked"]
    asked = Asked(("f32[8,8]", "f32[4,8]"), "--args", {"mode": "as-is"})
    overruled = named(f"{FILE}:above", asked=asked)[f"{FILE}:above"]
    assert overruled.spec == Spec(mode="as-is")
    assert [arg.shape for arg in overruled.subject(Options()).args] == [(8, 8), (4, 8)]


def test_targets_of_the_project():
    config = load_text('[tool.jaxpr-opt.lint.targets.step]\nfunction = "m:f"\n', Path.cwd())
    with pytest.raises(TargetError, match="there is no target 'stp'; did you mean 'step'"):
        named("stp", config=config)
    with pytest.raises(TargetError, match="step: arguments and settings come with the target"):
        named("step", config=load_text(PROJECT, Path(FILE).parent), asked=Asked((), "--args", {}))
    (step,) = targets((), load_text(PROJECT, Path(FILE).parent), Asked())
    assert (step.name, step.spec) == ("step", Spec(mode="gradient", scale=Scale("steps", (4, 8))))
    about = step.subject(Options())
    assert about.args[1].shape == (64, 8)  # its own, whatever the scale
    assert about.at(4).args[1].shape == (4, 8)
    assert about.at(4).mode == "gradient"
    assert about.name == "step"


PROJECT = """
[tool.jaxpr-opt.lint.targets.step]
function = "programs.py:loss"
args = "programs.py:arguments"
mode = "gradient"
scale = "steps=4,8"
"""


def load_text(text, folder):
    return read(text, folder / "pyproject.toml")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "nothing to lint: write module:function"),
        (("tests.lint.test_rule",), "has no function that is decorated with @jaxpr_opt.optimize"),
        (("tests.lint.nowhere",), "there is no module 'tests.lint.nowhere'"),
        ((f"{FILE}:lost",), "has no attribute 'lost'; did you mean 'loss'"),
    ],
)
def test_names_that_stand_for_nothing(names, message):
    with pytest.raises(TargetError, match=message):
        named(*names)


def test_two_targets_of_one_name():
    config = load_text(PROJECT.replace("step]", "marked]"), Path(FILE).parent)
    with pytest.raises(TargetError, match="two targets are called 'marked'"):
        named("marked", FILE, config=config)
    assert list(named(FILE, FILE)) == list(named(FILE))


# -- marks


def test_marking_changes_nothing():
    def f(x):
        return x

    assert lint_target(args=("f32[3]",))(f) is f
    assert lint_target(f, ignore=["JXO601"]) is f


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"args": 3}, TypeError, "lint_target: args must be a function or a tuple, got 3"),
        ({"mod": "gradient"}, ValueError, "lint_target: unknown setting 'mod'; did you mean 'mode"),
        ({"mode": "grad"}, ValueError, "lint_target: mode is 'grad': expected one of as-is"),
    ],
)
def test_marks_that_make_no_sense(settings, error, message):
    with pytest.raises(error, match=message):
        lint_target(**settings)(jnp.sin)


def test_marking_what_is_no_function():
    with pytest.raises(TypeError, match="lint_target: fun must be callable, got 3"):
        lint_target(3)


# -- arguments


def live_bytes():
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def test_arrays_that_arguments_come_with_are_never_made():
    made = []

    def arguments():
        made.append(jnp.zeros((2**20, 2**20)))  # 4 TB
        return (made[0],), {"key": jax.random.key(0), "scale": 2.0, "kept": {"on": True}}

    before = live_bytes()
    (x,), kwargs = arguments_of(arguments, "arguments")
    assert (x.shape, x.dtype) == ((2**20, 2**20), jnp.float32)
    assert kwargs["key"].shape == ()
    assert (kwargs["scale"], kwargs["kept"]) == (2.0, {"on": True})
    assert live_bytes() == before


def test_arguments_that_need_values_are_made_and_forgotten():
    def arguments():
        size = int(jnp.sum(jnp.arange(4)))
        return (jnp.zeros(size),)

    before = live_bytes()
    (x,), _ = arguments_of(arguments, "arguments")
    assert isinstance(x, jax.ShapeDtypeStruct)
    assert x.shape == (6,)
    assert live_bytes() == before


def test_the_function_of_the_arguments_may_fail():
    with pytest.raises(TargetError, match=r"arguments raised ZeroDivisionError: .*test_targets.py"):
        arguments_of(lambda: 1 // 0, "arguments")
    with pytest.raises(TargetError, match="arguments returned a list: expected a tuple"):
        arguments_of(lambda: [1], "arguments")


def test_scales_need_arguments_that_take_them():
    spec = Spec(scale=Scale("n", (4, 8)))
    for given, source in [(programs.arguments, "p:arguments"), (("f32[3]",), "")]:
        target = Target(name="t", function=programs.loss, given=given, spec=spec, source=source)
        who = source or "no function"
        message = f"t: scale needs arguments from a function of n; it has {who}"
        with pytest.raises(TargetError, match=message):
            target.subject(Options())
    growing = Target(name="t", function=programs.loss, spec=Spec(growth="O(n)"))
    with pytest.raises(TargetError, match="t: growth needs a scale"):
        growing.subject(Options())


def test_a_targets_own_options_come_first():
    defaults = Options(min_bytes=5, min_share=0.5)
    target = Target(name="t", function=jnp.sin, given=("f32[3]",), settings={"min_bytes": 7})
    assert target.subject(defaults).options == Options(min_bytes=7, min_share=0.5)


def test_the_place_of_a_function_is_found_under_what_wraps_it():
    line = programs.loss.__code__.co_firstlineno
    for wrapped in (jax.jit(programs.loss), functools.partial(programs.loss, xs=1)):
        place = Target(name="t", function=wrapped).place
        assert place is not None
        assert (Path(place[0]).name, *place[1:]) == ("programs.py", line, "loss")
    assert Target(name="t", function=jnp.sin).place is None


def test_a_file_without_a_project_has_the_defaults():
    assert load(None) == Config(root=Path.cwd())
