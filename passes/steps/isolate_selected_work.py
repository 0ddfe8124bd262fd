"""Turn what a step computes for a select into a branch, in a loop and in its transpose.

Before::

    h_n, r = scan[n] carry(h=h_0) xs(p=ps) {
      a = f h
      v = exp a
      yield carry(select p v a) ys(v)
    }
    g_0 = scan[n, reverse] carry(g=1.0) xs(p=ps, v=r) {
      d = mul (select p g 0.0) v
      e = add (select p 0.0 g) d
      yield carry(transpose_f e)
    }

After::

    h_n, r = scan[n] carry(h=h_0) xs(p=ps) {
      a = f h
      s, u = cond p { v = exp a; yield v, v } else { a, undefined }
      yield carry(s) ys(u)
    }
    g_0 = scan[n, reverse] carry(g=1.0) xs(p=ps, v=r) {
      e = cond p { d = mul g v; yield d } else { g }
      yield carry(transpose_f e)
    }

``where(p, f(x), x)`` computes `f` in each step, stores its residuals, and multiplies zeros by them.
Each becomes a branch: of one truth value, or of one for each row of a batch, if some row takes it.
The transpose comes first; then nothing reads the residuals of other steps. Sound when

1. what others read of the ops is known where the predicate is false everywhere: another value of
   the step, or one number. In a loop of cotangents a product with zeros is zero, as for the zeros
   that JAX knows while tracing;
2. or nothing reads it there: a row of a stack, which loops read in branches of the same predicate;
3. what such a loop makes of the row has no effects and terminates, whatever the row holds;
4. the step has no effects and does not communicate; where XLA may insert collectives into the ops,
   all devices have the same predicate, and none divides the rows of a batch;
5. JAX does not differentiate the loops any more: it would multiply zeros by functions of the row.

It fires where the ops take so much longer than asking that it is worth it even if all steps take
them, innermost selects first. It does not fire where the predicate skips whole steps of a loop that
stacks (`isolate-skipped-steps`), nor on a loop whose residuals are needed in all steps, but where
several cases compute something of their own, `at_last`, and no other predicate skips steps (in a
branch `exit-loop-early` would not see it): `skip-untaken-branches` looks at what is left.
Source: https://github.com/jax-ml/jax/issues/8409.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.chosen_work import Division, divisions
from jaxpr_opt.analysis.residuals.same_choices import borrowed
from jaxpr_opt.analysis.steps.choices import choices_of, chooser
from jaxpr_opt.analysis.steps.skips import Skip, find_skips
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.builders.steps.chosen_branches import into_branches
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Phase, Scan
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move, may_depend_on


@dataclass(frozen=True, slots=True, eq=False)
class Chosen(Match):
    """A scan, and what its step computes in some cases only."""

    op: Scan
    division: Division


@dataclass(frozen=True)
class IsolateSelectedWork(Pass[Chosen]):
    """What a step computes and drops, and its transpose -> branches."""

    at_last: bool = False
    """No pass looks at residuals any more: also where cases compute something of their own."""

    name: ClassVar[str] = "isolate-selected-work"
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True  # (5)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Chosen]:
        is_transposed = carries_cotangents(op)
        if not (is_transposed or op.stacks or self.at_last) or not cost_model().may_branch(op.body):
            return
        choices = (*choices_of(op), *borrowed(op))
        for found in sorted(divisions(choices), key=_choosing):  # (1, 2, 3)
            choice = found.choice
            is_wanted = is_transposed or found.leaves_out or (self.at_last and found.divides)
            if found.layers and is_wanted:
                says = f"{len(found.ops)} ops run only in steps that take what they compute"
                yield Chosen(op, says, found, about=choice.asked)

    def refuse(self, match: Chosen) -> str | None:
        scan, choice = match.op, match.division.choice
        skips = [each for each in find_skips(scan) if isinstance(each, Skip)]
        is_its = [each.predicate is choice.asked for each in skips]
        writes = any(op.name in WRITES for op in scan.body.ops)  # under `vmap` of whole arrays
        is_left = not (scan.stacks or choice.asked.shape or writes)
        if (any(is_its) and not is_left) or (self.at_last and not all(is_its)):
            return "the loop skips whole steps"
        if not all(map(can_move, scan.body.ops)):  # (4)
            return "a step has effects or communicates"
        if not may_depend_on(choice.asked, match.division.ops, scan):  # (4)
            return "XLA may insert collectives into these ops, so every device must run them"
        if has_divided_rows(choice.asked, scan):  # (4)
            return "XLA may divide the rows over devices, which would ask each other"
        return None

    def rewrite(self, match: Chosen, rw: Rewriter) -> None:
        into_branches(match.division, rw)


def _choosing(found: Division) -> int:
    """How many ops of a branch would choose themselves: the innermost choice comes first."""
    asked = found.choice.asked
    selects = (op for op in found.ops if op.name == "select_n")
    return sum(chooser(op) is not asked for op in selects)
