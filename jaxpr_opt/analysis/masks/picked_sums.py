"""Products and reductions of arrays that are zero but for one place along some axes.

What is summed up over all places is read at one, or added to the rows that places tell. A product
that is a factor, ``(x @ w)`` of ``sum((x @ w) * one_hot(a), 1)``, may be made at the places only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from jaxpr_opt.analysis.masks.one_hot import REDUCTIONS, is_neutral
from jaxpr_opt.analysis.masks.picked_arrays import Picked, Place
from jaxpr_opt.analysis.masks.picked_places import (
    PICKING,
    axes_multiplied,
    may_be_infinite,
    merged,
    picked,
    product_of_factors,
    times,
)
from jaxpr_opt.bridge.parameters import axes_of, numbers_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value, While, is_sized
from jaxpr_opt.ir.nesting import with_parents


@dataclass(frozen=True, slots=True)
class PickedSum:
    """What is picked, and along which axes it is combined."""

    picked: Picked
    shape: tuple[int, ...]
    summed: frozenset[int]
    combine: str = "add"
    opened: tuple[Op, ...] = ()
    """Products that were factors, and are multiplied and summed up at the places only."""

    @property
    def windows(self) -> int:
        """How many windows are read or written: one, of rows that go on one by one."""
        read = self.picked.rows(self._apart)
        return prod(self.shape[d] for d in read) * (1 + bool(self._written))

    @property
    def rows(self) -> int:
        """How many numbers there are at the places."""
        axes = {d for source in self.picked.sources for d in source.axes} - self.picked.axes
        return prod(self.shape[d] for d in axes)

    @property
    def is_read(self) -> bool:
        """Whether each number of the result is one number of the factors."""
        return self.summed == self.picked.axes

    @property
    def made(self) -> int:
        """How many numbers are in memory between: those that are read, or products to be added."""
        read = self._read
        if not self._apart:
            return read
        products = self.rows if len(self.picked.factors) > 1 and self._written else 0
        pairs = [prod(self.shape[d] for d in f.outside) for f in self.picked.factors if f.leaks]
        compared = self.windows * max((each for each in pairs if each > 1), default=0)
        is_counted = any(f.leaks for f in self.picked.factors) and not self.is_read
        return max(read, products) + compared + (self.rows + self._written if is_counted else 0)

    @property
    def numbers(self) -> int:
        """How many numbers are moved."""
        products = self.rows if len(self.picked.factors) > 1 or not self._read else 0
        return self._read + products + self._written

    @property
    def ops(self) -> int:
        """How many ops write rows, or add them up, and see whether numbers are finite."""
        looks = sum(f.leaks for f in self.picked.factors)
        return 3 + 3 * looks if self._written else 0

    @property
    def _apart(self) -> frozenset[int]:
        """The axes along which places do not go on one by one, as they do on a diagonal."""
        return frozenset(p.axis for p in self.picked.places if not self._goes_on(p))

    def _goes_on(self, place: Place) -> bool:
        number = place.number.value
        is_row = number.op is not None and number.op.name == "iota" and place.number.loop is None
        first = -place.offset
        return is_row and first >= 0 and first + number.size <= self.shape[place.axis]

    @property
    def _written(self) -> int:
        """How many places there are to write to."""
        kept = [n for d, n in enumerate(self.shape) if d not in self.summed]
        return 0 if self.picked.axes <= self.summed else prod(kept)

    @property
    def _read(self) -> int:
        """How many numbers are read at the places."""
        read = [
            self.picked.rows(f.source.axes)
            for f in self.picked.factors
            if not self._apart.isdisjoint(f.source.axes)
        ]
        return sum(prod(self.shape[d] for d in each) for each in read)


@remembered
def picked_sum(op: Op) -> PickedSum | None:
    """What a product or a reduction combines, if it is picked.

    The axes of what a product sums up: those of its result, then those that are summed up.
    """
    if op.name in REDUCTIONS:
        (array,) = op.operands
        found, shape = picked(array), array.shape
        combine, summed = REDUCTIONS[op.name], frozenset(axes_of(op))
        # Condition 2 of read-one-hot-rows.
        if found is None or not is_neutral(combine, found.elsewhere, array):
            return None
    else:
        found, shape = product_of_factors(op)
        combine, summed = "add", frozenset(range(len(op.result.shape), len(shape)))
    # Condition 2 of read-one-hot-rows.
    if found is None or not summed or (found.inner and combine != "add"):
        return None
    inner = {-1 - d: len(shape) + d for d in range(len(found.inner))}
    whole = found.moved({d: d for d in range(len(shape))} | inner)
    shape, summed = (*shape, *found.inner), summed.union(inner.values())
    if whole is None or not is_sized(shape) or 0 in shape:
        return None
    every = [PickedSum(replace(whole, inner=()), shape, summed, combine)]
    while combine == "add" and (more := _opened(every[-1], op)) is not None:
        every.append(more)
    width = op.result.dtype.itemsize

    def seconds(made: PickedSum) -> float:
        left = [each for each in every[-1].opened if each not in made.opened]
        return cost_model().picking(made, width, left)

    return min(every, key=seconds)


def pays(op: Op, found: PickedSum) -> bool:
    """Whether a sum of what is picked takes less time, and no more memory, than all of it."""
    looked = 0.0
    for factor in found.picked.factors:
        if factor.leaks:
            loops = loops_of_the_same(factor.source.value, op)
            steps = prod(loop.length for loop in loops if isinstance(loop, Scan))
            looked += factor.source.value.nbytes / max(steps, 1)
    made = sum(v.nbytes / len(v.uses) for v in op.operands if picked(v) is not None)
    unmade = made if op.name == "dot_general" else 0  # a reduction makes it on the way
    return cost_model().is_picked(found, [op, *found.opened], looked, unmade)


def loops_of_the_same(value: Value, op: Op) -> list[Scan | While]:
    """The loops around an op in which a value stays the same, the innermost first."""
    loops = []
    for around in with_parents(op.parent):
        if any(region.defines(value) for region in around.regions):
            break
        if isinstance(around, Scan | While):
            loops.append(around)
    return loops


def is_read_at_places(op: Op) -> bool:
    """Whether all that read a product or a sum do so at places only."""
    end = _only_reader(op.result)
    if end is not None and (found := _sum_at(end)) is not None and op in found.opened:
        return True
    return picked(op.result) is not None and _are_at_places(op.result)


def _are_at_places(value: Value) -> bool:
    """Whether all that reads what is picked does so at places only, or makes the like of it."""

    def is_at_places(user: Op) -> bool:
        found = _sum_at(user)
        if found is not None and pays(user, found):
            return True
        is_alike = user.name in PICKING and picked(user.result) is not None
        return is_alike and _are_at_places(user.result)

    return bool(value.uses) and all(map(is_at_places, value.users))


def _sum_at(op: Op) -> PickedSum | None:
    return picked_sum(op) if op.name in REDUCTIONS or op.name == "dot_general" else None


def _opened(found: PickedSum, op: Op) -> PickedSum | None:
    """The same sum with a product among its factors multiplied and summed up together with it."""
    for factor in found.picked.factors:
        product, axes = factor.source.value.op, factor.source.axes
        if product is None or product.name != "dot_general" or factor.source.loop is not None:
            continue
        kept = product.result.shape
        long = [d for d, n in enumerate(kept) if n != 1]
        is_small = len(axes) < len(long) or found.picked.axes.isdisjoint(axes)
        is_small |= bool(factor.outside)
        if is_small or not numbers_of(product)[0][0] or _only_reader(product.result) is not op:
            continue
        if any(v.dtype != product.result.dtype for v in product.operands):
            continue
        maps, shape = axes_multiplied(product)
        more = shape[len(kept) :]
        new = range(len(found.shape), len(found.shape) + len(more))
        to = dict(zip(long, axes, strict=True)) | dict(enumerate(new, len(kept)))
        others = tuple(f for f in found.picked.factors if f is not factor)
        made = replace(found.picked, factors=others)
        for side, its in zip(product.operands, maps, strict=True):
            moved = {d: to[at] for d, at in its.items() if at in to}
            made = _times_side(made, side, moved, factor.leaks)
        opened = (*found.opened, product)
        summed = found.summed.union(new)
        return PickedSum(made, (*found.shape, *more), summed, found.combine, opened)
    return None


def _times_side(made: Picked, side: Value, to: Mapping[int, int], leaks: bool) -> Picked:
    own = picked(side)
    moved = None if own is None or own.elsewhere != 0 or own.inner else own.moved(to)
    both = None if moved is None else merged(made, moved)
    return both or times(made, side, to, leaks=leaks and may_be_infinite(side))


def _only_reader(value: Value) -> Op | None:
    """The sum that alone reads a value, or what is multiplied by it; None if there is none."""
    while len(value.uses) == 1:
        (user,) = value.users
        sums = user.name in REDUCTIONS or user.name == "dot_general"
        if user.name not in PICKING or (sums and picked(user.result) is None):
            return user
        value = user.result
    return None
