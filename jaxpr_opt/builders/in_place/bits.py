"""Arrays of bfloat16 that are written, handed on and stacked as integers of their bits."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.window_primitives import UPDATE, mirrored, window_sizes
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Carry, Cond, Op, Outcome, Scan, Stack, Stream, Value, While
from jaxpr_opt.ir.rewriter import Rewriter

BITS = jnp.dtype(jnp.uint16)
"""The type of the bits of one number."""

_CAST = "bitcast_convert_type"


def bits_behind(number: Value) -> Value | None:
    """The bits that a value of bfloat16 is made of; None if it is computed otherwise."""
    op = number.op
    if op is None or op.name != _CAST or number.dtype != jnp.bfloat16:
        return None
    return op.operands[0] if op.operands[0].dtype == BITS else None


def write_bits(op: Op, rw: Rewriter) -> None:
    """Write the bits of a window, or of its sum with what is added, to those of an array."""
    operands = list(op.operands)
    operands[0] = _bits(operands[0], op, rw)
    if op.name == "scatter-add":
        written = rw.insert(partial(_added, op), *operands, before=op)
    else:
        at = UPDATE[op.name]
        operands[at] = _bits(operands[at], op, rw)
        written = on_others(op, operands, rw, before=op)
    if op.alone and written.op is not None:
        rw.set_alone(written.op)
    rw.replace(op.result, _numbers(written, op.result, op, rw))
    rw.erase(op)


def carry_bits(loop: Scan | While, old: Carry, rw: Rewriter) -> None:
    """Carry the bits of an array."""
    assert loop.next is not None and loop.body.first is not None
    begun = _bits(old.init, loop, rw)
    param, result = (rw.new_value(begun.aval, v.name) for v in (old.param, old.result))
    _read_bits(old.param, param, loop.body.first, rw)
    _read_bits(old.result, result, loop.next, rw)
    (handed,) = (c.next for c in loop.carries if c.param is old.param)
    new = Carry(begun, param, _bits(handed, loop.body.terminator, rw), result)
    carries = [new if c.param is old.param else c for c in loop.carries]
    if isinstance(loop, Scan):
        rw.set_scan(loop, carries=carries)
        return
    place = next(at for at, c in enumerate(loop.carries) if c.param is old.param)
    asked, predicate = rw.new_value(begun.aval), loop.predicate
    first = predicate.first or predicate.terminator
    _read_bits(predicate.params[place], asked, first, rw)
    rw.set_while(loop, carries, range(len(carries)), {place: asked})


def stack_bits(scan: Scan, old: Stack, rw: Rewriter) -> None:
    """Stack the bits of rows."""
    assert scan.next is not None
    row = _bits(old.value, scan.body.terminator, rw)
    result = rw.new_value(rw.stacked_aval(row, scan.length), old.result.name)
    _read_bits(old.result, result, scan.next, rw)
    new = Stack(row, result)
    rw.set_scan(scan, stacks=[new if s.result is old.result else s for s in scan.stacks])


def stream_bits(scan: Scan, old: Stream, rw: Rewriter) -> None:
    """Read the bits of rows, and make the numbers in the step."""
    assert scan.body.first is not None
    rows = _bits(old.operand, scan, rw)
    row = rw.new_value(rw.row_aval(rows), old.param.name)
    _read_bits(old.param, row, scan.body.first, rw)
    new = Stream(rows, row)
    rw.set_scan(scan, streams=[new if s.param is old.param else s for s in scan.streams])


def choose_bits(cond: Cond, old: Outcome, rw: Rewriter) -> None:
    """Let each branch make the bits of an array."""
    assert cond.next is not None
    pairs = zip(old.values, cond.branches, strict=True)
    made = tuple(_bits(value, branch.terminator, rw) for value, branch in pairs)
    new = Outcome(rw.new_value(made[0].aval, old.result.name), made)
    _read_bits(old.result, new.result, cond.next, rw)
    rw.set_cond(cond, [new if o.result is old.result else o for o in cond.outcomes])


def _read_bits(number: Value, bits: Value, before: Op, rw: Rewriter) -> None:
    """Let what reads the numbers read them of the bits, and what reads their bits these."""
    of_bits = [op for op in number.users if op.name == _CAST and op.result.dtype == BITS]
    if len(of_bits) < len(number.users):
        made = _numbers(bits, number, before, rw)
        rw.replace(number, made, lambda use: use.op not in of_bits)
    for op in of_bits:
        rw.replace(op.result, bits)
        rw.erase(op)


def _added(op: Op, array: jax.Array, index: jax.Array, update: jax.Array) -> jax.Array:
    """The bits of an array, to a window of which something is added."""
    numbers, mode = numbers_of(op), mode_of(op)
    window = lax.gather(array, index, mirrored(op), window_sizes(op), mode=mode)
    total = lax.add(lax.bitcast_convert_type(window, update.dtype), update)
    return lax.scatter(array, index, lax.bitcast_convert_type(total, BITS), numbers, mode=mode)


def _bits(number: Value, before: Op, rw: Rewriter) -> Value:
    known = bits_behind(number)
    if known is not None:
        return known
    return rw.insert(lambda x: lax.bitcast_convert_type(x, BITS), number, before=before)


def _numbers(bits: Value, like: Value, before: Op, rw: Rewriter) -> Value:
    def numbers(x: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(x, jnp.bfloat16)

    return rw.typed(numbers, like.aval, bits, before=before)
