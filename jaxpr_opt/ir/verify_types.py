"""Checks of each kind of op: the half of `verify` that takes ops one by one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from jaxpr_opt.bridge import compat, compat_types
from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.ir.graph import UNDEFINED, Call, Cond, Graph, Op, Region, Remat, Scan, Value, While
from jaxpr_opt.ir.text import Names, quote


class VerifyError(Exception):
    """A graph that is not a program."""


@dataclass(frozen=True)
class Report:
    """Raises faults in `graph`: expected, got, because."""

    graph: Graph

    @functools.cached_property
    def _names(self) -> Names:
        """Made once and only where something is named: verifying does not change the graph."""
        return Names(self.graph)

    def fail(self, op: Op | None, expected: str, got: object, because: str) -> NoReturn:
        note = f"expected {expected}, got {got}, because {because}"
        raise VerifyError(f"{self.graph.name} is not a program\n{quote(self.graph, op, note)}")

    def name(self, value: Value) -> str:
        return self._names[value]

    def typed(self, value: Value) -> str:
        return f"{self.name(value)}:{type_text(value.aval)}"

    def count(self, op: Op, what: str, got: Sequence[Any], wanted: int, because: str) -> None:
        if len(got) != wanted:
            self.fail(op, f"{wanted} {what}", len(got), because)

    def match(self, op: Op, what: str, value: Value, aval: Any, because: str) -> None:
        """The type of `value` must be `aval`, weak types apart."""
        if not _agree(value.aval, aval):
            self.fail(op, f"{what} of type {type_text(aval)}", self.typed(value), because)


def _agree(a: Any, b: Any) -> bool:
    if hasattr(a, "shape") and hasattr(b, "shape"):
        return bool(a.shape == b.shape and a.dtype == b.dtype)
    return type_text(a) == type_text(b)


def check_roles(op: Op, report: Report) -> None:
    """Carries, streams, stacks, branches, selectors, parameters and effects of one op."""
    _effects(op, report)
    match op:
        case Scan():
            _scan(op, report)
        case While():
            _while(op, report)
        case Cond():
            _cond(op, report)
        case Remat():
            report.count(op, "operands", op.operands, 0, "a remat captures what it reads")
            _yields(op, op.body, report)
        case Call():
            _call(op, report)
        case _:
            known = op.primitive is not None or op.name == UNDEFINED or op.is_terminator
            if op.regions or not known:
                report.fail(op, "a primitive and no region", repr(op), "this op is first-order")


def _effects(op: Op, report: Report) -> None:
    """Effects on refs and axis names are local or told by position; the others travel out."""
    inner = {
        effect
        for region in op.regions
        for each in region.ops
        for effect in each.effects
        if not hasattr(effect, "input_index") and not hasattr(effect, "name")
    }
    if not inner <= op.effects:
        missing = ", ".join(sorted(map(str, inner - op.effects)))
        report.fail(op, f"the effect {missing}", set(op.effects), "one of its regions has it")


def _scan(op: Scan, report: Report) -> None:
    n, body = op.num_carries, op.body
    report.count(op, "parameters", body.params, len(op.operands), "each carry and stream has one")
    report.count(op, "outputs", body.outputs, len(op.results), "each carry and stack has one")
    if not 0 <= n <= min(len(op.operands), len(op.results)):
        report.fail(op, "carries among operands and results", n, "carries come first in both")
    _carries(op, report)
    rows = [("stream", s.operand, s.param) for s in op.streams]
    rows += [("stack", y.result, y.value) for y in op.stacks]
    for what, whole, row in rows:
        if not op.has_length:
            continue  # a symbol is not told from another
        if (whole.shape, whole.dtype) != ((op.length, *row.shape), row.dtype):
            wanted = f"a {what} of {op.length} rows of {type_text(row.aval)}"
            report.fail(op, wanted, report.typed(whole), f"the loop takes {op.length} steps")


def _while(op: While, report: Report) -> None:
    for region in op.regions:
        report.count(op, "parameters", region.params, len(op.operands), "each carry has one")
    report.count(op, "outputs", op.body.outputs, len(op.operands), "each carry has one")
    _carries(op, report)
    for param, init in zip(op.predicate.params, op.operands, strict=True):
        report.match(op, "a parameter", param, init.aval, "the predicate sees the carries")
    outputs = op.predicate.outputs
    if len(outputs) != 1 or outputs[0].shape or outputs[0].dtype != np.dtype(bool):
        got = ", ".join(map(report.typed, outputs))
        report.fail(op, "one bool[] from the predicate", got, "a loop goes on or it does not")


def _carries(op: Scan | While, report: Report) -> None:
    for c in op.carries:
        because = f"the carry {report.name(c.param)} keeps its type"
        report.match(op, "an initial value", c.init, c.param.aval, because)
        report.match(op, "a next value", c.next, c.param.aval, because)
        report.match(op, "a result", c.result, c.param.aval, because)


def _cond(op: Cond, report: Report) -> None:
    report.count(op, "operands", op.operands, 1, "branches capture what they read")
    kind, dtype = ("bool", np.bool_) if len(op.branches) == 2 else ("integer", np.integer)
    if op.selector.shape or not np.issubdtype(op.selector.dtype, dtype):
        because = f"it chooses between {len(op.branches)} branches"
        report.fail(op, f"a scalar {kind} selector", report.typed(op.selector), because)
    for branch in op.branches:
        report.count(op, "parameters", branch.params, 0, "branches capture what they read")
        _yields(op, branch, report)


def _call(op: Call, report: Report) -> None:
    report.count(op, "parameters", op.body.params, len(op.operands), "each operand has one")
    report.count(op, "outputs", op.body.outputs, len(op.results), "each result has one")
    if op.name == "shard_map":  # inside, shapes are those of one shard
        return
    for param, operand in zip(op.body.params, op.operands, strict=True):
        because = f"the parameter {report.name(param)} has that type"
        report.match(op, "an operand", operand, param.aval, because)
    _yields(op, op.body, report)


def _yields(op: Op, region: Region, report: Report) -> None:
    report.count(op, "outputs", region.outputs, len(op.results), "each result has one")
    for result, value in zip(op.results, region.outputs, strict=True):
        because = f"the result {report.name(result)} has that type"
        report.match(op, "a value", value, result.aval, because)


def check_primitive(op: Op, report: Report) -> None:
    """Bind a first-order op again on its operands' types and compare its results' types.

    Left out: ops with effects or on refs, and those in a `shard_map`, whose axes are not bound.
    """
    primitive, params = op.primitive, op.params
    if type(op) is not Op or primitive is None or op.effects or _inside_shard_map(op):
        return
    if any(compat_types.is_ref(v.aval) for v in (*op.operands, *op.results)):
        return

    def again(*args: Any) -> list[Any]:
        with compat.bound_under(op.source.info, op.source.ctx):
            return compat.bind(primitive, args, params)

    try:
        avals = compat.trace(again, [v.aval for v in op.operands]).out_avals
    except Exception as error:  # noqa: BLE001  whatever JAX objects to is the fault
        got = ", ".join(map(report.typed, op.operands))
        report.fail(op, f"operands that {op.name} takes", got, f"JAX says: {error}")
    for result, aval in zip(op.results, avals, strict=True):
        report.match(op, "a result", result, aval, f"{op.name} gives that type")


def _inside_shard_map(op: Op) -> bool:
    outer = op.parent
    while outer is not None and outer.name != "shard_map":
        outer = outer.parent
    return outer is not None
