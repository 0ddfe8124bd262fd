"""What the commands of ``jaxpr-opt`` do; each returns its exit code."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from rich.console import Console

from jaxpr_opt import registry
from jaxpr_opt.cli import documentation, linting, measure
from jaxpr_opt.frames import blame
from jaxpr_opt.html import page
from jaxpr_opt.ir import Graph
from jaxpr_opt.reports import figures, observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.report import Report, advice, show
from jaxpr_opt.reports.report import report as put_together
from jaxpr_opt.reports.residual_report import Residuals
from jaxpr_opt.reports.residuals import ArgnumsError
from jaxpr_opt.reports.residuals import residuals as residuals_of
from jaxpr_opt.targets import (
    Arguments,
    TargetError,
    check_call,
    load_arguments,
    parse_arguments,
    resolve,
)

T = TypeVar("T")

lint, rule = linting.lint, linting.rule


class Subject(NamedTuple):
    """A function to look at: as it is, and with the passes that were asked for."""

    name: str
    written: Callable[..., Any]
    chosen: Callable[..., Any]


class Explained(NamedTuple):
    """A function, its program before and after, and what is to be said of it."""

    subject: Subject
    arguments: Arguments
    before: Graph
    after: Graph
    report: Report


def diff(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt diff`."""
    arguments = _arguments(options)
    subject = _subject(options.target, options, arguments)
    if options.against is None:
        titles = ("before", "after")
        before = _traced(observe.original, subject, subject.written, arguments)
        after, _ = _optimized(subject, arguments)
    else:
        if options.passes or options.skip:
            raise TargetError(
                "--passes and --skip are for one target: two are compared as they are"
            )
        other = _subject(options.against, options, arguments)
        titles = (subject.name, other.name) if subject.name != other.name else ("first", "second")
        before, _ = _traced(observe.as_it_is, subject, subject.written, arguments)
        after, _ = _traced(observe.as_it_is, other, other.written, arguments)
    difference = diff_graphs(before, after)
    rows = figures.figures(difference.before, difference.after)
    if options.compile:
        rows += measure.compiled(before, after)
    if options.format == "json":
        _print_json(
            {
                "target": options.target,
                "against": options.against,
                "changed": difference.changed,
                "figures": figures.to_dict(rows),
                "diff": str(difference),
            }
        )
    else:
        if not options.stat:
            show(difference, console)
            print()
        show(figures.table(rows, titles), console)
    return int(options.exit_code and difference.changed)


def explain(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt explain`."""
    made = _explained(options).report
    if options.format == "json":
        _print_json(made.to_dict())
    else:
        show(made.in_full() if options.verbose else made, console)
    return 0


def residuals(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt residuals`."""
    arguments = _arguments(options)
    written = resolve(options.target)
    check_call(options.target, written, arguments)
    is_told = options.grad or options.argnums is not None
    argnums = _argnums(options.argnums) if is_told else None

    def kept(fun: Callable[..., Any], args: Any, kwargs: Any) -> Residuals:
        try:
            return residuals_of(fun, *args, argnums=argnums, **kwargs)
        except ArgnumsError as error:
            raise TargetError(f"{options.target}: {error}; --argnums tells by what") from error

    subject = Subject(observe.name_of(written), written, written)
    made = _traced(kept, subject, written, arguments)
    if options.format == "json":
        _print_json({"target": options.target, **made.to_dict()})
    else:
        show(made, console)
    return 0


def report(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt report`."""
    made = _explained(options)
    findings = linting.findings(made.subject.name, made.subject.written, made.arguments)
    document = page(made.report, made.before, made.after, findings)
    linting.save(Path(options.html), document)
    show(f"wrote {options.html} ({figures.bytes_text(len(document.encode()))})", console)
    return 0


def passes(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt passes`."""
    if options.name is not None:
        documented = _one_pass(options.name)
        if options.format == "json":
            _print_json(documentation.to_dict(documented))
        else:
            show(documentation.page(documented), console)
    elif options.format == "json":
        _print_json([documentation.to_dict(each) for each in registry.available().values()])
    else:
        show(documentation.contents(registry.available().values()), console)
    return 0


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


# -- what the options mean -----------------------------------------------------------------------


def _arguments(options: argparse.Namespace) -> Arguments:
    if options.args_from is not None:
        return load_arguments(options.args_from)
    return parse_arguments(options.args or ()), {}


def _subject(target: str, options: argparse.Namespace, arguments: Arguments) -> Subject:
    written = resolve(target)
    check_call(target, written, arguments)
    name, chosen = observe.name_of(written), written
    if options.passes is not None or options.skip:
        only = None if options.passes is None else _names(options.passes)
        try:
            chosen = observe.reselected(written, only, _names(options.skip))
        except ValueError as error:  # no pass of that name
            raise TargetError(str(error)) from error
    if options.argnums is not None and not options.grad:
        raise TargetError("--argnums tells --grad what to differentiate by: add --grad")
    if options.grad:
        gradient = functools.partial(jax.grad, argnums=_argnums(options.argnums))
        name, written, chosen = f"grad({name})", gradient(written), gradient(chosen)
    return Subject(name, written, chosen)


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _argnums(listed: str | None) -> int | tuple[int, ...]:
    if listed is None:
        return 0
    try:
        numbers = tuple(int(number) for number in listed.split(","))
    except ValueError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers):
        raise TargetError(f"--argnums {listed!r}: write argument positions, as 0 or 0,2")
    return numbers[0] if len(numbers) == 1 else numbers


def _one_pass(name: str) -> Any:
    try:
        return registry.named(name)
    except ValueError as error:
        raise TargetError(str(error)) from error


# -- traces --------------------------------------------------------------------------------------


def _traced(
    how: Callable[..., T], subject: Subject, fun: Callable[..., Any], arguments: Arguments
) -> T:
    """Trace the user's function: should it raise, that is where the story ends."""
    try:
        return how(fun, *arguments)
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{subject.name} raised while tracing: {blame(error)}") from error


def _explained(options: argparse.Namespace) -> Explained:
    arguments = _arguments(options)
    subject = _subject(options.target, options, arguments)
    before = _traced(observe.original, subject, subject.written, arguments)
    after, journals = _optimized(subject, arguments)
    made = put_together(subject.name, diff_graphs(before, after), journals, advice(after))
    return Explained(subject, arguments, before, after, made)


def _optimized(subject: Subject, arguments: Arguments) -> tuple[Graph, list[Any]]:
    try:
        return observe.optimized(subject.chosen, *arguments)
    except Exception as error:  # only in strict mode: otherwise a failing pass is a warning
        why = f"{blame(error)}; --traceback shows more"
        raise TargetError(f"optimising {subject.name} failed: {why}") from error
