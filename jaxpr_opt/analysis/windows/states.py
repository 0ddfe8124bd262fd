"""Carried arrays that a sparse gradient changes in some rows only.

An optimizer computes the next table, and its own next state (Adagrad's sums of squares), element by
element from the gradient and the carried arrays. Where the gradient is zero, nothing changes:
``acc + g**2`` is ``acc``, ``table - g / sqrt(acc)`` is ``table``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from jaxpr_opt.analysis.values.constants import scalar_of, uniform
from jaxpr_opt.analysis.windows.scatter_chains import Piece, added
from jaxpr_opt.analysis.windows.zero_gradients import at_zero, is_zero
from jaxpr_opt.ir.graph import Carry, Constant, Op, Scan, Use, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, is_pure


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Ops of a step of `scan` that compute the next arrays of `carries` from sums of `pieces`."""

    scan: Scan
    pieces: tuple[Piece, ...]
    ops: tuple[Op, ...]
    """The elementwise ops, in order."""
    carries: tuple[Carry, ...]
    outer: tuple[Value, ...]
    """Arrays from outside of the loop that the ops read."""
    scalars: dict[Value, Value]
    """Operands that repeat a scalar from outside of the loop, with the scalar."""
    changing: dict[Value, Value]
    """Operands that repeat a scalar of the step, with the scalar: factors, or divisors, of what is
    zero where the gradient is."""

    @property
    def is_plain(self) -> bool:
        """Whether the gradient passes only known numbers on its way to the arrays: then it is known
        that those are zeros where it is.
        """
        known = {piece.result for piece in self.pieces}
        # Condition 2 of update-states.
        known.update(v for v, scalar in self.scalars.items() if uniform(scalar) is not None)
        steps = {carry.next for carry in self.carries}
        for op in self.ops:
            if op.result not in steps:
                # Condition 2 of update-states.
                if not known.issuperset(op.operands):
                    return False
                known.add(op.result)
        return True


def states(scan: Scan) -> Iterator[States | str]:
    """Each group of arrays that sparse gradients change; or why one is not changed by rows only."""
    seen: set[Op] = set()
    for op in scan.body.ops:
        piece = _piece(op) if op not in seen else None
        if piece is not None:
            found = _Search(scan, piece)
            yield found.states() or found.why
            seen.update(found.ops)


def _piece(op: Op) -> Piece | None:
    """The scatter of a sparse gradient: it adds to zeros."""
    if op.name != "scatter-add" or uniform(op.operands[0]) != 0:
        return None
    chain = added(op.result)
    piece = chain.links[0] if len(chain.links) == 1 else None
    return (
        piece
        if isinstance(piece, Piece) and jnp.issubdtype(op.result.dtype, jnp.floating)
        else None
    )


class _Search:
    """The elementwise ops that depend on a sparse gradient, with all that they read."""

    def __init__(self, scan: Scan, piece: Piece) -> None:
        self.scan, self.shape = scan, piece.result.shape
        self.pieces: dict[Op, Piece] = {}
        self.ops: dict[Op, None] = {}
        self.outer: dict[Value, None] = {}
        self.scalars: dict[Value, Value] = {}
        self.changing: dict[Value, Value] = {}
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
            elif op.name in ELEMENTWISE and is_pure(op) and op.region is self.scan.body:
                self.ops[op] = None
                pending.extend(made for v in op.operands if (made := self._maker(v)) is not None)
            else:
                self.why = f"{op.name} reads all of {start.result.label}"
                return
            if op.result.shape != self.shape:
                self.why = f"{op.name} makes another shape"
                return
            pending.extend(user for user in op.result.users if not self._is_end(user))

    def _is_end(self, user: Op) -> bool:
        return user is self.scan.body.terminator

    def _maker(self, value: Value) -> Op | None:
        """The op that computes an operand; None if the operand is an input of the group."""
        scalar, body = scalar_of(value), self.scan.body
        if scalar is not None and (number := uniform(scalar)) is not None:
            self.scalars[value] = Constant(scalar.aval, scalar.dtype.type(number))
        elif scalar is not None:
            (self.changing if body.defines(scalar) else self.scalars)[value] = scalar
        elif not body.defines(value):
            self.outer[value] = None
        elif value.op is None:
            self.params[value] = None
        else:
            return value.op
        return None

    def states(self) -> States | None:
        """The group; None if it is not one, and `why` says why."""
        if self.why:
            return None
        ops = tuple(sorted(self.ops, key=self.scan.body.order))
        made = {op.result for op in ops} | {op.result for op in self.pieces}
        end = self.scan.body.terminator
        carries = tuple(c for c in self.scan.carries if c.next in made)
        ends = {Use(end, self.scan.carries.index(c)) for c in carries}
        known: dict[Value, Any] = {op.result: op.result.dtype.type(0) for op in self.pieces}
        for op in ops:
            known[op.result] = at_zero(op, known)
        others = [u for v in made for u in v.uses if u.op is end and u not in ends]
        # Condition 1 of update-states.
        if others or self.params.keys() != {c.param for c in carries} or not carries:
            self.why = "other values depend on the gradient, or are combined with it"
        elif not all(self._scales(value, known) for value in self.changing):
            self.why = "a scalar of the step does more than scale the gradient"
        elif any(known[c.next] is not c.param for c in carries):
            self.why = "elements change though their gradient is zero"
        elif any(
            self._is_read_late(c.param, min(self.pieces, key=self.scan.body.order)) for c in carries
        ):
            self.why = "an array is read after the gradient is known, so XLA would copy it"
        if self.why:
            return None
        pieces = tuple(replace(p) for p in self.pieces.values())
        given = tuple(self.outer), dict(self.scalars), dict(self.changing)
        return States(self.scan, pieces, ops, carries, *given)

    def _scales(self, value: Value, known: dict[Value, Any]) -> bool:
        """Whether a scalar only multiplies, or divides, what is zero where the gradient is."""
        uses = (use for use in value.uses if use.op in self.ops)
        # Condition 1 of update-states.
        return all(
            is_zero(known.get(use.op.operands[1 - use.position]))
            and (use.op.name == "mul" or (use.op.name == "div" and use.position == 1))
            for use in uses
        )

    def _is_read_late(self, array: Value, first: Op) -> bool:
        order, body = self.scan.body.order, self.scan.body
        around = (body.ancestor(user) for user in array.users if user not in self.ops)
        return any(op is None or order(op) > order(first) for op in around)
