"""Have XLA compile a loop of small ops as one function.

Before::

    c, ys = scan[1000] carry(x=a) xs(w=ws) { ... }

After::

    c, ys = scan[1000, one_function] carry(x=a) xs(w=ws) { ... }

XLA:CPU calls each op of a loop by itself, unless the loop touches few bytes (before JAX 0.12, at
most 1024). Where ops are small, calling them takes longer than computing them, up to ten times
(jax#26145: solvers of cells, chemical reactions, physics engines). As one function a loop computes
the same, in the same order. Sound when

1. XLA has code for each op in such a function: it fails on others
   (`jaxpr_opt.analysis.steps.one_function`).  A scatter of several windows, as `vmap` makes of a
   write, is written as a loop over them, in the same order. Two additions of one window each may
   become one of two, if XLA is not told that their indices are unique, as that of one window is;
2. no op in it makes a large constant, at which XLA would end the process. Large constants that it
   captures become operands, behind a barrier, so that XLA does not find that they are constant
   (`jaxpr_opt.bridge.compat_lowering`). For other devices than one CPU the loop is lowered as it
   was;
3. XLA does not find an argument that is not read, at which it would end the process, too. So the
   function hands its operands back, except for what each step reads and overwrites; and the loop
   stays a loop: a scan takes two steps or more, and does not run unrolled, and what a `while`
   begins with is behind a barrier;
4. it is the outermost such loop, so that no function is inside of another;
5. nothing differentiates or batches the loop any more (the final phase);
6. its steps hand on few arrays, and reduce few: XLA would compile more for seconds, or minutes.

Cost: none where starting ops takes a good part of a step's time. XLA divides larger ops among
cores. Elsewhere it computes `tanh`, `log1p` and their like for several numbers at once, but number
by number in such a function: 2.5 times as long (400 numbers), if it starts at most eight ops, which
it does in a row. There it also converts numbers one by one (1 ns each): an array of bfloat16 that
is written to is converted to float32 and back (128 numbers: 2 times as long), and for each of
several windows (20,000 rows of 8, 16 windows: 13 times). To write windows one by one takes 3 to 12
ns each: longer than starting few ops in a row (80 windows: 1.25 to 1.5 times). XLA draws random
numbers in loops of small ops: 0.1 to 0.4 of the time (1 to 256 numbers). It asks on JAX 0.10 only:
on 0.11 it is not known, while a function is lowered, whether it is the program's entry.
Source: `SmallWhileLoopHoistingPass` of XLA:CPU, which does so by itself since JAX 0.12, but not
with scatters of several windows: there the windows are written one by one, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.steps.one_function import (
    converted_apart,
    is_divided,
    is_joined,
    is_left,
    is_long_to_compile,
    makes_large_constant,
    unknown_op,
)
from jaxpr_opt.builders.window_by_window import apart, one_by_one
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Phase, Scan, While
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True)
class CompileSmallLoops(Pass[Match]):
    """A loop of small ops -> one function."""

    name: ClassVar[str] = "compile-small-loops"
    phase: ClassVar[Phase] = "final"  # (5)
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan, While)

    def find(self, op: Op) -> Iterator[Match]:
        if any(map(_is_compiled, with_parents(op.parent))):  # (4)
            return
        changes = cost_model().makes_functions or any(map(is_divided, op.walk()))
        if changes and _is_worth(op) and not op.alone:
            yield Match(op, "the loop is compiled as one function")

    def refuse(self, match: Match) -> str | None:
        return _why_not(match.op)

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        loop = match.op
        assert isinstance(loop, Scan | While)
        for op in [op for op in loop.walk() if is_divided(op)]:
            rw.replace(op.result, rw.typed(one_by_one(op), op.result.aval, *op.operands, before=op))
            rw.erase(op)
        for op in [op for op in loop.walk() if is_joined(op)]:
            rw.replace(op.result, rw.typed(apart(op), op.result.aval, *op.operands, before=op))
            rw.erase(op)
        if cost_model().makes_functions:
            rw.set_alone(loop)


@remembered
def _why_not(loop: Op) -> str | None:
    """Why XLA cannot compile a loop as one function; None if it can."""
    assert isinstance(loop, Scan | While)
    makes = cost_model().makes_functions
    if makes and makes_large_constant(loop):
        return "XLA cannot compile a large constant in one function with a loop"  # (2)
    if makes and not is_left(loop):
        return "XLA may leave no loop, as it takes one step, or runs unrolled"  # (3)
    if (unknown := unknown_op(loop)) is not None:  # (1)
        return f"XLA cannot compile {unknown.name} in one function with a loop"
    if makes and not cost_model().is_quick(sum(map(converted_apart, loop.walk()))):
        return "XLA would convert an array of bfloat16 for each window that is written by itself"
    if is_long_to_compile(loop):
        return "XLA would take long to compile one function of so many arrays"  # (6)
    return None


@remembered
def _is_worth(op: Op) -> bool:
    return isinstance(op, Scan | While) and cost_model().is_worth_one_function(op)


def _is_compiled(op: Op) -> bool:
    """Whether an op is, or becomes, one function."""
    return op.alone or (_is_worth(op) and _why_not(op) is None)
