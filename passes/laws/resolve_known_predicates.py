"""Replace a predicate inside its own branch by its known value.

Before::

    y = cond p {
      q = not p
      z = cond p { f x } else { g x }
      u = select_n q w z
      yield u, k
    } else {
      yield x, k
    }

After::

    y = cond p {
      u = select_n False w (f x)
      yield u
    } else {
      yield x
    }                                       # and k is read directly

Sound when

1. the read is inside a branch, where the selector has the branch's number: inside the true branch
   of ``cond p``, p is true and `not p` false; with ``p = and q r`` so are q and r; in the false
   branch of ``p = or q r`` both are false;
2. the branch is not the last of a switch, which is also taken for selectors out of range and so
   implies no value of its selector;
3. a result for which every branch yields the same value, defined outside or constant, is that
   value, of the same type.

A cond on a constant becomes its branch: the ops move in place, with their effects. A scan of no
steps leaves its carries as they were, and stacks without rows.

Cost: removes branches and selects. A constant in place of a residual is never stored.
Source: conditional constant propagation (Wegman and Zadeck, 1991), restricted to the structure of
the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.values.constants import identity, is_weak, uniform
from jaxpr_opt.analysis.values.truths import implied
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Region, Scan, Use, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Taken(Match):
    """A cond that always takes `branch`."""

    op: Cond
    branch: Region


@dataclass(frozen=True, slots=True, eq=False)
class KnownInside(Match):
    """Reads, inside the branches of a cond, of values that the branch taken tells: each is this
    number.
    """

    op: Cond
    reads: tuple[tuple[Use, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class SameEitherWay(Match):
    """Results of a cond that do not depend on the branch taken."""

    op: Cond
    results: tuple[tuple[Value, Value], ...]


class NoSteps(Match):
    """A scan of length zero."""

    op: Scan


Found = Taken | KnownInside | SameEitherWay | NoSteps


@dataclass(frozen=True)
class ResolveKnownPredicates(Pass[Found]):
    """Fold conds on constants, predicates known from the enclosing branch, results all branches
    agree on, and scans of no steps.
    """

    name: ClassVar[str] = "resolve-known-predicates"
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond, Scan)
    cleanup: ClassVar[bool] = True

    def find(self, op: Cond | Scan) -> Iterator[Found]:
        if isinstance(op, Scan):
            if op.length == 0:
                yield NoSteps(op, "the scan has no steps")
            return
        number = uniform(op.selector)
        if number is not None:
            index = op.taken(number)  # (2)
            yield Taken(op, f"the cond always takes branch {index}", op.branches[index])
            return
        reads = tuple(_known_reads(op))
        if reads:
            yield KnownInside(
                op, f"{len(reads)} reads of a predicate are known inside its branches", reads
            )
        same = [(o.result, _agreed(o.values, op)) for o in op.outcomes if o.result.uses]
        results = tuple(
            (result, value)
            for result, value in same
            if value is not None and value.aval == result.aval  # (3)
        )
        if results:
            yield SameEitherWay(op, f"{len(results)} results are the same in every branch", results)

    def rewrite(self, match: Found, rw: Rewriter) -> None:
        match match:
            case Taken():
                outputs = rw.inline(match.branch, (), match.op)
                for result, value in zip(match.op.results, outputs, strict=True):
                    rw.replace(result, value)
                rw.erase(match.op)
            case KnownInside():
                for use, number in match.reads:
                    aval = use.op.operands[use.position].aval
                    constant = rw.constant(np.asarray(number, aval.dtype)[()], aval)
                    rw.set_operand(use.op, use.position, constant)
            case SameEitherWay():
                for result, value in match.results:
                    rw.replace(result, value)
            case NoSteps():
                scan = match.op
                for carry in scan.carries:
                    rw.replace(carry.result, carry.init)
                for stack in scan.stacks:
                    rw.replace(stack.result, rw.undefined(stack.result.aval, before=scan))
                rw.erase(scan)


def _known_reads(cond: Cond) -> Iterator[tuple[Use, int]]:
    """Reads inside a branch of values whose number the branch taken tells (1)."""
    seen: set[Use] = set()
    for index, branch in enumerate(cond.branches):
        for value, number in _facts(cond, index):
            for use in value.uses:
                if use not in seen and branch.reads(use):  # (1)
                    seen.add(use)
                    yield use, number


def _facts(cond: Cond, index: int) -> Iterator[tuple[Value, int]]:
    """Scalars known in branch `index`, with their numbers."""
    selector = cond.selector
    if len(cond.branches) > 2:
        if index < len(cond.branches) - 1 and not is_weak(selector):  # (2)
            yield selector, index
        return
    for value, holds in implied(selector, bool(index)).items():  # (1)
        if value.shape:
            continue
        yield value, holds
        for user in value.users:
            if user.name == "not":  # (1)
                yield user.result, not holds
            elif user.name == "convert_element_type" and not is_weak(user.result):  # (1)
                yield user.result, holds


def _agreed(values: tuple[Value, ...], cond: Cond) -> Value | None:
    """The one value, defined outside of the branches, that all of them yield, if any (3)."""
    first = values[0]
    if cond.defines(first):  # (3)
        return None
    return first if all(identity(v) == identity(first) for v in values) else None  # (3)
