"""A step that is taken once or not at all, of arrays that XLA then updates in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

Make = Callable[[Sequence[Value], Op], Sequence[Value]]
"""What makes the new arrays of the old ones, before an op."""


def at_most_once(
    asked: Value, arrays: Sequence[Value], make: Make, like: Op, before: Op, rw: Rewriter
) -> list[Value]:
    """The arrays that `make` makes of arrays if a truth value is true, else the arrays.

    A `while` of at most one step does that: XLA copies the arrays of a branch, and updates those of
    a loop in place.
    """
    inits = [asked, *arrays]
    predicate, body = (rw.new_region(inits) for _ in range(2))
    rw.set_outputs(predicate, [predicate.params[0]])
    made = make(body.params[1:], body.terminator)
    rw.set_outputs(body, [rw.scalar(False, bool), *made])
    return list(rw.new_while(predicate, body, inits, like=like, before=before).results[1:])
