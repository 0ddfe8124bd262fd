"""The options of commands about one function: its arguments, its gradient, its passes."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax

from jaxpr_opt.boundary.arrays_only import arrays_only
from jaxpr_opt.boundary.loops import differentiated
from jaxpr_opt.engine import registry
from jaxpr_opt.errors import TargetError
from jaxpr_opt.frames import blame, name_of
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.residuals import ArgnumsError, checked
from jaxpr_opt.stderr import working
from jaxpr_opt.targets import (
    Arguments,
    check_call,
    is_saved,
    load_arguments,
    parse_arguments,
    resolve,
    saved,
)

T = TypeVar("T")


class Subject(NamedTuple):
    """A function to look at: as it is, and with the passes that were asked for."""

    name: str
    written: Callable[..., Any]
    chosen: Callable[..., Any]


def print_json(value: Any) -> None:
    """Print a value for machines."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


# -- what the options mean -----------------------------------------------------------------------


def arguments_of(options: argparse.Namespace, target: str) -> Arguments:
    """The arguments that `--args` or `--args-from` stand for; a saved program has its own."""
    if is_saved(target):
        if options.args or options.args_from is not None:
            raise TargetError(f"{target} has its own arguments: leave --args out")
        return saved(target).arguments, {}
    if options.args_from is not None:
        return load_arguments(options.args_from)
    return parse_arguments(options.args or ()), {}


def subject_of(target: str, options: argparse.Namespace, arguments: Arguments) -> Subject:
    """The function to look at, or its gradient, with the passes that were asked for."""
    written = resolve(target)
    check_call(target, written, arguments)
    name, chosen = name_of(written), written
    if options.passes is not None or options.skip:
        only = None if options.passes is None else _names(options.passes)
        skip = _names(options.skip)
        try:
            registry.check_names(only or (), "--passes")
            registry.check_names(skip, "--skip")
        except ValueError as error:
            raise TargetError(str(error)) from error
        chosen = observe.reselected(written, only, skip)
    if options.argnums is not None and not options.grad:
        raise TargetError("--argnums needs --grad: it says what to differentiate by")
    if options.grad:
        argnums = argnums_of(options.argnums)
        try:
            checked(argnums, arguments[0])
        except ArgnumsError as error:
            raise TargetError(f"{target}: {error}") from error
        name = f"grad({name})"
        written, chosen = _gradient(written, argnums), _gradient(chosen, argnums)
    return Subject(name, written, chosen)


def _gradient(fun: Callable[..., Any], argnums: int | tuple[int, ...]) -> Callable[..., Any]:
    """`jax.grad`, also of loops of unknown length, and by arguments that hold functions."""

    @functools.wraps(jax.grad(fun, argnums))
    def gradient(*args: Any, **kwargs: Any) -> Any:
        of_arrays, args, kwargs = arrays_only(fun, args, kwargs)
        return differentiated(lambda fun: jax.grad(fun, argnums)(*args, **kwargs), of_arrays)

    return gradient


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def argnums_of(listed: str | None) -> int | tuple[int, ...]:
    """The positions that `--argnums` stands for."""
    if listed is None:
        return 0
    try:
        numbers = tuple(int(number) for number in listed.split(","))
    except ValueError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers):
        raise TargetError(f"--argnums {listed!r}: write argument positions, as 0 or 0,2")
    return numbers[0] if len(numbers) == 1 else numbers


# -- traces --------------------------------------------------------------------------------------


def traced(
    how: Callable[..., T], subject: Subject, fun: Callable[..., Any], arguments: Arguments
) -> T:
    """Trace the user's function: should it raise, that is where the story ends."""
    try:
        with working(f"tracing {subject.name}"):
            return how(fun, *arguments)
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{subject.name} raised while tracing: {blame(error)}") from error


def optimized(subject: Subject, arguments: Arguments) -> tuple[Graph, list[Any]]:
    """The program that is compiled, and what every pipeline did on the way."""
    try:
        with working(f"optimising {subject.name}"):
            return observe.optimized(subject.chosen, *arguments)
    except Exception as error:  # only in strict mode: otherwise a failing pass is a warning
        why = f"{blame(error)}; --traceback shows more"
        raise TargetError(f"optimising {subject.name} failed: {why}") from error
