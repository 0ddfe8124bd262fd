"""Update only the rows where a gradient is nonzero, instead of the whole array.

Before::

    p_n = scan[n] carry(p=p_0) xs(i=is, ...) {
      u = ...
      z = broadcast_in_dim 0.0
      g = scatter-add z i u                  # the gradient: zero but for rows
      s = mul 0.1 g
      p1 = sub p s
      yield carry(p1)
    }

After::

    p_n = scan[n] carry(p=p_0) xs(i=is, ...) {
      u = ...
      t = ...                                # u, added up where two rows are the same
      s = mul 0.1 t
      r = gather p i
      d = sub r s
      p1 = scatter p i d
      yield carry(p1)
    }

A step of gradient descent with a table. Sound when

1. the array that is added or subtracted is zero but for windows
   (`jaxpr_opt.analysis.windows.scatter_chains`), through ops that keep zeros: products with
   scalars, quotients by them, negation and conversion; no other op reads the intermediate arrays;
2. an unknown scalar may be NaN or infinite, and make NaN of zeros: each step tests for that, and if
   so, sets all other elements to the result;
3. windows of one op are equal or disjoint: then each sums all that belongs to its row, in the order
   of the rows, and equal rows get equal writes;
4. windows of several ops are disjoint.

Cost: the rows instead of the array. Only in loops that carry the array, if nothing reads it
afterwards, so that XLA updates it in place; and in the final phase, because the gradient of a write
that replaces rows takes two ops.
Source: sparse gradients of embeddings, as `torch.nn.Embedding(sparse=True)` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import scalar_of
from jaxpr_opt.analysis.windows.buffers import is_read_after, is_updated_in, loop_of
from jaxpr_opt.analysis.windows.scatter_chains import Piece, added, apart
from jaxpr_opt.builders.repeated_rows import by_row, count, has_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Constant, Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SCALING
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Descent(Match):
    """The op adds to `array`, or subtracts from it, what `path` makes of the sum of `pieces`."""

    array: Value
    dense: Value
    pieces: tuple[Piece, ...]
    path: tuple[Op, ...]
    """Ops from the sum of the pieces to what is added, in order."""

    @property
    def scalars(self) -> dict[Value, Value]:
        """Operands on the way that repeat a scalar, with the scalar."""
        made = {self.dense, *(op.result for op in self.path)}
        others = [v for op in self.path for v in op.operands if v not in made]
        return {v: scalar for v in others if (scalar := scalar_of(v)) is not None}

    @property
    def unknown(self) -> bool:
        """Whether some scalar is only known when the program runs."""
        return any(_known(scalar) is None for scalar in self.scalars.values())


@dataclass(frozen=True)
class UpdateRows(Pass):
    """A carried array plus, or minus, what is zero but for rows -> its rows updated."""

    name: ClassVar[str] = "update-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"add", "add_any", "sub"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Descent]:
        if loop_of(op) is None:
            return
        pairs = [op.operands] if op.name == "sub" else [op.operands, op.operands[::-1]]
        for array, term in pairs:
            dense, path = _linear(term)
            chain = added(dense) if path else None
            if chain is None or not chain.starts_at_zero:  # (1)
                continue
            pieces = tuple(link for link in chain.links if isinstance(link, Piece))
            if len(pieces) == len(chain.links):
                few, all_ = bytes_text(chain.nbytes), bytes_text(array.nbytes)
                says = f"{few} of {array.label} are updated, not {all_}"
                yield Descent(op, says, array, dense, pieces, path, about=op.result)

    def refuse(self, match: Descent) -> str | None:
        op, array = match.op, match.array
        for value in (match.dense, *(each.result for each in match.path)):
            if len(value.uses) > 1:  # (1)
                return f"{value.label} is read elsewhere"
        if array.aval != op.result.aval:
            return f"the sum is a {op.result.exact_type}, what is updated a {array.exact_type}"
        for piece in match.pieces:
            if piece.repeats and not has_rows(piece):  # (3)
                return "windows may overlap in part"
        for one, two in combinations(match.pieces, 2):
            if not apart(one.window, two.window):  # (4)
                return "windows of two ops may overlap"
        if is_read_after(array, op):
            return f"{array.label} is read afterwards, so XLA would copy it"
        loop = loop_of(op)
        assert loop is not None
        if not is_updated_in(array, loop):
            return f"{array.label} is new in each step: there is no buffer to update"
        if not _is_less(match):
            return f"the rows together are as large as {array.label}"
        return None

    def rewrite(self, match: Descent, rw: Rewriter) -> None:
        op = match.op
        rows = [_row(match, piece, rw) for piece in match.pieces]
        if not match.unknown:  # (2)
            new = _written(match, match.array, rows, op, rw)
        else:
            kept, changed = rw.new_region(), rw.new_region()
            zero = rw.insert(partial(_of_zero, match), *match.scalars.values(), before=op)
            whole = rw.insert(
                partial(_stepped_by, match), match.array, zero, before=changed.terminator
            )
            for branch, array in ((kept, match.array), (changed, whole)):
                end = branch.terminator
                rw.set_outputs(branch, [_written(match, array, rows, end, rw)])
            keeps = rw.insert(lambda x: x == 0, zero, before=op)  # (2)
            new = rw.new_cond(keeps, [changed, kept], like=op, before=op).result
        rw.replace(op.result, new)
        rw.erase(op)


def _linear(term: Value) -> tuple[Value, tuple[Op, ...]]:
    """What ops that keep zeros make `term` of, and these ops in order (1)."""
    path: list[Op] = []
    while (op := term.op) is not None and op.name in SCALING:
        others = [v for v in op.operands if scalar_of(v) is None]
        divides = op.name == "div" and others != [op.operands[0]]
        if len(others) != 1 or divides or not all(map(_may_keep, op.operands)):
            break
        path.append(op)
        term = others[0]
    return term, tuple(reversed(path))


def _may_keep(factor: Value) -> bool:  # (2)
    """Whether a product with it, or a quotient by it, may be zero for zero."""
    number = _known(scalar_of(factor))
    return number is None or bool(np.isfinite(number) and number != 0)


def _known(scalar: Value | None) -> Any:
    """The number that a scalar is, if that is known."""
    return scalar.scalar if isinstance(scalar, Constant) else None


def _is_less(match: Descent) -> bool:
    """Whether moving rows, and comparing where they are, takes no longer than moving the array."""
    prices, size = cost_model(), match.array.nbytes
    compared = sum(4 * count(piece) ** 2 for piece in match.pieces)
    moved = sum(piece.nbytes for piece in match.pieces)
    return prices.is_sparse(moved, size) and prices.streamed(compared) <= prices.moved(size)


def _row(match: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The rows of a piece, updated."""
    op, update = match.op, piece.update
    if piece.repeats:  # (3)
        update = rw.insert(partial(by_row, piece), *piece.indices, update, before=op)
    old = rw.insert(piece.read, match.array, *piece.indices, before=op)
    scalars = match.scalars.values()
    return rw.insert(partial(_stepped, match), old, update, *scalars, before=op)


def _written(
    match: Descent, array: Value, rows: Sequence[Value], before: Op, rw: Rewriter
) -> Value:
    """An array with rows of the pieces in it."""
    aval = match.op.result.aval
    for piece, row in zip(match.pieces, rows, strict=True):
        array = rw.typed(piece.write, aval, array, row, *piece.indices, before=before)
    return array


def _stepped(match: Descent, old: Any, update: Any, *scalars: Any) -> Any:
    """What the ops make of rows, for they are elementwise."""
    made = {match.dense: update}
    for value, scalar in zip(match.scalars, scalars, strict=True):
        made[value] = lax.broadcast(scalar, update.shape) if value.shape else scalar
    return _ending(match, old, _followed(match, made))


def _of_zero(match: Descent, *scalars: Any) -> Any:
    """What the ops make of zero."""
    made: dict[Value, Any] = {match.dense: jnp.zeros((), match.dense.dtype)}
    return _followed(match, made | dict(zip(match.scalars, scalars, strict=True)))


def _stepped_by(match: Descent, array: Any, term: Any) -> Any:
    """The array, the same number added to all elements, or subtracted."""
    return _ending(match, array, lax.broadcast(term, array.shape))


def _followed(match: Descent, made: dict[Value, Any]) -> Any:
    """What is added, or subtracted, of what its ops read."""
    for op in match.path:
        made[op.result] = _again(op, [made[v] for v in op.operands])
    return made[match.path[-1].result]


def _ending(match: Descent, array: Any, term: Any) -> Any:
    """The sum, or the difference, of an array and a term."""
    return _again(match.op, [array if v is match.array else term for v in match.op.operands])


def _again(op: Op, operands: Sequence[Any]) -> Any:
    assert op.primitive is not None
    return op.primitive.bind(*operands, **op.params)
