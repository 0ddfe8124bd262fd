"""Programs that add to a given array, instead of returning what is to be added to it.

::

    x -> (zeros.at[i].add(x), y)   =>   (x, base) -> (base.at[i].add(x), y)

JAX can add a gradient to a mutable array (`with_refs`), which may be a table of which a step
touches a row. A result that starts as zeros, to which windows are added, starts as that array
instead, through loops and branches. Conditions:

1. an op that makes the result adds to an array: a sum, a scatter that adds, a window that is read,
   added to and written back;
2. nothing else reads the array it adds to, nor does the op read it for something else;
3. an op that computes more than the result (a loop, a conditional) comes after what it adds to;
4. in every step a carry is itself plus something that does not depend on it.

If they do not hold, the result is added as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.analysis.values.constants import identity, uniform
from jaxpr_opt.bridge import compat_ad, compat_types
from jaxpr_opt.bridge.parameters import padding_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Constant, Op, Remat, Scan, Value
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


def onto(jaxpr: ClosedJaxpr, added: Sequence[bool]) -> ClosedJaxpr:
    """``(inputs, bases) -> outputs``, the marked outputs added to their bases."""
    graph = import_jaxpr(jaxpr)
    rw = Rewriter(graph)
    end, outputs = graph.body.terminator, list(graph.outputs)
    for index, is_added in enumerate(added):
        if is_added:
            base = rw.new_value(outputs[index].aval)
            rw.add_param(graph.body, base)
            outputs[index] = _Sums(rw).of(base, outputs[index], [end], end)
    rw.set_outputs(graph.body, outputs)
    return compat_ad.dce(export(graph), [True] * len(outputs), keep_inputs=True)[0]


class _Sums:
    """Sums of two arrays, of which the second becomes part of the first as it is made."""

    def __init__(self, rw: Rewriter) -> None:
        self.rw = rw
        self._inside = 0  # of how many sums what is looked at is a part

    def of(self, base: Value, value: Value, readers: Sequence[Op], before: Op) -> Value:
        """`base + value`, right before an op; `readers` are those that need `value` no more, if
        each reads it once.
        """
        is_alike = compat_types.same_type(base.aval, value.aval)
        if uniform(value) == 0 and is_alike:
            return base
        read = [use.op for use in value.uses]
        is_free = is_alike and len(set(read)) == len(read) and set(read) <= set(readers)  # (2)
        is_near = self._inside < limits.SUMS_IN_A_ROW
        rule = self.rule(value.op) if is_free and is_near else None
        self._inside += 1
        made = rule(base, value, before) if rule is not None else None
        self._inside -= 1
        return self.rw.insert(lax.add, base, value, before=before) if made is None else made

    def rule(self, op: Op | None) -> Callable[[Value, Value, Op], Value | None] | None:
        """The rule for sums with the result of an op (1)."""
        if op is None:
            return None
        if isinstance(op, Cond | Remat):
            return self.branches
        if isinstance(op, Scan):
            return self.loop
        named = {
            "scatter-add": self.scattered,
            "dynamic_update_slice": self.written,
            "pad": self.padded,
        }
        return self.sum if op.name in SUMS else named.get(op.name)

    def sum(self, base: Value, value: Value, before: Op) -> Value:
        """`base + (a + b)`: one after the other, as (3) asks for."""
        for term, reader in sorted(_terms(value), key=lambda each: _place(each[0])):
            base = self.of(base, term, [reader], before)
        return base

    def scattered(self, base: Value, value: Value, before: Op) -> Value | None:
        """`base + a.at[i].add(u)`."""
        op = value.op
        assert op is not None
        array = op.operands[0]
        if op.operands.count(array) > 1:  # (2)
            return None
        mapping = {array: self.of(base, array, [op], before)}
        return self.rw.clone([op], mapping, before)[value]

    def written(self, base: Value, value: Value, before: Op) -> Value | None:
        """`base + a.at[i].set(a[i] + u)`, or zeros with a window in them."""
        op = value.op
        assert op is not None
        array, window, *start = op.operands
        if uniform(array) == 0:
            return self.rw.insert(_added_window, base, window, *start, before=before)
        access = _read_added_written(op)
        if access is None or sum(each.operands.count(array) for each in access) > 2:  # (2)
            return None
        mapping = {array: self.of(base, array, access, before)}
        return self.rw.clone(access, mapping, before)[value]

    def padded(self, base: Value, value: Value, before: Op) -> Value | None:
        """`base` plus a window among zeros."""
        op = value.op
        assert op is not None
        window, filling = op.operands
        sides = padding_of(op)
        if uniform(filling) != 0 or any(
            min(low, high) < 0 or within for low, high, within in sides
        ):
            return None
        start = [self.rw.scalar(low, np.int32) for low, _, _ in sides]
        return self.rw.insert(_added_window, base, window, *start, before=before)

    def branches(self, base: Value, value: Value, before: Op) -> Value | None:
        """`base` plus a result of a conditional: added in each branch."""
        del before
        op = value.op
        assert op is not None
        if len(value.uses) != 1 or not dominates(base, op):  # (3)
            return None
        index = op.results.index(value)
        for region in op.regions:
            end, outputs = region.terminator, list(region.outputs)
            outputs[index] = self.of(base, outputs[index], [end], end)
            self.rw.set_outputs(region, outputs)
        return value

    def loop(self, base: Value, value: Value, before: Op) -> Value | None:
        """`base` plus what a loop carries: the loop begins with it."""
        del before
        scan = value.op
        assert isinstance(scan, Scan)
        path = _growth(scan, value)
        if path is None or len(value.uses) != 1 or not dominates(base, scan):  # (3)
            return None
        for op, array in path:
            if op.name in SUMS:
                (other,) = (x for x in op.operands if x is not array)
                self.rw.replace(op.result, self.of(array, other, [op], op))
        index = scan.results.index(value)
        self.rw.set_operand(scan, index, self.of(base, scan.operands[index], [scan], scan))
        return value


def _added_window(base: Array, window: Array, *start: Array) -> Array:
    old = lax.dynamic_slice(base, start, window.shape, allow_negative_indices=False)
    new = lax.add(old, window)
    return lax.dynamic_update_slice(base, new, start, allow_negative_indices=False)


def _terms(value: Value) -> Iterator[tuple[Value, Op]]:
    """The terms of a sum, each with the op that reads it."""
    pending = [value.op]
    while pending:
        op = pending.pop()
        assert op is not None
        for each in op.operands:
            if each.op is not None and each.op.name in SUMS and len(each.uses) == 1:
                pending.append(each.op)
            else:
                yield each, op


def _place(value: Value) -> tuple[bool, int]:
    """Loops and conditionals first, in program order."""
    op = value.op
    if op is None or op.region is None:
        return True, 0
    return not op.regions, op.region.order(op)


def _growth(scan: Scan, value: Value) -> list[tuple[Op, Value]] | None:
    """The ops that add to a carry in a step, each with what it adds to; None if (4) fails."""
    carry = scan.carry_of(value)
    if carry is None or len(carry.next.uses) != 1:
        return None
    return _path(carry.next, carry.param)


@remembered
def _path(value: Value, leaf: Value) -> list[tuple[Op, Value]] | None:
    if value is leaf:
        return []
    for array, reads in _arrays(value):
        rest = _path(array, leaf) if len(array.uses) == reads else None  # (2)
        if rest is not None:
            assert value.op is not None
            return [(value.op, array), *rest]
    return None


def _arrays(value: Value) -> Iterator[tuple[Value, int]]:
    """The arrays that an op may add to, and how often each is read for that (1)."""
    op = value.op
    if op is None or isinstance(value, Constant):
        return
    if op.name in SUMS:
        yield from ((each, 1) for each in op.operands)
    elif op.name == "scatter-add":
        yield op.operands[0], 1
    elif op.name == "dynamic_update_slice" and _read_added_written(op) is not None:
        yield op.operands[0], 2
    elif isinstance(op, Scan) and _growth(op, value) is not None:
        yield op.operands[op.results.index(value)], 1


def _read_added_written(write: Op) -> list[Op] | None:
    """The ops of `a.at[i].set(a[i] + u)`, given the last; None if it is something else."""
    array, window, *start = write.operands
    total = window.op
    if total is None or total.name not in SUMS or len(window.uses) != 1:
        return None
    for each in total.operands:
        read = each.op
        if read is not None and read.name == "dynamic_slice" and len(each.uses) == 1:
            source, *at = read.operands
            if source is array and [*map(identity, at)] == [*map(identity, start)]:
                return [read, total, write]
    return None
