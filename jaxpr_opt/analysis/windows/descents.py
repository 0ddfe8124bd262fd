"""Sums of an array and of one that is zero but for some rows: steps of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import scalar_of, uniform
from jaxpr_opt.analysis.values.enclosing import is_argument, is_read_after, loop_of
from jaxpr_opt.analysis.windows.buffers import is_updated_in
from jaxpr_opt.analysis.windows.scatter_chains import SCATTERS, Piece, added
from jaxpr_opt.analysis.windows.zero_gradients import at_zero, is_zero
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, SCALING, SUMS


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """`op` adds to `array`, or subtracts from it, what `path` makes of the sum of `pieces`."""

    op: Op
    array: Value
    dense: Value
    """The sum of the pieces: zero but for rows."""
    pieces: tuple[Piece, ...]
    path: tuple[Op, ...]
    """Ops from the sum of the pieces to what is added, in order."""

    @property
    def term(self) -> Value:
        """What is added, or subtracted."""
        return self.path[-1].result if self.path else self.dense

    @property
    def scalars(self) -> dict[Value, Value]:
        """Operands on the way that repeat a scalar, with the scalar."""
        made = {self.dense, *(op.result for op in self.path)}
        others = [v for op in self.path for v in op.operands if v not in made]
        return {v: scalar for v in others if (scalar := scalar_of(v)) is not None}

    @property
    def unknown(self) -> bool:
        """Whether some scalar is only known when the program runs."""
        return any(uniform(scalar) is None for scalar in self.scalars.values())


def descent(op: Op, array: Value, term: Value, *, summed: bool = False) -> Descent | None:
    """The descent that an op makes of an array and a term; None if the term is none.  `summed`: of
    a sum of several sums of pieces, too, if rows may be added one by one.
    """
    dense, path = _followed(term, scaled=summed)
    pieces = _pieces(dense, summed)
    return None if pieces is None else Descent(op, array, dense, pieces, path)


def why_not_in_place(found: Descent) -> str | None:
    """Why XLA would not update the array in its buffer, if only rows were written."""
    op, array = found.op, found.array
    # Condition 1 of update-rows.
    for value in (found.dense, *(each.result for each in found.path)):
        if len(value.uses) > 1:
            return f"{value.label} is read elsewhere"
    if array.aval != op.result.aval:
        return f"the sum is a {op.result.exact_type}, what is updated a {array.exact_type}"
    if is_read_after(array, op):
        return f"{array.label} is read afterwards, so XLA would copy it"
    loop = loop_of(op)
    if loop is None:
        return _why_not_once(found)
    if not is_updated_in(array, loop):
        return f"{array.label} is new in each step: there is no buffer to update"
    return None


def _why_not_once(found: Descent) -> str | None:
    """The same of a sum that is made once, of an argument: XLA writes into it if it is donated,
    else into a copy; a sum of all elements takes no longer than that copy where XLA makes no array
    of zeros for it.
    """
    if found.op.parent is not None or not is_argument(found.array):
        return f"{found.array.label} is no argument, and the sum is made once"
    if any(piece.op.name not in SCATTERS for piece in found.pieces):
        return "XLA makes the sum as it makes the windows"
    return None


@remembered
def _pieces(dense: Value, summed: bool) -> tuple[Piece, ...] | None:
    """The pieces that an array is the sum of; None if it is not zero elsewhere."""
    chain = added(dense)
    # Condition 1 of update-rows.
    if chain.starts_at_zero:
        pieces = tuple(link for link in chain.links if isinstance(link, Piece))
        return pieces if len(pieces) == len(chain.links) else None
    if not summed or dense.op is None or dense.op.name not in SUMS:
        return None
    first, second = (_pieces(each, summed) for each in dense.op.operands)
    return None if first is None or second is None else first + second


def _followed(term: Value, *, scaled: bool) -> tuple[Value, tuple[Op, ...]]:
    """What ops that keep zeros make `term` of, and these ops in order; `scaled`: that scale."""
    path: list[Op] = []
    while (op := term.op) is not None and op.name in (SCALING if scaled else ELEMENTWISE):
        others = [v for v in op.operands if scalar_of(v) is None]
        # Condition 1 of update-rows.
        if len(others) != 1 or not is_zero(at_zero(op, {others[0]: 0})):
            break
        path.append(op)
        term = others[0]
    return term, tuple(reversed(path))
