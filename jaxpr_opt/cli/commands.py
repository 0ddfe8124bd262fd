"""The commands of ``jaxpr-opt``; each returns its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from jaxpr_opt.cli import diffing, documentation, linting, running
from jaxpr_opt.cli.options import (
    Subject,
    argnums_of,
    arguments_of,
    optimized,
    print_json,
    subject_of,
    traced,
)
from jaxpr_opt.engine import registry
from jaxpr_opt.errors import TargetError
from jaxpr_opt.frames import name_of
from jaxpr_opt.html import page
from jaxpr_opt.html.frontier import page as frontier_page
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.printing import show
from jaxpr_opt.reports import frontier, observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.frontier import Frontier
from jaxpr_opt.reports.report import Report, advice
from jaxpr_opt.reports.report import report as put_together
from jaxpr_opt.reports.residual_report import Residuals
from jaxpr_opt.reports.residuals import ArgnumsError
from jaxpr_opt.reports.residuals import residuals as residuals_of
from jaxpr_opt.sizes import bytes_text
from jaxpr_opt.targets import Arguments, check_call, resolve

T = TypeVar("T")

diff, run, init = diffing.diff, running.run, running.init
lint, rule = linting.lint, linting.rule


class Explained(NamedTuple):
    """A function, its program before and after, and what is to be said of it."""

    subject: Subject
    arguments: Arguments
    before: Graph
    after: Graph
    report: Report


def explain(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt explain`."""
    made = _explained(options).report
    if options.format == "json":
        print_json(made.to_dict())
    else:
        show(made.in_full() if options.verbose else replace(made, asks="-v"), console)
    return 0


def residuals(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt residuals`."""
    arguments = arguments_of(options, options.target)
    written = resolve(options.target)
    check_call(options.target, written, arguments)
    is_gradient = options.grad or options.argnums is not None
    argnums = argnums_of(options.argnums) if is_gradient else None

    def kept(fun: Callable[..., Any], args: Any, kwargs: Any) -> Residuals:
        try:
            return residuals_of(fun, *args, argnums=argnums, **kwargs)
        except ArgnumsError as error:
            raise TargetError(f"{options.target}: {error}") from error

    subject = Subject(name_of(written), written, written)
    made = traced(kept, subject, written, arguments)
    if options.format == "json":
        print_json({"target": options.target, **made.to_dict()})
    else:
        show(made, console)
    return 0


def budget(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt budget`."""
    arguments = arguments_of(options, options.target)
    subject = subject_of(options.target, options, arguments)

    def buys(fun: Callable[..., Any], args: Any, kwargs: Any) -> Frontier:
        return replace(frontier.budget(fun, *args, **kwargs), name=subject.name)

    made = traced(buys, subject, subject.chosen, arguments)
    if options.html:
        linting.save(Path(options.html), frontier_page(made))
    if options.format == "json":
        print_json({"target": options.target, **made.to_dict()})
    else:
        show(made, console)
    return 0


def report(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt report`."""
    made = _explained(options)
    findings = linting.findings(made.subject.name, made.subject.written, made.arguments)
    document = page(made.report, made.before, made.after, findings)
    linting.save(Path(options.html), document)
    show(f"wrote {options.html} ({bytes_text(len(document.encode()))})", console)
    return 0


def passes(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt passes`."""
    if options.name is not None:
        documented = _one_pass(options.name)
        if options.format == "json":
            print_json(documentation.to_dict(documented))
        else:
            show(documentation.page(documented), console)
    elif options.format == "json":
        print_json([documentation.to_dict(each) for each in registry.available().values()])
    else:
        show(documentation.contents(registry.available().values()), console)
    return 0


def _explained(options: argparse.Namespace) -> Explained:
    arguments = arguments_of(options, options.target)
    subject = subject_of(options.target, options, arguments)
    before = traced(observe.original, subject, subject.written, arguments)
    after, journals = optimized(subject, arguments)
    made = put_together(subject.name, diff_graphs(before, after), journals, advice(after))
    return Explained(subject, arguments, before, after, made)


def _one_pass(name: str) -> Any:
    try:
        return registry.named(name)
    except ValueError as error:
        raise TargetError(str(error)) from error
