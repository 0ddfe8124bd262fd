"""Read windows of all rows that ever entered a shift register, in place of a stack of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.residuals.register_stacks import RegisterReader, State
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, Stacked
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.builders.residual_transfer import carried_along, drop_stacks, stacked
from jaxpr_opt.builders.step_numbers import number_of
from jaxpr_opt.ir.graph import Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def read_windows(
    state: State, stack: Stack, readers: Iterable[RegisterReader], rw: Rewriter
) -> None:
    """Replace the rows of a stack of a register, at the ends of routes, by windows of all rows."""
    register, scan, ways = state.register, state.register.scan, [route for route, _ in readers]
    start, entered = _start(state, rw), stacked(_entering(state, rw), scan, rw)
    for route, row in readers:
        end, around = route[-1], route[-2] if len(route) > 1 else None
        assert isinstance(end, Rows)
        home = around.scan.body if isinstance(around, Rows) else scan.region
        assert home is not None
        place, first = home.ancestor(end.scan), end.scan.body.first
        assert place is not None
        sources = [_seen(array, route, rw) for array in (start, entered)]
        rows = rw.insert(partial(_all_rows, state), *sources, before=place)
        assert first is not None
        after = state.after or (_enters_late(state) and not register.climbs)
        at = number_of(register.start(end.scan, after=after), rw, before=first)
        window = rw.typed(partial(_window, state), row.aval, rows, at, before=first)
        window.name = row.name
        rw.replace(row, window)
    drop_stacks(scan, [stack], ways, rw)


def _enters_late(state: State) -> bool:
    """Whether the newest rows that a step stacks entered in the step before it."""
    return bool(state.ops) and not state.after and state.register.scan.length > 0


def _start(state: State, rw: Rewriter) -> Value:
    """The rows that a value holds of those with which the register starts."""
    carry = state.register.carry
    read = carry.next if state.after else carry.param
    return rw.clone(state.ops, {read: carry.init}, state.register.scan)[
        state.value if state.ops else read
    ]


def _entering(state: State, rw: Rewriter) -> Value:
    """The rows that enter in a step: as they are there already, or else without axes of one."""
    register = state.register
    if state.present is not None:
        return state.present
    end = register.scan.body.terminator
    if register.entering and not state.ops:
        value = register.entering[-1]
    else:
        value = state.value if state.ops else register.carry.next
        value = rw.insert(partial(_newest, state), value, before=end)
    row = _row(state)
    if register.size > 1 or value.shape == row:
        return value
    return rw.insert(lambda x: lax.reshape(x, row), value, before=end)


def _row(state: State) -> tuple[int, ...]:
    """The shape of a row of a register."""
    shape, axis = state.value.shape, state.register.axis
    return (*shape[:axis], *shape[axis + 1 :])


def _newest(state: State, array: jax.Array) -> jax.Array:
    """Of a register what entered last."""
    register = state.register
    low = register.held - register.size if register.climbs else 0
    return lax.slice_in_dim(array, low, low + register.size, axis=register.axis)


def _all_rows(state: State, start: jax.Array, entered: jax.Array) -> jax.Array:
    """The rows that a register starts with, and those that enter, in its order."""
    register, row, axis = state.register, _row(state), state.register.axis
    size, held = register.size, register.held
    steps = lax.rev(entered, (0,)) if register.is_turned else entered
    if size > 1:
        block = (*row[:axis], size, *row[axis:])
        steps = jnp.moveaxis(lax.reshape(steps, (len(steps), *block)), axis + 1, 1)
    rows = lax.reshape(steps, (register.scan.length * size, *row))
    first = jnp.moveaxis(start, axis, 0)
    if _enters_late(state):
        first = first[: held - size] if register.climbs else first[size:]
    return lax.concatenate([first, rows] if register.climbs else [rows, first], 0)


def _window(state: State, rows: jax.Array, start: jax.Array) -> jax.Array:
    """The rows that a value holds in a step."""
    row, register = _row(state), state.register
    window = read_window(rows, [start, *(0 for _ in row)], (register.held, *row))
    return jnp.moveaxis(window, 0, register.axis)


def _seen(array: Value, route: Route, rw: Rewriter) -> Value:
    """An array of the step around the loop that stacks, where the loop at the end of a route is."""
    nest = [hop for hop in route if isinstance(hop, Stacked)]
    ways = [hop for hop in nest if hop.scan.body.defines(array)]
    return carried_along(array, (*ways, *route[len(nest) :][: len(ways)]), rw)
