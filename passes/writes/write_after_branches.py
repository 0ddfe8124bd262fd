"""Move the write of a window from a branch to after the cond.

Before::

    b1 = cond p {
      u = f x
      w = dynamic_update_slice b u i
      yield w
    } else {
      yield b
    }

After::

    r = dynamic_slice b i
    v = cond p {
      u = f x
      yield u
    } else {
      yield r
    }
    b1 = dynamic_update_slice b v i

Other passes do not see that an array which goes through a ``cond`` is only written by windows, and
its cotangent is copied at every branch. Sound when

1. a branch yields a write of one window into an array from outside the cond; the others (at least
   one) yield that array unchanged, or such a write, of a window of the same size by the same op
   and by indices of the same types; zeros are one array;
2. a branch that does not write returns the old window, clamped or dropped alike where that is out
   of range; so the index is computed by ops that may be speculated, of what is specified in all
   branches, and where the write promises to be in range, that is proved
   (`jaxpr_opt.analysis.windows.access`). Or it writes zeros to zeros: then the place of a slice
   may be unspecified there, and the cond yields place zero;
3. nothing else in a branch reads what it writes. Or the branches have no effects and do not
   communicate, so that the cond may become two: what reads the array once it is written to, maybe
   to write to it again, moves into a second cond on the same predicate::

       v = cond p { yield f x } else { yield r }
       b1 = dynamic_update_slice b v i
       y = cond p { yield attend b1 } else { yield x }

If several branches write, each returns its index, as the experts of a mixture do that are rows of
one array.

Cost: one more read of the window, which is less than half of the array. In a loop only, maybe in a
branch of its step; or zeros, of which others make something row by row (`compute-added-rows`). The
array may then become the stack of a scan. If it cannot, because the index is unknown or differs,
XLA may still write in place through a branch, also if that reads the array. Not so if the step
reads the array for something else than the cond, as memo tables are read before they are written;
if a branch reads what it then overwrites; nor, on a CPU before JAX 0.11, if there are more than two
branches, or only that for false writes, or both write and one reads: XLA then copies all of it in
each step (20,000 numbers: 3.8 us on JAX 0.10, 3.1 on 0.12, and 0.07 if it is written after the
cond). Small arrays are copied sooner than a window is read and written, if XLA starts the few ops
of a step one by one (4096 numbers of a memo of products: 0.33 us and 0.45 us; on a GPU a small copy
takes less time than a kernel for the window). And a loop that is differentiated may store the array
in each step, which `undo-carried-writes` avoids. What XLA copies waits until JAX has
differentiated: what a branch reads would be added to zeros in the branch, and these to the
cotangent of the array, all of it in each step (1.7 times the time of plain JAX, where it was 0.7; a
stack of 500 numbers of a calculator on JAX 0.12). Zeros with a window in them, as the transpose of
a read makes them, are not made in a branch. A second cond pays if a loop stores the array for its
gradient, a version of a cache for each step: `undo-carried-writes` then stores the windows.
Source: https://github.com/jax-ml/jax/issues/15906; the gradient of 2000 such steps took 15 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.in_place.buffers_in_branches import is_copied
from jaxpr_opt.analysis.residuals.versions import is_stacked
from jaxpr_opt.analysis.steps.one_function import unknown_op
from jaxpr_opt.analysis.values.enclosing import is_differentiated, loop_of
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.writes.branch_writes import BranchWrites, branch_writes
from jaxpr_opt.builders.writes.branch_writes import split_after, write_after
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Scan
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class WrittenInBranch(Match):
    """An array that branches of a cond write into."""

    op: Cond
    writes: BranchWrites
    beside: tuple[BranchWrites, ...]
    """Others that are written after the cond, too, if that becomes two."""


@dataclass(frozen=True)
class WriteAfterBranches(Pass[WrittenInBranch]):
    """A cond between an array and the array with a window written yields the window instead."""

    name: ClassVar[str] = "write-after-branches"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond,)

    def find(self, op: Cond) -> Iterator[WrittenInBranch]:
        is_once = loop_of(op) is None
        found = [w for w in branch_writes(op) if w.are_of_zeros or not is_once]  # (1)
        for writes in found:
            beside = tuple(_beside(writes, found)) if writes.are_read else ()
            says = writes.says + (f", with {len(beside)} more" if beside else "")
            yield WrittenInBranch(op, says, writes, beside, is_cleanup=is_once)

    def refuse(self, match: WrittenInBranch) -> str | None:
        return _why_not(match.writes)

    def rewrite(self, match: WrittenInBranch, rw: Rewriter) -> None:
        writes = match.writes
        if not writes.are_read:
            write_after(writes, writes.result, rw)
            return
        together = [writes, *match.beside]
        results = split_after(writes.cond, together, rw)
        for each, result in zip(together, results, strict=True):
            write_after(each, result, rw)


def _beside(writes: BranchWrites, found: Iterable[BranchWrites]) -> Iterator[BranchWrites]:
    """The others of a cond that may move with these: none needs what another one makes."""
    together = {writes.versions: writes}
    for other in found:
        if other.versions in together or _why_not(other) is not None:
            continue
        if not any(other.depend_on(one) or one.depend_on(other) for one in together.values()):
            together[other.versions] = other
            yield other


def _why_not(writes: BranchWrites) -> str | None:
    """Why an array is not written to after the cond."""
    cond, first = writes.cond, writes.made[0]
    if (reason := writes.why_not_after()) is not None:  # (1), (2)
        return reason
    if writes.are_read and not (writes.are_stored and can_move(cond)):  # (3)
        return f"what {first.op.name} makes is read in the branch, too"
    if (loop := loop_of(cond)) is None:
        return None
    if isinstance(loop, Scan):
        is_one = first.is_located and len(writes.made) == 1
        if writes.are_of_zeros or writes.are_read or is_one:
            return None
        if _is_read_inside(writes) and _may_be_differentiated(cond):
            return "JAX would add windows to zeros in the branches, and those to the cotangent"
        if any(map(is_stacked, (first.array, writes.result))):
            return None
    if _may_be_differentiated(cond) or not is_copied(first.array, cond):
        return "XLA already writes it in place, in steps that take the branch only"
    return None if _is_worth(writes) else "a copy takes no longer than the window by itself"


def _may_be_differentiated(cond: Op) -> bool:
    """Whether JAX may still transpose the program, which is none of its own gradient."""
    return phase_of(cond) != "final" and not is_differentiated(cond)


def _is_worth(writes: BranchWrites) -> bool:
    """Whether a copy of the array takes longer than the window by itself, which is an op more."""
    write, loop, model = writes.made[0], loop_of(writes.cond), cost_model()
    assert loop is not None
    written = {each.made[0].array for each in branch_writes(writes.cond)}
    if unknown_op(loop) is not None and model.are_copied_in_a_row(written, loop.body):
        return False
    return model.is_less_fenced([write.nbytes], write.array.nbytes, whole_is_read=False)


def _is_read_inside(writes: BranchWrites) -> bool:
    """Whether a branch reads of the array as well."""
    inside = (
        op
        for op in writes.made[0].array.users
        if any(branch.contains(op.region) for branch in writes.cond.branches)
    )
    found = map(access, inside)
    return any(each is not None and each.kind == "read" for each in found)
