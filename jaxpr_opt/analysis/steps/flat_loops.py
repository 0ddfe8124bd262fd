"""Loops over all cells of a table: ``i, j = k // m, k % m``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.induction import StepsOfNest, affine, in_nest
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge.parameters import has_numbers, is_in_order
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Region, Scan, Value


def row_lengths(scan: Scan) -> list[int]:
    """How many steps apart the row, the plane, ... of a table change; each divides the next, and
    the length of the loop.
    """
    computed = {n for op in scan.body.walk() for n in _lengths(op, scan)}
    found = sorted(computed.union(*(_joined(stream.operand, scan) for stream in scan.streams)))
    kept: list[int] = []
    for n in found:
        if 1 < n < scan.length and scan.length % n == 0 and n % (kept[-1] if kept else 1) == 0:
            kept.append(n)
    return kept


def _joined(rows: Value, scan: Scan) -> Iterator[int]:
    """The lengths of rows, planes, ... of a table of which a loop reads cell by cell."""
    made = rows.op
    if made is None or made.name != "reshape" or not is_in_order(made):
        return
    shape = made.operands[0].shape
    count = next((d for d in range(len(shape)) if prod(shape[: d + 1]) == scan.length), 0)
    yield from (prod(shape[d : count + 1]) for d in range(1, count + 1))


def _lengths(op: Op, scan: Scan) -> Iterator[int]:
    """After how many steps what an op divides, or what it takes remainders of, has grown by its
    divisor.
    """
    if op.name in {"div", "rem"} and op.operands[0].shape == ():
        n, rate = affine(op.operands[1]), _rate(op.operands[0], scan)
        steps = n.offset / rate if n is not None and n.is_constant and rate else Fraction(0)
        if steps.denominator == 1:
            yield abs(int(steps))


def _rate(value: Value, scan: Scan) -> Fraction:
    """By how much a quotient of the number of a step grows in each."""
    divisor = Fraction(1)
    for _ in range(limits.WAY_TO_AN_INDEX):
        number = affine(value)
        if number is not None:
            return Fraction(number.steps.get(scan, 0)) / divisor
        op = value.op
        n = affine(op.operands[1]) if op is not None and op.name == "div" else None
        if op is not None and n is not None and n.is_constant and n.offset > 0:
            divisor *= n.offset
        elif op is None or op.name != "select_n":  # of jnp's `//`
            break
        value = op.operands[0 if op.name == "div" else 1]
    return Fraction(0)


def nest_of(scan: Scan, lengths: list[int]) -> StepsOfNest:
    """Loops of rows, planes, ... that the steps of a loop may be divided between."""
    strides = [*reversed(lengths), 1]
    sizes = [n // m for n, m in zip([scan.length, *strides], strides, strict=False)]
    return {_loop(size): stride for size, stride in zip(sizes, strides, strict=True)}


def _loop(length: int) -> Scan:
    """A loop that is in no program."""
    return Scan("scan", (), (), params={"length": length, "reverse": False}, regions=[Region()])


def starts_in(accesses: Iterable[Access], scan: Scan, nest: StepsOfNest) -> list[Affine] | None:
    """The starts of windows along their axes if the loop were a nest; None if one would be unknown
    or out of range.
    """
    starts = [_start(a, axis, scan, nest) for a in accesses for axis in range(len(a.window))]
    known = [start for start in starts if start is not None]
    return known if len(known) == len(starts) else None


def _start(access: Access, axis: int, scan: Scan, nest: StepsOfNest) -> Affine | None:
    extent = access.window[axis]
    if extent.start is not None:
        return extent.start
    if has_numbers(access.op):
        start = in_nest(access.indices[0], access.component(axis), scan, nest)
    else:
        start = in_nest(access.indices[axis], None, scan, nest)
    if start is None or any(start.strides):
        return None
    low, high = start.range((0,) * len(start.strides))
    return start if low >= 0 and high <= access.array.shape[axis] - extent.size else None
