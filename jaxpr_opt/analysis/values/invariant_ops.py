"""Ops of a loop's step that compute the same in every step, and are better computed before it.

What XLA makes where it is read, at no cost, stays: hoisted, it would be an array.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.analysis.values.enclosing import is_differentiated
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Constant, Op, Scan, Value
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.traits import (
    ARRANGING,
    ELEMENTWISE,
    REDUCING,
    can_move,
    is_arithmetic,
    is_broadcast,
    rearranges,
)

_SAME_BUFFER = frozenset({"reshape", "squeeze"})
"""Only the shape is another: nothing is moved."""


_KEYS = frozenset({"random_unwrap", "random_wrap"})
"""Only the type is another: a key is two numbers."""


def is_little(op: Op) -> bool:
    """Whether computing it in every step costs next to nothing, if it is small."""
    return is_arithmetic(op) or op.name in ARRANGING or op.name in _KEYS


def invariant_ops(scan: Scan) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Ops of the body that need nothing of a step, in order; and those of them that XLA makes where
    they are read at no cost, and that an op that stays reads, too: the step makes them again.
    """
    leaving = _Leaving(scan)
    return leaving.found(), leaving.again()


class _Leaving:
    """The ops that may leave a body, and those of them that are to."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.leaving: dict[Op, None] = {}
        self.waiting: set[Op] = set()
        """Could leave, but XLA makes them where they are read."""
        self.numbers: set[Op] = set()
        """Those made of constants alone."""
        self.spread: dict[Op, int] = {}
        """Those made of what is repeated, or of narrower numbers, with how many ops that takes."""
        self.widened: set[Op] = set()
        """Those made of narrower numbers."""

    def found(self) -> tuple[Op, ...]:
        for op in self.scan.body.ops:
            if op.is_terminator:
                self.take(op.operands)
            # Condition 4 of hoist-invariant-residuals.
            elif all(map(self.is_outside, op.operands)) and can_move(op) and self.is_exact(op):
                self.decide(op)
        return tuple(self.leaving)

    def again(self) -> tuple[Op, ...]:
        """The ops that the step computes again for those that stay in it."""
        staying = (op for op in self.scan.body.ops if op not in self.leaving)
        read = [v for op in staying if not op.is_terminator for v in inputs(op)]
        return tuple(backward_slice(read, lambda value: not self.is_free(value.op)))

    def is_free(self, op: Op | None) -> bool:
        """Whether XLA makes what leaves where it is read."""
        if op not in self.leaving:
            return False
        return is_broadcast(op) or op in self.numbers or op in self.spread

    def is_outside(self, value: Value) -> bool:
        """Whether a value is there before the loop, or may be."""
        op = value.op
        return op in self.leaving or op in self.waiting or not self.scan.body.defines(value)

    def is_exact(self, op: Op) -> bool:
        """Whether cotangents that steps add up before the loop are as exact as in the step: those
        of what has fewer digits than what it is made of are not, unless they are there already.
        """
        made = [v.dtype for v in op.results if dtypes.is_inexact(v.dtype)]
        read = [v.dtype for v in op.operands if dtypes.is_inexact(v.dtype)]
        least = min(map(dtypes.bits, made), default=None)
        most = max(map(dtypes.bits, read), default=0)
        is_rounded = least is not None and least < most
        # Condition 5 of hoist-invariant-residuals.
        return not is_rounded or phase_of(op) == "final" or is_differentiated(self.scan)

    def decide(self, op: Op) -> None:
        """Whether an op that may leave does."""
        captured = [v for region in op.regions for v in region.captures()]
        are_known = (v.op in self.numbers or _is_of_numbers(v) for v in op.operands)
        if (op.name in REDUCING or is_little(op)) and all(are_known):
            self.numbers.add(op)
        if is_broadcast(op) or _is_view(op) or op in self.numbers or self.is_spread(op):
            self.waiting.add(op)
        # Condition 4 of hoist-invariant-residuals.
        elif all(map(self.is_outside, captured)):
            self.take([*op.operands, *captured])
            self.leaving[op] = None

    def is_spread(self, op: Op) -> bool:
        """Whether making its result of what is repeated, or of narrower numbers, takes no longer
        than reading it.
        """
        if not is_arithmetic(op) or op.result.size <= 1:
            return False
        widens, ops, model = _is_widening(op), 1, cost_model()
        made = [] if widens else [v.op for v in op.operands if not isinstance(v, Constant)]
        for each in made:
            if each is None or each not in self.waiting:
                return False
            if not is_broadcast(each) and each not in self.spread:
                return False
            ops += self.spread.get(each, 0)
        if model.elementwise(op.result, ops) > model.read_windows(op.result.nbytes, 1):
            return False
        if widens or not self.widened.isdisjoint(made):
            if not all(each.name in ELEMENTWISE for each in op.result.users):
                return False  # a product reads an array
            self.widened.add(op)
        self.spread[op] = ops
        return True

    def take(self, values: Iterable[Value]) -> None:
        """Let ops leave the loop whose values are needed by others that do."""
        for op in backward_slice(values, lambda value: value.op not in self.waiting):
            self.waiting.discard(op)
            self.leaving[op] = None


def _is_widening(op: Op) -> bool:
    """Whether an op only makes wider numbers of its operand: of truth values, floats."""
    return op.name == "convert_element_type" and op.operands[0].nbytes < op.result.nbytes


def _is_of_numbers(value: Value) -> bool:
    """Whether a value is made of constants alone, by few ops that cost next to nothing."""
    pending, seen = [value], set[Op]()
    while pending and len(seen) <= limits.WAY_TO_AN_INDEX:
        each = pending.pop()
        if isinstance(each, Constant) or each.op in seen:
            continue
        if each.op is None or not is_little(each.op):
            return False
        seen.add(each.op)
        pending += each.op.operands
    return not pending


def _is_view(op: Op) -> bool:
    """Whether an op moves elements that are best moved where they are read: too many to keep, too
    few of a small array to pass to each step, or for products, which read what is transposed.
    """
    if op.name in _SAME_BUFFER:
        return True
    if not rearranges(op):
        return False
    model, made = cost_model(), op.results[0]
    turned = (model.is_read_transposed(each, made) for each in made.users)
    if not model.is_quick(made.nbytes) or all(turned):
        return True
    few = len(op.operands) == 1 and all(model.is_no_line(v.nbytes) for v in op.results)
    return few and model.is_quick(op.operands[0].nbytes)
