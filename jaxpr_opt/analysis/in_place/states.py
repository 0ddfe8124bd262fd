"""Arrays that a loop carries, or arguments, that a sparse gradient changes in some rows only.

An optimizer computes the next table, and its own next state (Adagrad's sums of squares), element by
element from the gradient and the carried arrays. Where the gradient is zero, nothing changes:
``acc + g**2`` is ``acc``, ``table - g / sqrt(acc)`` is ``table``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxpr_opt.analysis.carried.overwritten import may_be_early
from jaxpr_opt.analysis.in_place.zero_gradients import at_zero, is_zero
from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.analysis.sparse.scatter_chains import Piece, added, may_coincide
from jaxpr_opt.analysis.sparse.shared_operands import Shared, shared, whole_axes
from jaxpr_opt.analysis.values import float_bounds
from jaxpr_opt.analysis.values.constants import scalar_of, uniform
from jaxpr_opt.analysis.windows.window_primitives import WRITES, leading_rows
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Constant, Graph, Op, Region, Scan, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, LAYING, PICKING, SUMS, can_move, is_pure


class Updated(NamedTuple):
    """An array as a step finds it, and as it leaves it."""

    param: Value
    next: Value
    init: Value | None
    """What it is before the first step; None outside of loops."""


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Ops of `body` that compute the next arrays from sums of `pieces`."""

    body: Region
    """Of a scan, or of the program."""
    pieces: tuple[Piece, ...]
    ops: tuple[Op, ...]
    """Those that compute with the gradient, in order: each keeps rows apart."""
    before: tuple[Op, ...]
    """Ops of the step that may run before the loop, and make `scalars` of one row."""
    arrays: tuple[Updated, ...]
    outer: tuple[Value, ...]
    """Arrays from outside of the loop that the ops read; of a program, those that stay."""
    scalars: dict[Value, Value]
    """Operands that repeat a known number, or a scalar from outside of the loop, with it; or from
    there one row, which is that of all, with itself."""
    changing: dict[Value, Value]
    """Operands that repeat a scalar of the step, with the scalar: factors, or divisors, of what is
    zero where the gradient is; or it chooses between what is the same there."""
    shared: dict[Value, Shared]
    """Those of `outer` and `changing` that repeat an array along the axes of the places."""

    @property
    def scan(self) -> Scan | None:
        """The loop; None for an update that is made once."""
        return self.body.owner if isinstance(self.body.owner, Scan) else None

    @property
    def rows(self) -> int:
        """Along how many first axes all arrays have the rows of the gradient; 0 if they have one
        shape.
        """
        return leading_rows(self.pieces[0].op)

    @property
    def factors(self) -> list[Value]:
        """The numbers of the step that scale the gradient."""
        return [v for v in self.changing.values() if v.dtype != bool]

    @property
    def chooses(self) -> bool:
        """Whether a truth value of the step chooses."""
        return any(v.dtype == bool for v in self.changing)

    @property
    def is_plain(self) -> bool:
        """Whether elements whose gradient is zero keep their values if the factors are finite, and
        none is zero that divides: all that is combined with the gradient are numbers, or arrays
        that are finite whatever they are made of.
        """
        made: dict[Value, Any] = {p.result: p.result.dtype.type(0) for p in self.pieces}
        # Condition 2 of update-states.
        numbers = {v for v, scalar in self.scalars.items() if uniform(scalar) is not None}
        known, kept = {*made, *numbers, *self.changing}, {each.param for each in self.arrays}
        for op in self.ops:
            made[op.result] = at_zero(op, made)
            cases = _taken(op, made, known)
            # Condition 2 of update-states.
            if known.issuperset(cases) or self._is_zero(op, known, made):
                known.add(op.result)
            elif op.name in SUMS | {"sub", "select_n"} and (known | kept).issuperset(cases):
                kept.add(op.result)
        return all(each.next in kept for each in self.arrays)

    @staticmethod
    def _is_zero(op: Op, known: Set[Value], made: Mapping[Value, Any]) -> bool:
        """Whether an op multiplies zeros that a gradient is, or makes, by finite numbers only."""
        zeros = [v for v in op.operands if v in known and is_zero(made.get(v))]
        others = [v for v in op.operands if v not in zeros]
        return op.name == "mul" and bool(zeros) and all(map(float_bounds.is_finite, others))


def _taken(op: Op, made: Mapping[Value, Any], known: Set[Value]) -> Sequence[Value]:
    """The operands that an op uses where the gradient is zero: of a select, the case that is known
    to be taken, else both.
    """
    if op.name != "select_n":
        return op.operands
    which, *cases = op.operands
    number = made.get(which) if which in known else None
    return cases if number is None or isinstance(number, Value) else [cases[int(number)]]


def states(piece: Op) -> States | str | None:
    """The group of arrays that a sparse gradient changes, of which this is the first op that writes
    or adds windows; or why one is not changed by rows only.
    """
    first, body = _piece(piece), piece.region
    if first is None or body is None or not isinstance(body.owner, Scan | Graph):
        return None
    search = _Search(body, first)
    if not search.params and isinstance(body.owner, Graph):
        return None
    is_first = min(search.pieces, key=body.order, default=piece) is piece
    return (search.states() or search.why) if is_first else None


def _piece(op: Op) -> Piece | None:
    """What makes a sparse gradient: it adds to zeros, or writes one number, or one window, to
    them.
    """
    if op.name not in WRITES or uniform(op.operands[0]) != 0:
        return None
    kinds = np.bool_, np.integer, np.floating
    if not any(jnp.issubdtype(op.result.dtype, kind) for kind in kinds):
        return None
    if op.name == "scatter":
        # Condition 3 of update-states.
        is_alike = uniform(op.operands[2]) is not None or not may_coincide(op)
        is_set = combiner_of(op) is None and is_alike
        return Piece(op, None, op.operands[2], (op.operands[1],)) if is_set else None
    chain = added(op.result)
    piece = chain.links[0] if len(chain.links) == 1 else None
    return piece if isinstance(piece, Piece) else None


class _Search:
    """The elementwise ops that depend on a sparse gradient, with all that they read."""

    def __init__(self, body: Region, piece: Piece) -> None:
        self.body, self.shape, self.rows = body, piece.result.shape, leading_rows(piece.op)
        self.is_loop, self.whole = isinstance(body.owner, Scan), whole_axes([piece])
        self.pieces: dict[Op, Piece] = {}
        self.ops: dict[Op, None] = {}
        self.outer: dict[Value, None] = {}
        self.before: dict[Op, None] = {}
        self.scalars: dict[Value, Value] = {}
        self.changing: dict[Value, Value] = {}
        self.shared: dict[Value, Shared] = {}
        self.params: dict[Value, None] = {}
        self.why = ""
        self._visit(piece.op)

    def _visit(self, start: Op) -> None:
        pending = [start]
        while pending:
            op = pending.pop()
            if op in self.ops or op in self.pieces:
                continue
            piece = _piece(op)
            if piece is not None:
                self.pieces[op] = piece
            elif self._keeps_rows(op) and is_pure(op) and op.region is self.body:
                self.ops[op] = None
                pending.extend(made for v in op.operands if (made := self._maker(v)) is not None)
            else:
                self.why = f"{op.name} reads all of {start.result.label}"
                return
            if not self._has_rows(op.result):
                self.why = f"{op.name} makes another shape"
                return
            if len(self.ops) + len(self.pieces) > limits.OPS_OF_A_RANGE:
                self.why = "too many ops make the next arrays"
                return
            pending.extend(user for user in op.result.users if not self._is_end(user))

    # Condition 1 of update-states.
    def _keeps_rows(self, op: Op) -> bool:
        """Whether an op is elementwise, or makes each row, along the first axes, of one."""
        if op.name in ELEMENTWISE:
            return True
        is_laid = self.rows > 0 and op.name in LAYING | PICKING and self._has_rows(op.operands[0])
        return is_laid and all(row_axis(op, 0, axis) == axis for axis in range(self.rows))

    # Condition 3 of update-states.
    def _has_rows(self, value: Value) -> bool:
        """Whether an array has the rows of the gradient."""
        is_alike = self.rows > 0 and value.shape[: self.rows] == self.shape[: self.rows]
        return is_alike or value.shape == self.shape

    def _is_end(self, user: Op) -> bool:
        return user is self.body.terminator

    def _maker(self, value: Value) -> Op | None:
        """The op that computes an operand; None if the operand is an input of the group."""
        scalar, body = scalar_of(value), self.body
        if scalar is not None and (number := uniform(scalar)) is not None:
            self.scalars[value] = Constant(scalar.aval, scalar.dtype.type(number))
        elif scalar is not None:
            is_outer = self.is_loop and not body.defines(scalar)
            (self.scalars if is_outer else self.changing)[value] = scalar
        elif not self._has_rows(value):
            self._repeat(value)
        elif value.shape == self.shape and self._is_shared(value):
            self._share(value)
        elif not body.defines(value):
            self.outer[value] = None
        elif value.op is None:
            self.params[value] = None
        else:
            return value.op
        return None

    def _is_shared(self, value: Value) -> bool:
        """Whether an operand repeats a smaller array along the axes of the places."""
        sizes = zip(value.shape, self.shape, strict=False)
        is_laid = len(value.shape) == len(self.shape) and all(n in {1, size} for n, size in sizes)
        # Condition 1 of update-states.
        return is_laid and self.whole >= {*shared(value).axes}

    def _share(self, value: Value) -> None:
        self.shared[value] = each = shared(value)
        if self.is_loop and not self.body.defines(each.source):
            self.outer[value] = None
        else:
            self.changing[value] = each.source

    def _repeat(self, value: Value) -> None:
        """Take an operand for one row that is that of all, from before the loop."""
        made = backward_slice([value], lambda v: not self.body.defines(v))
        read = [value, *(v for op in made for v in inputs(op))]
        is_outer = all(op.region is self.body and can_move(op) for op in made)
        is_outer = is_outer and not any(v.op is None and self.body.defines(v) for v in read)
        # Condition 1 of update-states.
        is_one = self.rows > 0 and value.shape[: self.rows] == (1,) * self.rows
        if is_one and self.is_loop and is_outer:
            self.scalars[value] = value
            self.before |= dict.fromkeys(made)
        elif self._is_shared(value):
            self._share(value)
        else:
            self.why = f"{value.label} has other rows than the gradient"

    def states(self) -> States | None:
        """The group; None if it is not one, and `why` says why."""
        if self.why:
            return None
        ops = tuple(sorted(self.ops, key=self.body.order))
        known: dict[Value, Any] = {op.result: op.result.dtype.type(0) for op in self.pieces}
        for op in ops:
            known[op.result] = at_zero(op, known)
        made = {op.result for op in ops} | {op.result for op in self.pieces}
        arrays = self._updated(made, known)
        taken = {each.param for each in arrays}
        # Condition 1 of update-states.
        if not arrays or self._is_read_by_others(made, arrays):
            self.why = "other values depend on the gradient, or are combined with it"
        elif not all(whole_axes(self.pieces.values()) >= {*v.axes} for v in self.shared.values()):
            self.why = "an operand differs along the axes of the places"
        elif not self._scale(known, arrays):
            self.why = "a scalar of the step does more than scale the gradient"
        elif any(known[each.next] is not each.param for each in arrays):
            self.why = "elements change though their gradient is zero"
        elif any(self._is_read_late(param) for param in taken):
            self.why = "an array is read after the gradient is known, so XLA would copy it"
        if self.why:
            return None
        others = [v for v in self.params if v not in taken]
        pieces = tuple(replace(p) for p in self.pieces.values())
        given = (*self.outer, *others), dict(self.scalars), dict(self.changing), dict(self.shared)
        before = tuple(sorted(self.before, key=self.body.order))
        return States(self.body, pieces, ops, before, arrays, *given)

    def _updated(self, made: Set[Value], known: dict[Value, Any]) -> tuple[Updated, ...]:
        """The arrays that the group makes for the next step, or for the caller."""
        owner = self.body.owner
        if isinstance(owner, Scan):
            carries = (c for c in owner.carries if c.next in made)
            return tuple(Updated(c.param, c.next, c.init) for c in carries)
        ends = [v for v in dict.fromkeys(self.body.outputs) if v in made]
        stays = {v: known[v] for v in ends if isinstance(known[v], Value)}
        return tuple(Updated(v, end, None) for end, v in stays.items() if v in self.params)

    def _is_read_by_others(self, made: Set[Value], arrays: Sequence[Updated]) -> bool:
        """Whether the step returns something else that the group makes, or an array twice; or a
        loop carries something else that is combined with the gradient.
        """
        taken = {each.param for each in arrays}
        uses = sum(use.op is self.body.terminator for value in made for use in value.uses)
        others = self.is_loop and self.params.keys() != taken
        return others or len(taken) < len(arrays) or uses != len(arrays)

    def _scale(self, known: dict[Value, Any], arrays: Sequence[Updated]) -> bool:
        """Whether scalars of the step only multiply, or divide, what is zero where the gradient is;
        or are truth values: what is made of those is no NaN.
        """
        needed = self._needed(known, arrays)
        uses = (use for v in self.changing if v.dtype != bool for use in v.uses)
        # Condition 1 of update-states.
        return all(
            is_zero(known.get(use.op.operands[1 - use.position]))
            and (use.op.name == "mul" or (use.op.name == "div" and use.position == 1))
            for use in uses
            if use.position in needed.get(use.op, ())
        )

    def _needed(
        self, known: dict[Value, Any], arrays: Sequence[Updated]
    ) -> dict[Op, Sequence[int]]:
        """The ops that make the next arrays where the gradient is zero, and which of their operands
        they read there: a select leaves one out, if it is known which.
        """
        sure = self._sure()
        pending, needed = [each.next.op for each in arrays], dict[Op, Sequence[int]]()
        while pending:
            op = pending.pop()
            if op is None or op not in self.ops or op in needed:
                continue
            which = known.get(op.operands[0]) if op.operands[0] in sure else None
            needed[op] = range(len(op.operands))
            # Condition 1 of update-states.
            if op.name == "select_n" and which is not None and not isinstance(which, Value):
                needed[op] = 0, 1 + int(which)
            pending += [op.operands[position].op for position in needed[op]]
        return needed

    def _sure(self) -> Set[Value]:
        """The values computed from the gradient and numbers alone.  If their factors are finite,
        they are as known where the gradient is zero.
        """
        numbers = (v for v, scalar in self.scalars.items() if uniform(scalar) is not None)
        sure = {*(op.result for op in self.pieces), *numbers, *self.changing}
        for op in sorted(self.ops, key=self.body.order):
            # Condition 1 of update-states.
            if sure.issuperset(op.operands):
                sure.add(op.result)
        return sure

    def _is_read_late(self, array: Value) -> bool:
        order, body = self.body.order, self.body
        first = min(self.pieces, key=order)
        others = ((user, body.ancestor(user)) for user in array.users if user not in self.ops)
        late = (user for user, op in others if op is None or order(op) > order(first))
        return any(not may_be_early(user, first) for user in late)
