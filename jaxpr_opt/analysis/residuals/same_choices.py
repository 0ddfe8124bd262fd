"""Whether loops that read what another one stacks choose as that one does."""

from __future__ import annotations

from functools import partial

from jaxpr_opt.analysis.residuals.counterparts import counterparts
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.steps.assume import Assumed, Facts
from jaxpr_opt.analysis.steps.choices import Choice, choices_of, row_of
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.step_numbers import counted_alike
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan, Value
from jaxpr_opt.ir.nesting import dominates


@remembered
def borrowed(scan: Scan) -> tuple[Choice, ...]:
    """The ways in which loops choose that read what this one stacks, by rows of other arrays."""
    own = {stream.operand for stream in scan.streams}
    found: dict[tuple[Value, int | None], Choice] = {}
    for stack in scan.stacks:
        for route, row in routes(stack.result) or () if stack.result.uses else ():
            reader = route[-1]
            assert isinstance(reader, Rows)
            stream = reader.scan.stream_of(row)
            if len(route) > 1 or stream is None:
                continue
            for each in choices_of(reader.scan):
                array = row_of(each.asked)
                if array is None or array in own or not dominates(array, scan):
                    continue
                nothing = Assumed(scan.body, {})
                cases = (nothing,) * len(each.cases)
                facts: tuple[Facts, ...] = ({},) * len(cases)
                choice = Choice(scan, each.asked, facts, cases, (), each.number, each.numbers)
                found.setdefault((array, each.number), choice)
    return tuple(found.values())


def asks_the_same(other: Choice, choice: Choice, route: Route) -> bool:
    """Whether the loop at the end of a route chooses as the one did that stacked a row."""
    if not other.is_like(choice):
        return False
    if choice.is_borrowed:
        array, its = row_of(choice.asked), row_of(other.asked)
        return len(route) == 1 and array is not None and array is its
    found = counterparts(choice.scan, route, ())
    if found is None:
        return False
    renamed = {there: param for param, there in found.names.items()}
    alike = partial(counted_alike, choice.scan, other.scan)
    return same_expression(choice.asked, other.asked, renamed, alike)
