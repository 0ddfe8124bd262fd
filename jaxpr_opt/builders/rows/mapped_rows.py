"""Compute a function of the rows of a stack in the loop that stacks them."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.rows.row_readers import RowReader, made_before
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, of_one_row
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def map_rows(scan: Scan, stack: Stack, readers: tuple[RowReader, ...], rw: Rewriter) -> None:
    """Stack what is read of each row."""
    end = scan.body.terminator
    stacks = list(scan.stacks)
    for reader in readers:
        row = rw.reshape(stack.value, (1, *stack.value.shape), before=end)
        made, axis = {stack.result: row}, 0
        for op, to in reader.ops:
            made[op.result] = _made(op, axis, to, made, end, rw)
            axis = to
        shape = tuple(n for at, n in enumerate(reader.result.shape) if at != axis)
        value = rw.reshape(made[reader.result], shape, before=end)
        new = rw.new_value(rw.stacked_aval(value, scan.length), reader.result.name)
        stacks.append(Stack(value, new))
    rw.set_scan(scan, stacks=stacks)
    for reader, added in zip(readers, stacks[-len(readers) :], strict=True):
        last, axis = reader.ops[-1]
        rows = added.result
        if axis:
            order = (*range(1, axis + 1), 0, *range(axis + 1, len(rows.shape)))
            rows = rw.typed(
                lambda x, order=order: lax.transpose(x, order), last.result.aval, rows, before=last
            )
        rw.replace(last.result, rows)
        for op, _ in reversed(reader.ops):
            rw.erase(op)
    rw.set_scan(scan, stacks=[each for each in stacks if each.result is not stack.result])


def _made(op: Op, axis: int, to: int, made: dict[Value, Value], end: Op, rw: Rewriter) -> Value:
    """The result of an op for one row, which lies along an axis."""
    scan = end.parent
    assert isinstance(scan, Scan)
    operands = [made[v] if v in made else _outer(op, v, to, scan, rw) for v in op.operands]
    return on_others(op, operands, rw, before=end, params=of_one_row(op, axis, to))


def _outer(op: Op, value: Value, to: int, scan: Scan, rw: Rewriter) -> Value:
    """An operand that is the same for each row, for one."""
    made = value.op
    is_row = made is None or made.name != "broadcast_in_dim" or value.shape != op.result.shape
    given = value if is_row or made is None else made.operands[0]
    for each in made_before(given, scan) or ():
        rw.move(each, scan)
    if given is value or made is None:
        return value
    shape, dims = list(value.shape), broadcast_dimensions_of(made)
    shape[to] = 1

    def spread(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, shape, dims)

    return rw.typed(spread, value.aval, given, before=scan.body.terminator)
