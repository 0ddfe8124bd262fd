"""Chains of additions to an array, each to a window of it.

Transposes of reads make a dense array that is zero but for a window: `dynamic_update_slice`,
`scatter` and `scatter-add` into zeros, `pad`, `concatenate`, sums of these, and loops that add them
up. All have one form here, a `Chain` of `Piece`s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import component
from jaxpr_opt.analysis.windows.access import Extent, access
from jaxpr_opt.analysis.windows.window_primitives import (
    WRITES,
    indexed_axes,
    is_same_window,
    replaced,
    update_axes,
    window_sizes,
    written,
)
from jaxpr_opt.bridge.parameters import (
    combiner_of,
    dimension_of,
    has_unique_indices,
    mode_of,
    numbers_of,
    padding_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.traits import SUMS

SCATTERS = frozenset({"scatter", "scatter-add"})
PIECES = SCATTERS | {"concatenate", "dynamic_update_slice", "pad"}
"""The primitives that put something into zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """`op` adds `update` to a window of `base`, or of zeros if that is None."""

    op: Op
    base: Value | None
    update: Value
    indices: tuple[Value, ...] = ()
    starts: tuple[int, ...] = ()
    """Where the window is, if that does not depend on operands."""

    @property
    def result(self) -> Value:
        return self.op.result

    @property
    def nbytes(self) -> int:
        return self.update.nbytes

    @property
    def count(self) -> int:
        """How many windows are touched."""
        return 1

    @property
    def innermost(self) -> Piece:
        """The op that puts something into zeros."""
        return self

    @property
    def whole_axes(self) -> dict[int, int]:
        """The axes along which windows are as long as the array, those of a batch included, each
        with that of the update.
        """
        array, update = self.result.shape, self.update.shape
        return {d: at for d, at in update_axes(self.op).items() if array[d] == update[at]}

    @property
    def is_dense(self) -> bool:
        """Whether XLA makes the array: it sees through writes and scatters in the step itself."""
        return self.op.name not in WRITES

    def read(self, array: Any, *indices: Any) -> Any:
        """The window of `array`, with the shape of the update."""
        if self.op.name in SCATTERS:
            return replaced(self.op, array, *indices)
        where = indices or self._constants  # indices are normalised: bound, not called again
        return lax.dynamic_slice_p.bind(array, *where, slice_sizes=self.update.shape)

    def write(self, array: Any, value: Any, *indices: Any) -> Any:
        """`array` with `value` in the window."""
        if self.op.name in SCATTERS:
            return written(self.op, array, value, *indices)
        return lax.dynamic_update_slice_p.bind(array, value, *(indices or self._constants))

    def add(
        self, array: Any, update: Any, *indices: Any, total: Callable[..., Any] = lax.add
    ) -> Any:
        """`array` with `update` added to the window, by that sum."""
        if self.op.name == "scatter-add":
            assert self.op.primitive is not None
            return self.op.primitive.bind(array, *indices, update, **self.op.params)
        return self.write(array, total(self.read(array, *indices), update), *indices)

    @property
    def _constants(self) -> tuple[Any, ...]:
        return tuple(np.int32(start) for start in self.starts)

    @property
    def repeats(self) -> bool:
        """Whether two windows may share an element: a sum counts both, a write keeps one."""
        # Condition 2 of accumulate-sparse-cotangents.
        return self.op.name == "scatter-add" and self.collides

    @property
    def collides(self) -> bool:
        """Whether two windows of a scatter may be the same."""
        return may_coincide(self.op)

    @property
    def window(self) -> tuple[Extent, ...]:
        """The window that it adds to; nothing if that is not known."""
        if self.starts:
            sizes = zip(self.starts, self.update.shape, strict=True)
            return tuple(Extent(Affine(start), size) for start, size in sizes)
        found = access(self.op)
        return found.window if found is not None else ()


def may_coincide(scatter: Op) -> bool:
    """Whether two windows of a scatter, in one row of a batch, may be the same."""
    index = scatter.operands[1]
    batched = numbers_of(scatter).scatter_indices_batching_dims
    windows = prod(n for d, n in enumerate(index.shape[:-1]) if d not in batched)
    clamped = mode_of(scatter) == lax.GatherScatterMode.CLIP
    # Condition 2 of add-in-place.
    if windows <= 1 or clamped:
        return windows > 1
    return not has_unique_indices(scatter) and not _are_numbered(scatter)


def _are_numbered(scatter: Op) -> bool:
    """Whether each window of a scatter has a place of its own, as ``[rows, arange(n)]`` says."""
    numbers, index = numbers_of(scatter), scatter.operands[1]
    sizes, told = window_sizes(scatter), set(numbers.scatter_indices_batching_dims)
    for number, axis in enumerate(indexed_axes(scatter)):
        start = component(index, number)
        strides = {d: n for d, n in enumerate(start.strides) if n} if start is not None else {}
        # Condition 2 of accumulate-sparse-cotangents.
        if len(strides) == 1 and all(abs(n) >= sizes[axis] for n in strides.values()):
            told.update(strides)
    # Condition 2 of accumulate-sparse-cotangents.
    return all(n == 1 or d in told for d, n in enumerate(index.shape[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A loop `op` that does nothing with a carry but add pieces to it, the same windows in each
    step.
    """

    op: Scan
    carry: Carry
    inner: Chain

    @property
    def base(self) -> Value:
        return self.carry.init

    @property
    def result(self) -> Value:
        return self.carry.result

    @property
    def nbytes(self) -> int:
        return self.op.length * self.inner.nbytes

    @property
    def count(self) -> int:
        return self.op.length * sum(link.count for link in self.inner.links)

    @property
    def innermost(self) -> Piece:
        return self.inner.links[-1].innermost

    @property
    def is_dense(self) -> bool:
        return True


Link = Piece | Pieces


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Pieces added to `root` one after the other, or to zeros if it is None."""

    root: Value | None
    links: tuple[Link, ...]

    @property
    def starts_at_zero(self) -> bool:
        return bool(self.links) and (self.root is None or uniform(self.root) == 0)

    @property
    def nbytes(self) -> int:
        return sum(link.nbytes for link in self.links)


def added(value: Value, depth: int = 0) -> Chain:
    """The chain of additions whose result is `value`."""
    op = value.op
    if op is None or depth > limits.TERMS_OF_A_SUM:
        return Chain(value, ())
    if op.name in SUMS:
        return _term(op, depth) or Chain(value, ())
    link = _link(value)
    if link is None:
        return Chain(value, ())
    if link.base is None or uniform(link.base) == 0:
        return Chain(link.base, (link,))
    before = added(link.base, depth + 1)
    return Chain(before.root, (*before.links, link))


@remembered
def summed_pieces(dense: Value, *, several: bool = False) -> tuple[Piece, ...] | None:
    """The pieces that an array is the sum of; None if it is not zero elsewhere.  `several`: or is
    the sum of several such sums.
    """
    chain = added(dense)
    # Condition 1 of update-rows.
    if chain.starts_at_zero:
        pieces = tuple(link for link in chain.links if isinstance(link, Piece))
        return pieces if len(pieces) == len(chain.links) else None
    if not several or dense.op is None or dense.op.name not in SUMS:
        return None
    first, second = (summed_pieces(each, several=several) for each in dense.op.operands)
    return None if first is None or second is None else first + second


def added_by(op: Op) -> Piece | None:
    """The piece that a write adds, if it writes the sum of the old window and another value."""
    link = _link(op.result)
    return link if isinstance(link, Piece) and link.update not in op.operands else None


def _term(op: Op, depth: int) -> Chain | None:
    """A piece that is an array of its own, added to others or to a carry."""
    for rest, dense in (op.operands, op.operands[::-1]):
        piece = _link(dense)
        if isinstance(piece, Piece) and (piece.base is None or uniform(piece.base) == 0):
            before = added(rest, depth + 1)
            owner = rest.region.owner if rest.op is None and rest.region is not None else None
            # Condition 2 of accumulate-sparse-cotangents.
            if isinstance(owner, Scan) or (before.starts_at_zero and not piece.repeats):
                return Chain(before.root, (*before.links, replace(piece, base=rest)))
    return None


def _link(value: Value) -> Link | None:
    """The last that was added to a value."""
    op = value.op
    if isinstance(op, Scan):
        return _repeated(op, value)
    if op is None or not jnp.issubdtype(value.dtype, jnp.number):
        return None
    if op.name == "pad":
        return _padded(op)
    if op.name == "concatenate":
        return _joined(op)
    if op.name == "dynamic_update_slice":
        array, update, *starts = op.operands
        return _written(Piece(op, array, update, tuple(starts)))
    if op.name not in SCATTERS:
        return None
    array, index, update = op.operands
    piece = Piece(op, array, update, (index,))
    if op.name == "scatter-add":
        return piece
    return _written(piece) if combiner_of(op) is None else None  # none applied


def _repeated(scan: Scan, result: Value) -> Pieces | None:
    """A carry to which each step adds pieces."""
    carry = scan.carry_of(result)
    if carry is None:
        return None
    inner = added(carry.next)
    # Condition 1 of accumulate-sparse-cotangents.
    return Pieces(scan, carry, inner) if inner.links and inner.root is carry.param else None


def is_read_nowhere(pieces: Pieces) -> bool:
    """Whether nothing reads the partial sums of a loop."""
    chain, end = pieces.inner, pieces.carry.next
    values = [*(link.base for link in chain.links), end]
    return len(end.uses) == 1 and all(
        base is not None and all(_adds(user, link, after) for user in base.users)
        for link, base, after in zip(chain.links, values, values[1:], strict=False)
    )


def _adds(user: Op, link: Link, after: Value | None) -> bool:
    """Whether an op makes the next sum, or reads for it the window that it replaces."""
    if after in user.results:
        return True
    reads = isinstance(link, Piece) and len(user.results) == 1 and _is_read_of(user.result, link)
    return reads and len(user.result.uses) == 1


def _padded(op: Op) -> Piece | None:
    """An array with zeros around it."""
    array, filler = op.operands
    config = padding_of(op)
    # Condition 1 of accumulate-sparse-cotangents.
    if uniform(filler) != 0 or any(low < 0 or high < 0 or inner for low, high, inner in config):
        return None
    return Piece(op, None, array, starts=tuple(low for low, _, _ in config))


def _joined(op: Op) -> Piece | None:
    """A concatenation of zeros and one array that is not."""
    axis, at, found = dimension_of(op), 0, None
    for operand in op.operands:
        if uniform(operand) != 0:
            # Condition 1 of accumulate-sparse-cotangents.
            if found is not None:
                return None
            starts = [0] * len(operand.shape)
            starts[axis] = at
            found = Piece(op, None, operand, starts=tuple(starts))
        at += operand.shape[axis]
    return found


def _written(piece: Piece) -> Piece | None:
    """A write into zeros; or of what it replaces plus something."""
    assert piece.base is not None
    if uniform(piece.base) == 0:
        return piece
    total = piece.update.op
    if total is None or total.name not in SUMS:
        return None
    for old, update in (total.operands, total.operands[::-1]):
        if update.shape == piece.update.shape and _is_read_of(old, piece):
            return replace(piece, update=update)
    return None


def _is_read_of(value: Value, piece: Piece) -> bool:
    """Whether `value` is what a write replaces."""
    op = value.op
    # Condition 1 of add-in-place.
    return op is not None and is_same_window(op, piece.op) and op.operands[0] is piece.base
