"""Passes by name: the library's own, and those that other packages register.

The engine names the library once, as a string. Another package adds passes with an entry point::

    [project.entry-points."jaxpr_opt.passes"]
    my-pass = "my_package.my_module:MyPass"
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from jaxpr_opt import settings
from jaxpr_opt.bridge.interpreter_stack import uncollected
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.errors import nearest
from jaxpr_opt.memory.budget import Budget, parse_budget

LIBRARY = "jaxpr_opt.passes"
RETIRED = frozenset({"join-scalar-stacks"})
"""Passes of the last minor version that are gone: `skip` may still name them."""


@functools.cache
def available() -> dict[str, Pass[Any]]:
    """Every pass by its kebab-case name, the library's first.  Two passes of one name are an
    error.
    """
    found: dict[str, Pass[Any]] = {each.name: each for each in library_passes()}
    for entry in entry_points(group=LIBRARY):
        each = entry.load()()
        if each.name in found:
            raise ValueError(f"two passes are called {each.name!r}: one comes from {entry.value}")
        found[each.name] = each
    return found


def default_pipeline() -> Pipeline:
    """The library's pipeline, in the order `jaxpr_opt.passes` declares; without passes that change
    the order of sums, unless the environment allows it.
    """
    return _library(reassociate=_may_reassociate())


@functools.cache
def _library(*, reassociate: bool) -> Pipeline:
    with uncollected():
        library = importlib.import_module(LIBRARY)
    return Pipeline(library.STAGES if reassociate else library.DEFAULT, library.MEMORY)


def _may_reassociate() -> bool:
    return settings.is_on(os.environ.get(settings.REASSOCIATE, ""))


def library_passes() -> tuple[Pass[Any], ...]:
    """Every pass of the library: those of its pipeline, those that change the order of sums, and
    those for arguments that callers donate.
    """
    donation: tuple[Pass[Any], ...] = importlib.import_module(LIBRARY).DONATION
    return (*_library(reassociate=True).passes, *donation)


@functools.cache
def _resolved(
    passes: tuple[str | Pass[Any], ...] | None,
    skip: tuple[str, ...],
    memory: Budget | None,
    reassociate: bool,
) -> Pipeline:
    pipeline = replace(_library(reassociate=reassociate), memory=memory)
    if passes is not None:
        chosen = tuple(each if isinstance(each, Pass) else named(each) for each in passes)
        trades = pipeline.trades if memory is not None else ()
        pipeline = replace(pipeline, stages=(chosen,), trades=trades)
    for name in skip:
        pipeline = pipeline.without(named(name).name)
    return pipeline


def resolve(
    passes: Sequence[str | Pass[Any]] | None = None,
    skip: Sequence[str] = (),
    memory: str | float | None = None,
    *,
    reassociate: bool = False,
    caller: str = "optimize",
) -> Pipeline:
    """The pipeline of these passes only (default: the library's), without those named in `skip`,
    within a memory budget: if none is given, that of the environment.  `reassociate`: with those
    that change the order of sums, which the environment may allow, too.  `caller`: whom messages
    name.

    Names may be written with dashes or underscores.

    Raises:
      TypeError: `passes` or `skip` is not a sequence of names or passes; a pass lacks its name or a
        function; or it is of a second copy of the library.
      ValueError: a name is not that of a pass, or the budget is none.
    """
    budget = _budget_of_environment()
    if memory is not None:
        budget = parse_budget(memory, f"{caller}: memory")
    if passes is not None:
        _check_listed(passes, f"{caller}: passes")
        for each in passes:
            if isinstance(each, Pass):
                _check_copy(each)
        check_names((n for n in passes if isinstance(n, str)), f"{caller}: passes")
    _check_listed(skip, f"{caller}: skip")
    left_out = tuple(str(getattr(n, "name", n)) for n in skip)
    check_names(left_out, f"{caller}: skip")
    return _resolved(
        None if passes is None else tuple(passes),
        _without_retired(left_out),
        budget,
        reassociate or _may_reassociate(),
    )


def check_names(names: Iterable[str], where: str) -> None:
    """Raise `ValueError` if a name is not that of a pass, nor of one that is gone.  `where`: what
    the message begins with.
    """
    for name in names:
        if name.replace("_", "-") not in RETIRED:
            try:
                named(name)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None


def _without_retired(skip: tuple[str, ...]) -> tuple[str, ...]:
    """Names of passes to leave out, without those of passes that are gone: they do nothing."""
    kept = tuple(name for name in skip if name.replace("_", "-") not in RETIRED)
    for name in (each for each in skip if each not in kept):
        message = f"optimize: skip: there is no pass {name!r} any more: leave it out"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
    return kept


def _budget_of_environment() -> Budget | None:
    written = os.environ.get(settings.MEMORY)
    return parse_budget(written, settings.MEMORY) if written else None


def _check_listed(given: object, where: str) -> None:
    """Raise `TypeError` for what is no list of names and passes, and for what is no whole pass: a
    class, or a pass without a name or `find`.
    """
    listed = given if isinstance(given, Sequence) and not isinstance(given, str) else (None,)
    for each in listed:
        if isinstance(each, type) and issubclass(each, Pass):
            raise TypeError(f"{where}: {each.__name__} is a class: write {each.__name__}()")
        if not isinstance(each, str | Pass):
            raise TypeError(f"{where} must be a list of pass names, got {given!r}")
        if isinstance(each, Pass):
            _check_whole(each, where)


def _check_whole(given: Pass[Any], where: str) -> None:
    kind = type(given)
    lacks_name = not isinstance(getattr(given, "name", None), str)
    if lacks_name or kind.find is Pass.find:
        missing = "a name" if lacks_name else "find"
        raise TypeError(f"{where}: {kind.__name__} does not define {missing}")


def _check_copy(given: Pass[Any]) -> None:
    """Raise `TypeError` for a pass of the library that was imported a second time, by its file."""
    ours = available().get(given.name)
    if ours is None or type(ours) is type(given):
        return
    (own, own_file), (other, other_file) = map(_origin, (type(ours), type(given)))
    if own != other and own_file == other_file:
        raise TypeError(
            f"optimize: passes: {type(given).__name__} comes from {other}, a second copy of {own}:"
            f" import it from there, or write {given.name!r}"
        )


def _origin(kind: type) -> tuple[str, Path | None]:
    """The module of a class, and its file, if it has one."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__, file and Path(file).resolve()


def named(name: str) -> Pass[Any]:
    """The pass with this name."""
    found = available().get(name.replace("_", "-"))
    if found is None:
        hint = nearest(name.replace("_", "-"), available(), ": `jaxpr-opt passes` lists them")
        raise ValueError(f"there is no pass {name!r}{hint}")
    return found
