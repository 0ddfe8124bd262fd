"""Sums of an array and of one that is zero but for some rows: steps of gradient descent."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.carried.overwritten import is_read_late
from jaxpr_opt.analysis.in_place.zero_gradients import at_zero, is_zero
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, Piece, summed_pieces
from jaxpr_opt.analysis.sparse.shared_operands import Shared, shared, whole_axes
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import is_argument, loop_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, REDUCING, SCALING


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """`op` adds to `array`, or subtracts from it, what `path` makes of the sum of `pieces`; each of
    `choices` takes that or the array as it was.
    """

    op: Op
    array: Value
    dense: Value
    """The sum of the pieces: zero but for rows."""
    pieces: tuple[Piece, ...]
    path: tuple[Op, ...]
    """Ops from the sum of the pieces to what is added, in order."""
    choices: tuple[Op, ...]
    """Selects by a shared truth value, of the sum and the array, in order."""

    @property
    def last(self) -> Op:
        """The op that makes the next array."""
        return self.choices[-1] if self.choices else self.op

    @property
    def term(self) -> Value:
        """The term that is added, or subtracted."""
        return self.path[-1].result if self.path else self.dense

    @property
    def made(self) -> list[Value]:
        """The sum of the pieces, and what each op on the way makes of it."""
        return [self.dense, *(op.result for op in self.path)]

    @property
    def shared(self) -> dict[Value, Shared]:
        """Operands on the way that are the same along the axes along which windows have places."""
        made = set(self.made)
        others = [v for op in self.path for v in op.operands if v not in made]
        return {v: shared(v) for v in (*others, *(op.operands[0] for op in self.choices))}

    @property
    def whole(self) -> Set[int]:
        """The axes along which all windows are as long as the array."""
        return whole_axes(self.pieces)

    @property
    def unknown(self) -> bool:
        """Whether some number on the way is only known when the program runs."""
        numbers = (each.source for each in self.shared.values())
        return any(v.dtype != bool and uniform(v) is None for v in numbers)


def descent(op: Op, array: Value, term: Value, *, summed: bool = False) -> Descent | None:
    """The descent that an op makes of an array and a term; None if the term is none.  `summed`: of
    a sum of several sums of pieces, too, if rows may be added one by one.
    """
    dense, path = _followed(term, scaled=summed)
    pieces = summed_pieces(dense, several=summed) if term.shape == array.shape else None
    # Condition 1 of update-rows.
    if pieces is None:
        return None
    found = Descent(op, array, dense, pieces, path, ())
    # Condition 1 of update-rows.
    if not all(found.whole >= {*each.axes} for each in found.shared.values()):
        return None
    return replace(found, choices=_choices(op, array, found.whole))


def _choices(op: Op, array: Value, whole: Set[int]) -> tuple[Op, ...]:
    """The selects that follow an op of what it makes and an array, each by what is the same along
    all but some axes.
    """
    found: list[Op] = []
    while len(op.result.uses) == 1:
        (user,) = op.result.users
        if user.name != "select_n" or user.region is not op.region:
            break
        which, *cases = user.operands
        # Condition 1 of update-rows.
        if not whole >= {*shared(which).axes} or {*cases} != {array, op.result}:
            break
        found.append(user)
        op = user
    return tuple(found)


def why_not_in_place(found: Descent) -> str | None:
    """Why XLA would not update the array in its buffer, if only rows were written."""
    op, array = found.op, found.array
    if array.aval != op.result.aval:
        return f"the sum is a {op.result.exact_type}, what is updated a {array.exact_type}"
    if not _is_reduced_elsewhere(found):
        return f"{found.dense.label} is read elsewhere"
    if is_read_late(array, found.last, but=found.choices):
        return f"{array.label} is read afterwards, so XLA would copy it"
    loop = loop_of(op)
    if loop is None:
        return _why_not_once(found)
    if not is_updated_in(array, loop):
        return f"{array.label} is new in each step: there is no buffer to update"
    return None


def _is_reduced_elsewhere(found: Descent) -> bool:
    """Whether whatever else is made of the gradient reduces it, as a norm does: it makes no array
    for which the gradient is read anyway.
    """
    seen = {found.op, *found.path}
    pending = [user for value in found.made for user in value.users]
    while pending:
        user = pending.pop()
        if user in seen or user.name in REDUCING:
            continue
        if user.name not in ELEMENTWISE or len(seen) > limits.OPS_OF_A_ROW + len(found.path):
            return False
        seen.add(user)
        pending.extend(user.result.users)
    return True


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


def _followed(term: Value, *, scaled: bool) -> tuple[Value, tuple[Op, ...]]:
    """The value from which zero-preserving ops compute `term`, and these ops in order; if `scaled`,
    ops that scale.
    """
    path: list[Op] = []
    while (op := term.op) is not None and op.name in (SCALING if scaled else ELEMENTWISE):
        others = [v for v in op.operands if shared(v).source.size == op.result.size]
        # Condition 1 of update-rows.
        if len(others) != 1 or not is_zero(at_zero(op, {others[0]: 0})):
            break
        path.append(op)
        term = others[0]
    return term, tuple(reversed(path))
