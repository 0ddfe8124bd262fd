"""Stack the number of the branch that chose a value, not the value, and choose again where it is
read.

Before::

    h, r, k = scan[8] carry(c=z) xs(i=is) {
      d, w = switch i case 0 {
        m = dot_general c w0
        yield m, w0
      } case 1 {
        m = dot_general c w1
        yield m, w1
      }
      yield carry(d) ys(w)
    }
    g = scan[8, reverse] carry(c=ct) xs(w=r) { f c w }

After::

    h = scan[8] carry(c=z) xs(i=is) {
      d = switch i case 0 { dot_general c w0 } case 1 { dot_general c w1 }
      yield carry(d)
    }
    g = scan[8, reverse] carry(c=ct) xs(i=is) {
      w = switch i case 0 { w0 } case 1 { w1 }
      f c w
    }

Each expert of a mixture returns its weights to the transposed loop: a stack of weights, one for
each step. If the transpose branches on the same number, `drop-dummy-residuals` then reads the
weights in the branch. Sound when

1. the stack is read only row by row, in loops or nests of loops of as many steps; enclosing loops
   may stack it again;
2. in each branch the value is defined outside all these loops, or moved from such values, or
   unspecified; the branches have no effects;
3. the number of the branch is stacked, or is recomputed by basic arithmetic from rows of streams
   and of stacks, none of which is larger. It is not recomputed if it compares what XLA may round
   otherwise there (`jaxpr_opt.analysis.values.rounding`): another branch would be taken.

Cost: a number for each step replaces a value; it fires if the value is larger than a cache line.
`drop-dummy-residuals` handles a value that only one branch has, `narrow-residuals` what a select
chooses.
Source: https://github.com/jax-ml/jax/issues/8239, with several branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.cuts import cut, known_to_readers, outermost
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.analysis.values.rounding import may_differ
from jaxpr_opt.builders.residuals.recomputed_residuals import make_cut
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Cond, Op, Region, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_arithmetic, is_data_movement


@dataclass(frozen=True, slots=True, eq=False)
class StackedChoice(Match):
    """A stack of what a cond chose; `cases` is what it may be."""

    op: Scan
    stack: Stack
    cond: Cond
    cases: tuple[Value, ...]


@dataclass(frozen=True)
class StackChoices(Pass[StackedChoice]):
    """A stack of values that a branch chose -> the branch that was taken."""

    name: ClassVar[str] = "stack-choices"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"cond"})

    def find(self, op: Scan) -> Iterator[StackedChoice]:
        for stack in op.stacks:
            cond = stack.value.op
            if not isinstance(cond, Cond) or cond.region is not op.body:
                continue
            cases = cond.outcomes[cond.results.index(stack.value)].values
            if len({identity(v) for v in cases if not is_undefined(v)}) > 1:
                says = f"the number of the branch is stacked, not {stack.value.label}"
                yield StackedChoice(op, says, stack, cond, cases, at=cond, about=stack.value)

    def refuse(self, match: StackedChoice) -> str | None:
        scan, value = match.op, match.stack.value
        if not routes(match.stack.result, nests=True):
            return f"{value.label} is not read row by row"  # (1)
        nest = outermost(scan, [(match.stack, value)]).body
        for case in match.cases:
            made = _moved(case, match.cond)
            if made is None or any(nest.defines(v) for v in _leaves(case, made)):  # (2)
                return f"{case.label} is made in the loop"
            if case.aval != value.aval:
                return f"{case.label} is a {case.exact_type}, what is stacked a {value.exact_type}"
        if match.cond.effects:
            return "a branch has effects"  # (2)
        if cost_model().is_no_line(value.nbytes):
            return f"{value.label} is as small as the number of a branch"
        return None

    def rewrite(self, match: StackedChoice, rw: Rewriter) -> None:
        scan, cond, stack = match.op, match.cond, match.stack
        regions = [_region(case, cond, rw) for case in match.cases]
        (choice,) = rw.new_cond(cond.selector, regions, like=cond, before=cond).results
        found = cut(scan, [(stack, choice)], _kept(scan, stack, choice))
        assert found is not None
        make_cut(scan, found, rw)


def _moved(case: Value, cond: Cond) -> list[Op] | None:
    """The ops of a branch that move a value to where it is one of the results; None if others make
    it (2).
    """
    ops = backward_slice([case], lambda v: not cond.defines(v))
    return ops if all(is_data_movement(op) or is_undefined(op.results[0]) for op in ops) else None


def _leaves(case: Value, made: list[Op]) -> list[Value]:
    """The values from which a value is only moved: itself if by no op."""
    results = {v for op in made for v in op.results}
    return [v for v in (case, *(v for op in made for v in op.operands)) if v not in results]


def _region(case: Value, cond: Cond, rw: Rewriter) -> Region:
    """A branch that only gives a value."""
    region = rw.new_region()
    made = _moved(case, cond)
    assert made is not None
    copies = rw.clone(made, {}, region.terminator)
    rw.set_outputs(region, [copies.get(case, case)])
    return region


def _kept(scan: Scan, stack: Stack, choice: Value) -> Callable[[Value], bool]:
    """Says of a value of the step whether it is stacked rather than made again."""
    found = [(stack, choice)]
    nest, known = outermost(scan, found).body, known_to_readers(scan, found)

    def is_known(value: Value, made: Value) -> bool:
        within = scan.body.defines(value)
        little = value in known or value.nbytes <= made.nbytes
        return little if within else not nest.defines(value)

    def is_kept(value: Value) -> bool:
        if value is choice:
            return False
        op = value.op
        if op is None or value in known or not is_arithmetic(op) or may_differ(op):  # (3)
            return True
        return not all(is_known(v, value) for v in inputs(op))

    return is_kept
