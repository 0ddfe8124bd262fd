"""`jaxpr-opt diff`: a program before and after optimisation, at another revision, or another."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from jaxpr_opt.cli import measure, revision
from jaxpr_opt.cli.options import arguments_of, optimized, print_json, subject_of, traced
from jaxpr_opt.errors import TargetError
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.printing import show
from jaxpr_opt.reports import figures, observe, screen
from jaxpr_opt.reports.account import accounts
from jaxpr_opt.reports.diff import GraphDiff, diff_graphs
from jaxpr_opt.reports.unified import Doers, Unified, doers


class Pair(NamedTuple):
    """Two programs, what they are called, and which passes made one of the other."""

    before: Graph
    after: Graph
    titles: tuple[str, str]
    doers: Doers


def diff(options: argparse.Namespace, console: Console) -> int:
    """`jaxpr-opt diff`."""
    pair = _pair(options)
    difference = diff_graphs(pair.before, pair.after, in_place=True)
    rows = figures.figures(difference.before, difference.after)
    if options.compile:
        rows += measure.compiled(pair.before, pair.after)
    if options.format == "json":
        record = {"target": options.target, "against": options.against, "rev": options.rev}
        record |= {"changed": difference.changed, "figures": figures.to_dict(rows)}
        print_json({**record, "diff": str(difference)})
    else:
        if not options.stat:
            show(_shown(difference, pair.doers, options), console)
            print()
        show(figures.table(rows, pair.titles), console)
    return int(options.exit_code and difference.changed)


def _shown(difference: GraphDiff, doers: Doers, options: argparse.Namespace) -> RenderableType:
    """As much of a diff as was asked for: by default what fits a screen."""
    if options.full:
        return difference
    if not difference.changed and len(difference.lines) > screen.HEIGHT:
        return Text("Both programs are the same.", "bold")
    if options.unified is None:
        return screen.Screen(difference, doers)
    return Unified(difference, max(options.unified, 0), doers)


def _pair(options: argparse.Namespace) -> Pair:
    if options.against is None and options.rev is None:
        return _optimized(options)
    if options.passes or options.skip:
        raise TargetError("--passes and --skip are for one target: two are compared as they are")
    if options.against is not None and options.rev is not None:
        raise TargetError("--rev compares one target with itself: leave the second out")
    return _revisions(options) if options.rev is not None else _two(options)


def _optimized(options: argparse.Namespace) -> Pair:
    arguments = arguments_of(options, options.target)
    subject = subject_of(options.target, options, arguments)
    before = traced(observe.original, subject, subject.written, arguments)
    after, journals = optimized(subject, arguments)
    return Pair(before, after, ("before", "after"), doers(accounts(journals)))


def _two(options: argparse.Namespace) -> Pair:
    (before, first), (after, second) = (
        _as_it_is(target, options) for target in (options.target, options.against)
    )
    titles = (first, second) if first != second else ("first", "second")
    return Pair(before, after, titles, {})


def _revisions(options: argparse.Namespace) -> Pair:
    with revision.at(options.rev):
        before, _ = _as_it_is(options.target, options)
    after, _ = _as_it_is(options.target, options)
    return Pair(before, after, (options.rev, "now"), {})


def _as_it_is(target: str, options: argparse.Namespace) -> tuple[Graph, str]:
    """The program that is compiled for a target, and what it is called."""
    arguments = arguments_of(options, target)
    subject = subject_of(target, options, arguments)
    graph, _ = traced(observe.as_it_is, subject, subject.written, arguments)
    return graph, subject.name
