"""Is this graph still a program?  A fault is shown in the program, where it is.

Checked, in this order:

1. the lists: regions and ops point at each other, every region ends in its one terminator;
2. the values: use lists agree with operands, every operand is defined where it is read, an isolated
   region (of a `Call`) reads nothing from outside;
3. the roles: carries keep their type from `init` to `param`, `next` and `result`; streams and
   stacks have `length` rows of what the body reads and yields; branches agree with the results;
   selectors and predicates are scalars of the right kind; effects inside an op are effects of it;
4. with ``types=True``, first-order results have the types the primitive itself gives them.

Weak types are not compared: JAX promotes the initial carry itself when a graph is traced again.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.ir.graph import Call, Constant, Graph, Op, Region, Use, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.verify_types import Report, VerifyError, check_primitive, check_roles

__all__ = ["VerifyError", "verify"]


def verify(graph: Graph, *, types: bool = False) -> None:
    """Raise `VerifyError` unless every invariant of the graph holds; see the module's docstring."""
    report = Report(graph)
    if graph.body.owner is not graph:
        report.fail(None, "the graph to own its body", repr(graph.body.owner), "nothing else does")
    _lists(graph.body, None, report)
    _owned(graph.body.params, graph.body, None, report)
    for op in graph.walk():
        _values(op, report)
    for op in graph.walk():
        check_roles(op, report)
        if types:
            check_primitive(op, report)


def _lists(region: Region, owner: Op | None, report: Report) -> None:
    """(1) of a region and of everything inside it."""
    before: Op | None = None
    for op in region.ops:
        if op.region is not region or op.prev is not before:
            report.fail(op, "its `prev` right before it", repr(op.prev), "a region is a list")
        if before is not None and before.is_terminator:
            report.fail(before, "nothing below it", repr(op), "a terminator ends its region")
        before = op
        for inner in op.regions:
            if inner.owner is not op:
                report.fail(op, "to own its regions", repr(inner.owner), "nothing else does")
            _lists(inner, op, report)
    if before is None or not before.is_terminator or region.last is not before:
        report.fail(before or owner, "a yield", repr(before), "every region ends in one")


def _values(op: Op, report: Report) -> None:
    """(2) of an op: what it reads and what it defines."""
    for index, operand in enumerate(op.operands):
        if Use(op, index) not in operand.uses:
            name = report.name(operand)
            report.fail(op, f"a use of {name}", "none", "every operand is listed as a use")
        if not _is_defined(operand) or not dominates(operand, op):
            because = _why_undefined(operand, op, report.graph)
            report.fail(op, "an operand defined here", report.name(operand), because)
    _owned(op.results, op, op, report)
    for region in op.regions:
        _owned(region.params, region, op, report)


def _owned(values: Iterable[Value], owner: Op | Region, op: Op | None, report: Report) -> None:
    for value in values:
        if value.owner is not owner:
            expected = f"{report.name(value)} to be owned by what defines it"
            report.fail(op, expected, repr(value.owner), "a value has one definition")
        for user, index in value.uses:
            if user.region is None or user.operands[index : index + 1] != (value,):
                expected = f"operand {index} of a {user.name} here to be {report.name(value)}"
                got = ", ".join(map(report.name, user.operands)) or "an erased op"
                report.fail(op, expected, got, "it is listed as a use")


def _is_defined(value: Value) -> bool:
    """Whether the op or region that it says defines it does."""
    if value.owner is None:
        return isinstance(value, Constant)
    return value in value.owner.places


def _why_undefined(value: Value, op: Op, graph: Graph) -> str:
    if value.owner is not None and not _is_defined(value):
        return f"{value.owner!r} no longer defines it"
    home = value.region
    if home is None:
        return "the op that computed it was erased"
    if not graph.body.contains(home):
        return "it belongs to another graph or to a detached region"
    if not home.contains(op.region):
        return "it is local to a region that does not hold this op"
    region = op.region
    while region is not None and region is not home:
        if isinstance(region.owner, Call):
            return f"the region of {region.owner.name} is isolated and captures nothing"
        region = region.owner.region if isinstance(region.owner, Op) else None
    return "it is defined further down"
