"""Truth values of a loop's step by which it may be skipped, and when each is known.

- ``carried``: `p` is computed from carries that a skipped step keeps (and from outer values). Then
  only skipped steps follow a skipped step: once false, the predicate stays false.
- ``upfront``: `p` is computed from streams, counters and outer values. Then all predicates are
  known before the loop, and so is the last step that is taken. The predicate may become true again.

If each row of a batch, or each element of an array, draws its own random numbers in the step
(dropout), some row always takes it: such a mask is not used as a predicate.

A mask of numbers alone, those of its elements and of steps, chooses among elements, not steps:
``arange(n) + i < 8``, ``arange(n) % (1 << i) == 0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeGuard, get_args

from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import backward_slice, inputs, reads
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Constant, Op, Scan, Value
from jaxpr_opt.ir.traits import DRAWING, LAYING, is_speculable

Counters = tuple[tuple[Carry, Value], ...]
"""Carries that count, each with what it counts by."""

_TRUTH_PRESERVING = LAYING | {"convert_element_type"}


@remembered
def predicate_root(value: Value) -> Value:
    """The predicate that a mask is a broadcast or conversion of, or a comparison of with 0 or 1."""
    while (op := value.op) is not None:
        if op.name in _TRUTH_PRESERVING or (op.name == "not" and value.dtype == bool):
            value = op.operands[0]
            continue
        inner = value
        if op.name in ("eq", "ne"):
            number = op.operands[1]
            if isinstance(number, Constant) and number.scalar in (0, 1):
                inner = predicate_root(op.operands[0])
        elif op.name == "clamp" and all(isinstance(v, Constant) for v in op.operands[::2]):
            inner = predicate_root(op.operands[1])
        return inner if inner.dtype == bool else value
    return value


@remembered
def candidates_of(scan: Scan) -> tuple[Value, ...]:
    """Bools of the body that choose: selectors of its conds, masks of its selects, what it makes
    factors of; in this order. Then the truth values that these are made of by logic: ``or done (lt
    error bound)``. Then those that it stacks, for loops that choose by them, and their parts.
    """
    of_conds, of_selects, factors = (dict[Value, None]() for _ in range(3))
    for op in scan.body.ops:
        if isinstance(op, Cond) and len(op.branches) == 2:
            found = of_conds
        elif op.name == "select_n":
            found = of_selects
        elif op.name == "convert_element_type" and dtypes.is_inexact(op.result.dtype):
            found = factors
        else:
            continue
        root = predicate_root(op.operands[0])
        if root.dtype == bool and root.region is scan.body and not isinstance(root, Constant):
            found[root] = None
    chosen = of_conds | of_selects | factors
    values = (stack.value for stack in scan.stacks)
    stacked = [v for v in values if v.dtype == bool and v.region is scan.body]
    found = chosen | dict.fromkeys(_parts(scan, chosen)) | dict.fromkeys(stacked)
    return (*(found | dict.fromkeys(_parts(scan, stacked))),)


def _parts(scan: Scan, predicates: Iterable[Value]) -> Iterator[Value]:
    """The truth values of the body of which predicates are made by few levels of logic."""
    level = [*predicates]
    seen = set(level)
    for _ in range(limits.LEVELS_OF_A_PREDICATE):
        made_of: dict[Value, None] = {}
        for value in level:
            if value.op is None or value.op.name not in ("and", "not", "or"):
                continue
            parts = [v for v in value.op.operands if v.region is scan.body and v not in seen]
            roots = [v for v in map(predicate_root, parts) if v.region is scan.body]
            yield from (*parts, *(v for v in roots if v.dtype == bool))
            made_of |= dict.fromkeys(parts)
        level = [*made_of]
        seen.update(level)


def counted(scan: Scan) -> tuple[Counters, set[Value], list[Carry]]:
    """The counters of a loop, their parameters, and the other carries."""
    counters = tuple(_counters(scan))
    counting = {c.param for c, _ in counters}
    return counters, counting, [c for c in scan.carries if c.param not in counting]


def _counters(scan: Scan) -> Iterator[tuple[Carry, Value]]:
    """Integer carries whose next value is `param + step`, `step` from outside, computed
    unconditionally.
    """
    for carry in scan.carries:
        op = carry.next.op
        if op is None or op.name != "add" or op.region is not scan.body or carry.param.shape != ():
            continue
        if not dtypes.is_integer(carry.param.dtype):
            continue
        others = [v for v in op.operands if v is not carry.param]
        if len(others) == 1 and not scan.body.defines(others[0]):
            yield carry, others[0]


def is_of_numbers(predicate: Value) -> bool:
    """Whether a mask is made of the numbers of its elements, and else of those of steps alone."""
    if predicate.size == 1:
        return False
    ops = backward_slice([predicate], lambda v: affine(v) is not None)
    made = {result for op in ops for result in op.results}
    sources = [v for op in ops for v in inputs(op) if v not in made and not isinstance(v, Constant)]
    known = [affine(v) for v in sources]
    return all(known) and any(any(each.strides) for each in known if each is not None)


Kind = Literal["carried", "upfront", "mixed"]
"""When a predicate is known."""


def is_kind(found: str) -> TypeGuard[Kind]:
    """Whether that is an answer of `kind_of`, and not why a predicate is none."""
    return found in get_args(Kind)


def asked_for(predicate: Value, ops: Iterable[Op]) -> set[Value]:
    """What is read to compute a predicate by its slice, and the predicate."""
    return reads(ops) | {predicate}


def kind_of(scan: Scan, *predicate: Value) -> str:
    """When a predicate is known, or one that is made of some values, or why it is none."""
    found = _sources(scan)
    sources = frozenset().union(*(found.get(each, ()) for each in predicate))
    # Condition 3 of exit-loop-early.
    if "effects" in sources:
        return "its predicate has effects or may not end"
    # Condition 2 of exit-loop-early.
    if {"moving", "kept"} <= sources:
        return "mixed"
    if max(each.size for each in predicate) > 1 and "random" in sources:
        return "each element of its predicate is drawn at random: one of them takes the step"
    # Condition 2 of exit-loop-early.
    # Condition 1 of count-steps.
    return "carried" if "kept" in sources else "upfront"


def slice_of(scan: Scan, predicate: Value) -> list[Op]:
    """The ops of a step that compute a predicate."""
    return backward_slice([predicate], lambda v: v.region is not scan.body)


@remembered
def _sources(scan: Scan) -> Mapping[Value, frozenset[str]]:
    """For each value of a step, the kinds of inputs that it depends on: "moving" (streams and
    counters), "kept" (carries that a skipped step keeps), "effects" and "random".
    """
    moving, kept, effects, random = map(frozenset, (["moving"], ["kept"], ["effects"], ["random"]))
    _, counting, _ = counted(scan)
    found = {c.param: moving if c.param in counting else kept for c in scan.carries}
    found |= {stream.param: moving for stream in scan.streams}
    for op in scan.body.ops:
        parts = {found[v] for v in inputs(op) if v in found}
        if not is_speculable(op):
            parts.add(effects)
        if op.name in DRAWING:
            parts.add(random)
        found.update(dict.fromkeys(op.results, frozenset().union(*parts)))
    return found
