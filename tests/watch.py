"""What every value of a program is in every step of the loops around it."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from jaxpr_opt.ir.graph import Graph, Region, Scan, Value
from jaxpr_opt.testing import exact

Steps = dict[Scan, int]
Look = Callable[[Value], Any]


def watch(graph: Graph, args: Sequence[Any], visit: Callable[[Region, Steps, Look], None]) -> list:
    """Evaluate a program, and after each run of a region call ``visit(region, steps, look)``.

    `steps` is the row that each scan around it is at; `look` gives a value that the region sees.
    """
    order: dict[Scan, list[int]] = {}
    steps: Steps = {}
    run_region, run_scan = exact._region, exact._scan

    def scan(op, *rest):
        order[op] = list(reversed(range(op.length)) if op.reverse else range(op.length))
        out = run_scan(op, *rest)
        steps.pop(op, None)
        return out

    def region(each, inputs, env):
        if isinstance(each.owner, Scan):
            steps[each.owner] = order[each.owner].pop(0)
        out = run_region(each, inputs, env)
        visit(each, dict(steps), lambda value: exact._read(env, value))
        return out

    with mock.patch.multiple(exact, _region=region, _scan=scan):
        return exact.evaluate_exactly(graph, *args)
