"""Undo the writes to a carried buffer in the transposed loop, instead of stacking the buffer in
every step.

Before::

    c_n, r = scan[n] carry(c=c_0) xs(i=is) {
      y = f(c)
      d = dynamic_update_slice c y i
      yield carry(d) ys(c)
    }
    a_n = scan[n, reverse] carry(a=a_0) xs(v=r, i=is) { b = ..v..; yield carry(b) }

After::

    c_n, o = scan[n] carry(c=c_0) xs(i=is) {
      y = f(c)
      o = dynamic_slice c i
      d = dynamic_update_slice c y i
      yield carry(d) ys(o)
    }
    a_n = scan[n, reverse] carry(a=a_0, d=c_n) xs(o=o, i=is) {
      v = optimization_barrier (dynamic_update_slice d o i)
      b = ..v..
      yield carry(b, v)
    }

Each write in a step makes a version of the buffer. The reading loop starts with the last version of
the last step and undoes the writes, last first, so it meets every version. The overwritten value is
written back, not computed back, so the version is exact whatever the window: indices that are
clamped are clamped alike, rows that are dropped are dropped again. Where no other step writes, the
overwritten value is what entered the loop: if that is one number, as in an array of zeros, it is
neither read nor stacked.

Sound when

1. a step makes its carry from the one before by writes of windows and by nothing else;
2. every use of a stacked version is as rows of a loop that takes the steps in the opposite order,
   or of a nest of loops, if loops around the one that writes stack the versions again;
3. the stack holds a version, or a view of one that can be remade from it (the transpose in ``q @
   keys.T``, a rounded cache, the pages in a table): by data movement, basic arithmetic and gathers
   that read nothing else of the step; by windows, whose indices are stacked (the caches of a layer,
   where an inner loop takes the layers); and by writes of windows, which are stacked;
4. where the reading loop may stop early, it skips only steps in which the forward loop has kept the
   buffer. Such a step writes back what is there, so it is still skipped;
5. in a nest, a loop around the reader carries the buffer from sweep to sweep if the loop around the
   writes changes it in no other way, both take all steps, in opposite orders, and the reader runs
   once in each of them. Else the last version of each sweep is stacked.

Cost: one buffer for each reading loop and n windows (with their indices, if those are not stored
yet) replace n buffers; it fires if that is smaller by a factor.

XLA copies the whole buffer in each step if it may read one version after it has made the next, and
repeats a write in every fusion that reads its result. Barriers prevent both. In the reverse loop,
the writes that lead to the last version that is read come before all else, the other writes after
all reads; in the forward loop `read-before-overwriting` adds the barriers.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 4 (recording prevalues).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.residuals.versions import Versions, stacked_versions
from jaxpr_opt.analysis.windows.window_primitives import UPDATE, places, replaced
from jaxpr_opt.builders.residual_transfer import drop_stacks
from jaxpr_opt.builders.residuals.undone_writes import walk_back
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class StackedVersions(Match):
    """Versions of a carry that are stacked."""

    op: Scan
    versions: Versions


@dataclass(frozen=True)
class UndoCarriedWrites(Pass[StackedVersions]):
    """Stack what a write to a carried buffer replaces, not the buffer; write it back in reverse."""

    name: ClassVar[str] = "undo-carried-writes"
    after: ClassVar[tuple[After, ...]] = (
        After("narrow-residuals", "a stacked version of a buffer costs nothing to recompute from"),
    )
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[StackedVersions]:
        for each in stacked_versions(op):  # (3)
            count = op.length * len(each.stacks)
            says = (
                f"only the last of {count} versions of {each.name} is stored, and writes are undone"
            )
            yield StackedVersions(op, says, each)

    def refuse(self, match: StackedVersions) -> str | None:
        return match.versions.why_not_undone()  # (1), (2), (4)

    def rewrite(self, match: StackedVersions, rw: Rewriter) -> None:
        scan, versions = match.versions.scan, match.versions
        walks = versions.walks
        assert not isinstance(walks, str)
        outermost = max((walk.pairs for walk in walks), key=len)[-1][0]
        kept = [_keep(write, versions, outermost, rw) for write in versions.writes]
        for walk in walks:
            walk_back(versions, walk, kept, rw)
        drop_stacks(scan, versions.stacks, [walk.route for walk in walks], rw)


def _keep(write: Op, versions: Versions, outermost: Scan, rw: Rewriter) -> Value:
    """The window that a write replaces, read before the write if it is not known."""
    position, number = UPDATE[write.name], versions.replaced
    if number is not None:
        shape, dtype = write.operands[position].shape, write.operands[0].dtype
        return rw.insert(lambda: lax.full(shape, number, dtype), before=outermost)
    return rw.insert(partial(replaced, write), write.operands[0], *places(write), before=write)
