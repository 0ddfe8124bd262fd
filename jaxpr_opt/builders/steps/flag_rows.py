"""Truth values that loops carry, read and stack instead of numbers that are made of them."""

from __future__ import annotations

from functools import partial, reduce

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.flags import Source, is_one, moved, source_of
from jaxpr_opt.builders.fences import one_or_zero
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter


def carry_truth(scan: Scan, old: Carry, rw: Rewriter) -> None:
    """Carry a truth value in place of a flag."""
    begin = uniform(old.init)
    known = partial(lax.full_like, fill_value=begin != 0, dtype=bool)
    begun = rw.insert(is_one if begin is None else known, old.init, before=scan)
    param, result = (rw.new_value(begun.aval, v.name) for v in (old.param, old.result))
    assert scan.body.first is not None and scan.next is not None
    rw.replace(old.param, _number(param, old.param, scan.body.first, rw))
    rw.replace(old.result, _number(result, old.result, scan.next, rw))
    (made,) = (c.next for c in scan.carries if c.param is old.param)
    new = Carry(begun, param, rw.insert(is_one, made, before=scan.body.terminator), result)
    rw.set_scan(scan, carries=[new if c.param is old.param else c for c in scan.carries])


def read_root(scan: Scan, old: Stream, rw: Rewriter) -> None:
    """Read rows of what numbers are made of, and make the numbers in the step."""
    source = source_of(old.operand)
    assert source is not None and scan.body.first is not None
    rows = rw.insert(partial(moved, source.moves), source.root, before=scan)
    row = rw.new_value(rw.row_aval(rows), old.param.name)
    rw.replace(old.param, _number(row, old.param, scan.body.first, rw, source.is_negated))
    new = Stream(rows, row)
    rw.set_scan(scan, streams=[new if s.param is old.param else s for s in scan.streams])


def stack_root(scan: Scan, old: Stack, rw: Rewriter) -> None:
    """Stack what numbers are made of, if it is no larger: other rows may be made of it, too."""
    source = source_of(old.value)
    if source is None or source.root.size > old.value.size:
        source = Source(rw.insert(is_one, old.value, before=scan.body.terminator))
    result = rw.new_value(rw.stacked_aval(source.root, scan.length), old.result.name)
    after = scan.next
    assert after is not None
    rows = rw.insert(jax.vmap(partial(moved, source.moves)), result, before=after)
    rw.replace(old.result, _number(rows, old.result, after, rw, source.is_negated))
    new = Stack(source.root, result)
    rw.set_scan(scan, stacks=[new if s.result is old.result else s for s in scan.stacks])


def asked_about(number: jax.Array, *others: jax.Array) -> jax.Array:
    """The number as it is, with the question whether it is zero, and others are, too, which passes
    look for.
    """
    asked = [lax.ne(each, lax.full_like(each, 0)) for each in (number, *others)]
    if len({each.shape for each in asked}) > 1:
        asked = [any_row(each, True) for each in asked]
    return lax.select_n(reduce(lax.bitwise_or, asked), number, number)


def _number(root: Value, like: Value, before: Op, rw: Rewriter, is_negated: bool = False) -> Value:
    """The number that is made of a root, which NaN may be multiplied with."""

    def number(root: jax.Array) -> jax.Array:
        if root.dtype == bool:
            return one_or_zero(lax.bitwise_not(root) if is_negated else root, like.dtype)
        same = asked_about(root)
        return lax.sub(lax.full_like(same, 1), same) if is_negated else same

    return rw.typed(number, like.aval, root, before=before)
