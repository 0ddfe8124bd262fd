"""Pass values from one loop to another: stack a value, carry rows to readers, drop stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.stack_consumers import (
    Pairs,
    Route,
    Rows,
    SplitAxis,
    Stacked,
    routes,
)
from jaxpr_opt.analysis.values.constants import strong
from jaxpr_opt.ir.graph import Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter

Back = Callable[..., jax.Array]
"""What makes a row of one that is stored in its place."""


def stack_of_rows(scan: Scan, scalars: Iterable[Value], rw: Rewriter) -> Stack:
    """A stack of rows of scalars of a step, which is not one of the scan's yet."""
    row = rw.insert(_row, *scalars, before=scan.body.terminator)
    return Stack(row, rw.new_value(rw.stacked_aval(row, scan.length)))


def _row(*scalars: jax.Array) -> jax.Array:
    row = lax.concatenate([lax.expand_dims(each, (0,)) for each in scalars], 0)
    return strong(row)


def send(scan: Scan, stack: Stack, made: Sequence[tuple[Op, Value, Route]], rw: Rewriter) -> None:
    """Replace a stack by stacks of other values.  `made`: the ops that read a part of it, each with
    the value that it is to read a row of, and its route to there.
    """
    for op, value, route in made:
        rw.replace(op.result, carried_along(stacked(value, scan, rw), route, rw))
        rw.erase(op)
    drop_stacks(scan, [stack], [route for _, _, route in made], rw)


def restack(scan: Scan, instead: Mapping[Stack, tuple[Value, Back]], rw: Rewriter) -> None:
    """Read, in place of each row of a stack, what a function makes of that of another array, which
    has a row for each step.
    """
    ways = []
    for stack, (array, back) in instead.items():
        for route, row in routes(stack.result, nests=True) or ():
            read_instead(row, back, carried_along(array, route, rw), rw)
            ways.append(route)
    drop_stacks(scan, instead, ways, rw)


def carried_along(array: Value, route: Route, rw: Rewriter) -> Value:
    """The row of `array` at the end of a route."""
    for hop in route:
        if isinstance(hop, SplitAxis):
            lead = len(hop.op.operands[0].shape) - len(hop.op.result.shape) + len(hop.sizes)
            array = rw.insert(partial(_split, hop.sizes, lead), array, before=hop.op)
        elif isinstance(hop, Stacked):
            array = stacked(array, hop.scan, rw)
        else:
            array = streamed(array, hop.scan, rw)
    return array


def read_instead(row: Value, fun: Back, other: Value, rw: Rewriter) -> None:
    """Read what a function makes of another row, in each region that reads one."""
    for region in {use.op.region: None for use in row.uses}:
        assert region is not None
        first = region.first
        assert first is not None
        made = rw.typed(fun, row.aval, other, before=first)
        rw.replace(row, made, where=region.reads)


def counterpart(value: Value, pairs: Pairs, rw: Rewriter) -> Value:
    """The value of a step of a stacking nest, passed to the same step of the nest that reads."""
    readers = []
    for there, here in pairs:
        if there.body.defines(value):
            value = stacked(value, there, rw)
            readers.append(here)
    for here in reversed(readers):
        value = streamed(value, here, rw)
    return value


def streamed(array: Value, scan: Scan, rw: Rewriter) -> Value:
    """The row of an array in a loop's step."""
    uses = (use for use in array.uses if use.op is scan)
    place = min((use.position for use in uses if use.position >= scan.num_carries), default=None)
    if place is not None:
        return scan.body.params[place]
    new = Stream(array, rw.new_value(rw.row_aval(array), array.name))
    rw.set_scan(scan, streams=[*scan.streams, new])
    return new.param


def streamed_along(array: Value, axis: int, scan: Scan, rw: Rewriter, *, before: Op) -> Value:
    """A row along an axis in a loop's step, with one element along it."""
    rows = array
    if axis:
        order = (axis, *(a for a in range(len(array.shape)) if a != axis))
        rows = rw.typed(lambda x: lax.transpose(x, order), array.aval, array, before=scan)
    shape = (*array.shape[:axis], 1, *array.shape[axis + 1 :])
    return rw.reshape(streamed(rows, scan, rw), shape, before=before)


def stacked(value: Value, scan: Scan, rw: Rewriter) -> Value:
    """The stack of a value of a loop's step; of a row of a stream, its operand."""
    stream = scan.stream_of(value)
    if stream is not None:
        return stream.operand
    uses = (use for use in value.uses if use.op is scan.body.terminator)
    place = min((use.position for use in uses if use.position >= scan.num_carries), default=None)
    if place is not None:
        return scan.results[place]
    new = Stack(value, rw.new_value(rw.stacked_aval(value, scan.length), value.name))
    rw.set_scan(scan, stacks=[*scan.stacks, new])
    return new.result


def _split(sizes: tuple[int, ...], lead: int, x: jax.Array) -> jax.Array:
    return lax.reshape(x, (*sizes, *x.shape[lead:]))


def drop_stacks(scan: Scan, stacks: Iterable[Stack], ways: Iterable[Route], rw: Rewriter) -> None:
    """Remove stacks of a loop, and first what carried their rows to loops that no longer read them,
    the innermost loop first.
    """
    for route in ways:
        for hop in reversed(route):
            if isinstance(hop, Rows):
                rw.set_scan(hop.scan, streams=[s for s in hop.scan.streams if s.param.uses])
            elif isinstance(hop, Stacked):
                rw.set_scan(hop.scan, stacks=[s for s in hop.scan.stacks if s.result.uses])
            elif not hop.op.result.uses and hop.op.region is not None:
                rw.erase(hop.op)
    gone = {stack.result for stack in stacks}
    assert not any(value.uses for value in gone)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result not in gone])
