"""Find the targets that users name on the command line.

==============================  ====================================================================
``step``                        the target of that name in `pyproject.toml`
``module:f``, ``file.py:f``     a function, with the arguments given beside it, or those it is
                                marked with (`lint_target`)
``module``, ``file.py``         every function in it that is optimised or marked
nothing                         every target in `pyproject.toml`
==============================  ====================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from jaxpr_opt.decorator import unwrap
from jaxpr_opt.errors import TargetError, nearest
from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.config import Config
from jaxpr_opt.lint.options import Spec
from jaxpr_opt.lint.program import of_saved
from jaxpr_opt.lint.target import Given, Mark, Target, is_same, marked
from jaxpr_opt.targets import is_saved, load_module, resolve, saved


@dataclass(frozen=True)
class Asked:
    """What goes for every target of a command line that says nothing else itself."""

    given: Given = None
    source: str = ""
    """Where `given` comes from, in words."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `Spec` that were set."""

    @property
    def is_silent(self) -> bool:
        return self.given is None and not self.settings


def targets(names: Sequence[str], config: Config, asked: Asked) -> tuple[Target, ...]:
    """The targets that names stand for, each with a name of its own.

    Raises:
      TargetError: a name stands for nothing.
    """
    if not names:
        names = list(config.targets)
        if not names:
            raise TargetError(
                "nothing to lint: write module:function or file.py:function, or name targets in"
                " pyproject.toml under [tool.jaxpr-opt.lint.targets.NAME]; `jaxpr-opt"
                " init train.py` writes them"
            )
    found = [target for name in names for target in _named(name, config, asked)]
    if not asked.is_silent and not any(target.is_asked for target in found):
        raise TargetError(
            f"{', '.join(names)}: arguments and settings come with the target, where it is named"
            " or marked; those on the command line are for others"
        )
    unique = dict[str, Target]()
    for target in found:
        if unique.setdefault(target.name, target).function is not target.function:
            raise TargetError(f"two targets are called {target.name!r}")
    return tuple(unique.values())


@dataclass(frozen=True)
class Lost:
    """A target of the project whose function cannot be had."""

    name: str
    error: TargetError
    place: Frame | None
    """Where it is named."""


def found(
    names: Sequence[str], config: Config, asked: Asked
) -> tuple[tuple[Target, ...], tuple[Lost, ...]]:
    """What `targets` finds, and targets of the project that are not there, which hide no others.

    Raises:
      TargetError: a name stands for nothing.
    """
    names = list(names) or list(config.targets)
    lost = tuple(each for each in map(functools.partial(_lost, config), names) if each is not None)
    others = [name for name in names if name not in {each.name for each in lost}]
    return (targets(others, config, asked) if others or not lost else ()), lost


def _lost(config: Config, name: str) -> Lost | None:
    if name not in config.targets:
        return None
    try:
        config.targets[name].target()
    except TargetError as error:
        return Lost(name, error, config.targets[name].place)
    return None


def _named(name: str, config: Config, asked: Asked) -> Iterable[Target]:
    if name in config.targets:
        return [config.targets[name].target()]
    if is_saved(name):
        return [of_saved(saved(name), name)]
    if ":" in name:
        return [_function(name, asked)]
    if hint := nearest(name, config.targets, otherwise=""):
        raise TargetError(f"there is no target {name!r}{hint}")
    return _module(name, asked)


def _function(name: str, asked: Asked) -> Target:
    function = resolve(name)
    place = name.rpartition(":")[0]
    mark = _mark_of(function, marked(load_module(place).__name__))
    if mark is not None and asked.is_silent:
        return _marked(name, function, mark)
    return _target(name, function, asked)


def _module(name: str, asked: Asked) -> list[Target]:
    """Marked functions, then those that are optimised and not marked."""
    module = load_module(name)
    marks = marked(module.__name__)
    optimized = {key: each for key, each in vars(module).items() if unwrap(each) is not None}
    found = [_marked(f"{name}:{mark.name}", _outermost(mark, module), mark) for mark in marks]
    for key, value in optimized.items():
        if _mark_of(value, marks) is None and value.__module__ == module.__name__:
            found.append(_target(f"{name}:{key}", value, asked))
    if not found:
        raise TargetError(
            f"{name} has no function that is decorated with @jaxpr_opt.optimize or"
            f" @jaxpr_opt.lint_target: write {name}:function"
        )
    return found


def _mark_of(function: Callable[..., Any], marks: Iterable[Mark]) -> Mark | None:
    return next((mark for mark in marks if is_same(mark.function, function)), None)


def _outermost(mark: Mark, module: ModuleType) -> Callable[..., Any]:
    """The function as the module has it: with the decorators above `lint_target`."""
    values = (v for v in vars(module).values() if callable(v) and is_same(mark.function, v))
    return next(values, mark.function)


def _marked(name: str, function: Callable[..., Any], mark: Mark) -> Target:
    return Target(
        name=mark.name if mark.is_named else name,
        function=function,
        given=mark.args,
        spec=mark.spec,
        settings=mark.settings,
    )


def _target(name: str, function: Callable[..., Any], asked: Asked) -> Target:
    return Target(
        name=name,
        function=function,
        given=asked.given,
        spec=Spec(**asked.settings),
        source=asked.source,
        is_asked=True,
    )
