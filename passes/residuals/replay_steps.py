"""Store what a step starts from and replay the step in the transposed loop, where storing its
results costs more.

Before::

    c_n, r = scan[n] carry(c=c_0) {
      d, v = cond p { h = ..c..; yield f(h), g(h) } else { c, undefined }
      yield carry(d) ys(v)
    }
    a_n = scan[n, reverse] carry(a=a_0) xs(v=r) { b = cond q { ..v.. } else { a }; yield carry(b) }

After::

    c_n, s = scan[n] carry(c=c_0) { ...; yield carry(d) ys(c) }
    a_n = scan[n, reverse] carry(a=a_0) xs(c=s) {
      b = cond q { h = ..c..; v = g(h); ..v.. } else { a }
      yield carry(b)
    }

A step may be cut from its transpose anywhere between its inputs and the residuals that AD has
chosen. This pass cuts at the inputs or not at all; `narrow-residuals` chooses among all cuts.

A stack is a whole buffer, however few steps are taken. So a loop that may stop early stores its
residuals only if the buffers cost no more than replaying a single step: then storing is never the
worse choice, whatever the number of steps. Replaying costs one more forward step for each step
taken, whatever the bound. So in a longer loop the first steps store, as many as have their rows
filled in the time of one replay, and the others are replayed, in loops of their own::

    c_s, r = scan[s] carry(c=c_0) { ...; yield carry(d) ys(v) }
    c_n, t = scan[n - s] carry(c=c_s) { ...; yield carry(d) ys(c) }
    a_s = scan[n - s, reverse] carry(a=a_0) xs(c=t) { ... }
    a_n = scan[s, reverse] carry(a=a_s) xs(v=r) { ... }

Nothing is replayed until more steps are taken. All steps are replayed if two more loops take as
long as they save, and where XLA may divide the rows of arrays over devices, because the rows are
split here. All store if the loops take longer than filling the rows of the others.

Loops of steps that no predicate guards, as they are cheap, would replay all: they stay unchanged.
So do those of which a step takes several times as long as the step back: of random numbers that it
draws, or of an argument of a maximum, nothing is transposed, and they would take twice as long.

A batch that knows its steps beforehand (from the lengths of sequences) takes most of them, as it is
padded to its longest row, and fills no rows of the others. So a step that stores is compared with
one that is replayed: replaying all takes 1.2 times as long (a recurrent network, jax 0.12). Any
loop that knows its steps is left unchanged if the residuals come from transcendental functions,
and the transposed step shifts them and combines the shifted parts (CTC, stencils): XLA would
compute a function once for each shifted read, one number at a time (9 times the time of plain JAX).

Sound when

1. every use of a residual is row by row, in a loop or a nest of loops of as many steps, so that row
   `i` is needed with row `i` only, and any other array of as many rows can take the same way;
2. what is replayed has no effects, terminates, does not communicate, is pointwise where XLA may
   divide arrays over devices, and reads nothing of the forward loop but its carries and streams,
   and outer values that are still available;
3. the value of a taken step replaces the residual only if the residual of a skipped step is
   unspecified: some op may read it;
4. truth values that are one number in all skipped steps stay residuals if they depend on a
   comparison of what XLA may round otherwise in the other loop
   (`jaxpr_opt.analysis.values.rounding`): else a step that was skipped might be transposed as one
   that was taken. Stored, they also let the transposed loop stop early;
5. what is compared with its own maximum, or with anything else of which XLA may round both
   otherwise in the other loop, is not computed again if the comparison is; nor is the comparison.

It fires only on loops that skip. Where memory has a price (`optimize(memory=...)`), the first steps
are replayed, too.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 12 (store or replay); Chen et al.,
arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.cuts import Cut
from jaxpr_opt.analysis.residuals.replayed_steps import is_replayed, replayed_cut, steps_storing
from jaxpr_opt.analysis.residuals.replays import replay
from jaxpr_opt.analysis.residuals.skipped_segments import skipped_segments
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.analysis.residuals.stencils import meets_neighbours
from jaxpr_opt.analysis.steps.questions import is_asked_each_step
from jaxpr_opt.analysis.steps.skips import find_skip, has_branch
from jaxpr_opt.builders.residuals.recomputed_residuals import make_cut
from jaxpr_opt.builders.steps.pieces import in_two
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import TRANSCENDENTAL, is_pointwise, is_speculable
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedLoop(Match):
    """A forward loop that skips, and the cut at its step's inputs."""

    op: Scan
    cut: Cut
    storing: int
    """How many of its first steps go on storing."""


@dataclass(frozen=True)
class ReplaySteps(Pass[ReplayedLoop]):
    """Stored residuals of a step -> its inputs, and the step replayed."""

    name: ClassVar[str] = "replay-steps"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[ReplayedLoop]:
        full = replayed_cut(op)
        if full is None or not is_replayed(op, full) or skipped_segments(op) is not None:
            return
        if (storing := steps_storing(op, full)) < op.length:
            new = (full.old_bytes * storing + full.new_bytes * (op.length - storing)) // op.length
            steps = f"each step taken after the first {storing}" if storing else "each step taken"
            what = f"residuals take {bytes_text(new)}, not {bytes_text(full.old_bytes)}"
            yield ReplayedLoop(op, f"the transposed loop replays {steps}: {what}", full, storing)

    def refuse(self, match: ReplayedLoop) -> str | None:
        if _takes_all_steps(match.op, match.cut):
            return "steps are too cheap to skip, so all of them would be replayed"
        if _is_computed_often(match.op, match.cut):
            return "XLA would compute it once for each shifted read, one number at a time"
        for op in match.cut.ops:
            if not is_speculable(op):  # (2)
                return f"replaying it would repeat {op.name}"
            if is_divided(op) and not all(is_pointwise(each) for each in op.walk()):  # (2)
                return f"XLA may insert a collective into {op.name}, and replaying would repeat it"
        return None

    def rewrite(self, match: ReplayedLoop, rw: Rewriter) -> None:
        found = replay(match.op)
        if not match.storing or found is None:
            make_cut(match.op, match.cut, rw)
            return
        _, others = in_two(found, match.storing, rw)
        full = replayed_cut(others)
        assert full is not None, "the other steps hand over what all of them did"
        make_cut(others, full, rw)


def _takes_all_steps(scan: Scan, cut: Cut) -> bool:
    """Whether skipped steps are computed, as a select chooses, and no loop stops to save them."""
    skip = find_skip(scan)
    assert skip is not None
    if has_branch(skip):
        return False
    users = (user for stack, _ in cut.residuals for user in stack.result.users)
    loops = {op for op in (scan, *users) if isinstance(op, Scan)}
    skips = [each for op in loops if (each := find_skip(op)) is not None]
    return not any(map(is_asked_each_step, skips))


def _is_computed_often(scan: Scan, cut: Cut) -> bool:
    """Whether most steps are taken, and XLA would compute their functions several times."""
    skip = find_skip(scan)
    if skip is None or skip.kind != "upfront" or cost_model().is_traded:
        return False
    if not any(each.name in TRANSCENDENTAL for op in cut.ops for each in op.walk()):
        return False
    ways = (routes(stack.result) or () for stack, _ in cut.residuals)
    return meets_neighbours([row for found in ways for _, row in found])
