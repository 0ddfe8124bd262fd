"""Values that change from step to step of a loop, and the reason why."""

from __future__ import annotations

from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.traits import can_move, is_broadcast


def why_varying(value: Value, scan: Scan) -> str:
    """The first reason found why a value changes from step to step; regions are searched last."""
    pending, seen, around = [value], {value}, list[Op]()
    while pending or around:
        if not pending:
            op = around.pop()
            if not can_move(op):
                return f"{value.label} depends on {op.name}, which must run at every step"
            read = inputs(op)
        else:
            current = pending.pop()
            if current.region is scan.body and current.op is None:
                role = "carry" if scan.carry_of(current) is not None else "stream"
                return f"{value.label} depends on the {role} {current.label}"
            if current.op is None or not scan.body.defines(current):
                continue
            read = current.op.operands
            if current.op.regions or not can_move(current.op):
                around.append(current.op)
        pending.extend(v for v in read if v not in seen)
        seen.update(read)
    return f"the loop takes {scan.length} steps"


def varying(values: list[Value], loop: Region | None) -> Value | None:
    """One of these values, or of those they broadcast, that each step computes anew; None if there
    is none.
    """
    pending = list(values) if loop is not None else []
    while pending:
        value = pending.pop()
        if loop is not None and loop.defines(value):
            if value.op is None or not is_broadcast(value.op):
                return value
            pending.extend(value.op.operands)
    return None


def loop_around(op: Op) -> Region | None:
    """The body of the innermost loop around an op."""
    region = op.region
    while region is not None and isinstance(region.owner, Op):
        if isinstance(region.owner, Scan | While):
            return region
        region = region.owner.region
    return None


def steps_of(loop: Region | None) -> int:
    """How many steps a loop is known to take."""
    return loop.owner.length if loop is not None and isinstance(loop.owner, Scan) else 1
