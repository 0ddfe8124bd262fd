"""The ops that a step needs if something is assumed of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Cond, Op, Region, Value


@dataclass(frozen=True, slots=True)
class Computed:
    """The ops of the body that a skipped step must compute, in order, and the known values among
    those that they read and those that were asked for.
    """

    ops: tuple[Op, ...]
    known: Mapping[Value, Known]


def computed_in(
    body: Region, assumed: Assumed, values: Iterable[Value], *, whole: bool = True
) -> Computed:
    """What a step computes to make these values of its body, under some assumptions; `whole`: and
    what branches read that are known not to be taken.
    """
    known, needed = dict[Value, Known](), set[Op]()
    pending = [*values]
    while pending:
        value = pending.pop()
        if value in known:
            continue
        told = known[value] = _instead(value, assumed, body)
        if told is not value and isinstance(told, Value):
            pending.append(told)
            continue
        op = told.op if isinstance(told, Value) else None
        if op is not None and op.region is body and op not in needed:
            needed.add(op)
            pending += inputs(op) if whole else inputs_in(op, assumed)
    ordered = sorted(needed, key=body.order) if whole else filter(needed.__contains__, body.ops)
    return Computed(tuple(ordered), known)


def inputs_in(op: Op, assumed: Assumed) -> Iterable[Value]:
    """What an op reads, of a branch that is known to be taken what that one reads."""
    chosen = assumed[op.selector] if isinstance(op, Cond) else None
    if not isinstance(op, Cond) or not isinstance(chosen, Splat):
        return inputs(op)
    return (op.selector, *op.branches[op.taken(chosen.value)].captures())


def _instead(value: Value, assumed: Assumed, body: Region) -> Known:
    """What a value is under assumptions; itself if that is inside of a branch."""
    known = assumed[value] if value.region is body else value
    is_inside = isinstance(known, Value) and known.region is not body and body.defines(known)
    # Condition 1 of isolate-selected-work.
    return value if is_inside else known
