"""Read windows of all rows that ever entered a shift register, in place of a stack of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.access import read_window
from jaxpr_opt.analysis.shift_registers import Reader, Register
from jaxpr_opt.analysis.stack_consumers import Route, Rows, Stacked
from jaxpr_opt.builders.residual_transfer import carried_along, drop_unread, stacked
from jaxpr_opt.engine.ir import Stack, Value
from jaxpr_opt.engine.rewriter import Rewriter


def read_windows(
    register: Register, stack: Stack, readers: Iterable[Reader], rw: Rewriter, *, after: bool
) -> None:
    """Replace the rows of a stack of a register, as a step finds it or leaves it, at the ends of
    routes.
    """
    scan, ways = register.scan, [route for route, _ in readers]
    entered = stacked(_entering(register, rw), scan, rw)
    for route, row in readers:
        end, around = route[-1], route[-2] if len(route) > 1 else None
        assert isinstance(end, Rows)
        home = around.scan.body if isinstance(around, Rows) else scan.region
        assert home is not None
        place = home.ancestor(end.scan)
        assert place is not None
        sources = [_seen(v, route, rw) for v in (register.carry.init, entered)]
        rows = rw.insert(partial(_all_rows, register), *sources, before=place)
        first = end.scan.body.first
        assert first is not None
        at = rw.steps(register.start(end.scan, after=after), before=first)
        window = rw.typed(partial(_window, register), row.aval, rows, at, before=first)
        window.name = row.name
        rw.replace(row, window)
    drop_unread({stack.result}, ways, rw)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not stack.result])


def _entering(register: Register, rw: Rewriter) -> Value:
    """What enters in a step: as it is there already, or else without axes of one."""
    if register.present is not None:
        return register.present
    end = register.scan.body.terminator
    if register.entering:
        value = register.entering[-1]
    else:
        value = rw.insert(partial(_newest, register), register.carry.next, before=end)
    row = _row(register)
    if register.size > 1 or value.shape == row:
        return value
    return rw.insert(lambda x: lax.reshape(x, row), value, before=end)


def _row(register: Register) -> tuple[int, ...]:
    """The shape of a row of a register."""
    shape = register.carry.param.shape
    return (*shape[: register.axis], *shape[register.axis + 1 :])


def _newest(register: Register, array: jax.Array) -> jax.Array:
    """Of a register what entered last."""
    low = register.held - register.size if register.climbs else 0
    return lax.slice_in_dim(array, low, low + register.size, axis=register.axis)


def _all_rows(register: Register, init: jax.Array, entered: jax.Array) -> jax.Array:
    """The rows that a register starts with, and those that enter, in its order."""
    row, axis = _row(register), register.axis
    steps = lax.rev(entered, (0,)) if register.is_turned else entered
    if register.size > 1:
        block = (*row[:axis], register.size, *row[axis:])
        steps = jnp.moveaxis(lax.reshape(steps, (len(steps), *block)), axis + 1, 1)
    rows = lax.reshape(steps, (register.scan.length * register.size, *row))
    first = jnp.moveaxis(init, axis, 0)
    return lax.concatenate([first, rows] if register.climbs else [rows, first], 0)


def _window(register: Register, rows: jax.Array, start: jax.Array) -> jax.Array:
    """What a register holds in a step."""
    row = _row(register)
    window = read_window(rows, [start, *(0 for _ in row)], (register.held, *row))
    return jnp.moveaxis(window, 0, register.axis)


def _seen(array: Value, route: Route, rw: Rewriter) -> Value:
    """An array of the step around the loop that stacks, where the loop at the end of a route is."""
    nest = [hop for hop in route if isinstance(hop, Stacked)]
    ways = [hop for hop in nest if hop.scan.body.defines(array)]
    return carried_along(array, (*ways, *route[len(nest) :][: len(ways)]), rw)
