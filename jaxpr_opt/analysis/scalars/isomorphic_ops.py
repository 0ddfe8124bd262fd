"""Families of scalars that isomorphic ops compute, compared to a limited depth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

import numpy as np

from jaxpr_opt.bridge import compat_source, compat_types, dtypes
from jaxpr_opt.bridge.parameters import weak_type_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.traits import same_in_vectors


def is_float(value: Value) -> bool:
    """Whether the value is a floating point number; other passes look at counters and masks."""
    return dtypes.is_float(value.dtype) and compat_types.is_local(value.aval)


@remembered
def kind(op: Op) -> Hashable | None:
    """A key that is equal for scalar ops which one op on vectors can replace; None if none can."""
    values = (*op.operands, *op.results)
    if not same_in_vectors(op) or op.primitive is None:
        return None
    if op.name == "convert_element_type" and (
        op.operands[0].dtype == op.result.dtype or weak_type_of(op)
    ):
        return None  # it tells weak types apart, which vectors do not have
    if not all(v.size == 1 and isinstance(v.dtype, np.dtype) for v in values):
        return None
    if not all(compat_types.is_local(v.aval) for v in values):
        return None
    params = tuple((name, repr(value)) for name, value in op.params.items())
    return (op.primitive, op.source.ctx, params, *(v.dtype for v in values))


def families(values: Iterable[Value], body: Region, least: int) -> Iterator[list[Value]]:
    """Families of at least so many floats that isomorphic ops of a region compute.  No float is in
    two; those of a family are in program order.
    """
    made = {v: v.op for v in values if v.op is not None and v.op.region is body and is_float(v)}
    floats = sorted(made, key=lambda v: body.order(made[v]))
    for group in _groups(floats, lambda v: _sketch(v, 1)):
        yield from _told_apart(group, 2, least)


def _told_apart(values: list[Value], depth: int, least: int) -> Iterator[list[Value]]:
    """Families of values that are alike up to a depth, and then those written on one line.

    The first and the last of a chain are often computed otherwise than those between: if there is
    but one family, those with an operand that is computed like the family's are of it.
    """
    if len(values) < least or depth > limits.LEVELS_COMPARED + 1:
        if len(values) >= least:
            yield values
        return
    look = _line if depth > limits.LEVELS_COMPARED else lambda v: _sketch(v, depth)
    found = [group for group in _groups(values, look) if len(group) >= least]
    if len(found) == 1 and depth == 2:
        like = _operand_kinds(found[0][0])
        values = [v for v in values if not like or like & _operand_kinds(v)]
    for family in found if len(found) > 1 else [values]:
        yield from _told_apart(family, depth + 1, least)


def _sketch(value: Value, depth: int) -> Hashable:
    """How a value is computed, as far as one looks."""
    op = value.op
    known = kind(op) if op is not None and depth else None
    if op is None or known is None:
        return (value.dtype,)
    return (known, *(_sketch(v, depth - 1) for v in op.operands))


def _operand_kinds(value: Value) -> set[Hashable]:
    """Which operands are computed how."""
    made = [(i, v.op) for i, v in enumerate(value.op.operands) if v.op] if value.op else []
    return {(i, kind(op)) for i, op in made if kind(op) is not None}


def _line(value: Value) -> Hashable:
    """Where it is written."""
    return compat_source.user_frame(value.op.source.info) if value.op is not None else None


def _groups(values: Iterable[Value], by: Callable[[Value], Hashable]) -> list[list[Value]]:
    groups: dict[Hashable, list[Value]] = {}
    for value in values:
        groups.setdefault(by(value), []).append(value)
    return list(groups.values())
