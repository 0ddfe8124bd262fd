"""Values that a gradient stores: its forward pass makes them, or is given them, and its backward
pass reads them.

In the program of a gradient (``value_and_grad``, a training step, a loop around one) both passes
are one straight line. JAX's name stack tells them apart: of the earlier values, an op that was made
by transposing reads exactly those that had to be stored for it. The gradient of a gradient is
transposed twice, and also stores what the first left; so a value is stored if an op reads it that
was transposed more often than the one that made it. All that runs inside a transposed op is part of
it: what a checkpoint recomputes is not stored, its inputs are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.ir.graph import (
    Call,
    Cond,
    Constant,
    Graph,
    Op,
    Region,
    Remat,
    Scan,
    Use,
    Value,
    While,
)

Kind = Literal["argument", "constant", "intermediate"]

SAME = frozenset({"optimization_barrier", "reduce_precision"})
"""What they give is what they are given: a checkpoint rounds what its policy saves to the precision
that it has.
"""


@dataclass(frozen=True, slots=True)
class Saved:
    """One value that a backward op reads and a forward op, or the caller, has made."""

    value: Value
    """As it crosses: for a value of a loop's step, the stack of all steps."""
    made: Value
    """The innermost value of the step that made it."""
    needed_by: tuple[Op, ...]
    """The backward ops that read it, innermost, in program order."""
    lengths: tuple[int, ...]
    """Trip counts of the loops it is stacked over, outermost first."""
    kind: Kind
    """`argument`: of the program, or of the loop's step that the gradient is in, which is there
    anyway; `constant`: an array that the function has captured."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, the trip counts multiplied in."""
        return self.value.nbytes


def saved(graph: Graph, handed_over: Iterable[Value] | None = None) -> tuple[Saved, ...]:
    """The values that the gradients in a graph keep, each once, in the order in which they are
    needed.

    Scalars that are written in the program are not counted, unless they are handed over; arrays it
    has captured are.

    Args:
      graph: a program with both halves of a gradient in it.
      handed_over: where it is known which values one half hands over to the other, these: what
        the other half never reads is listed, too, `needed_by` nobody.
    """
    depth: dict[Op, int] = {}
    crossing: dict[Value, dict[Use, None]] = {}
    captured: dict[int, Value] = {}
    cotangents = set(graph.cotangents)
    for op in graph.walk():
        depth[op] = max(op.source.transposes, depth.get(op.parent, 0) if op.parent else 0)
        for position, value in enumerate(op.operands):
            one = _one(value, captured)
            if one is not None and one not in cotangents and depth[op] > _depth(one, depth):
                crossing.setdefault(one, {})[Use(op, position)] = None
    if handed_over is not None:
        values = [_one(value, captured) or value for value in handed_over]
        crossing = {value: crossing.get(value, {}) for value in values}
    return tuple(
        _saved(value, list(uses)) for value, uses in crossing.items() if not is_undefined(value)
    )


def kept(graph: Graph) -> tuple[Saved, ...]:
    """The values that the gradients in a graph keep in memory of their own: no arguments, no
    captured arrays.
    """
    return tuple(each for each in saved(graph) if each.kind == "intermediate")


def kept_bytes(graph: Graph) -> int:
    """Bytes that the gradients in a graph keep.

    Reports, lint, budgets and tests all mean this figure.
    """
    return sum(each.nbytes for each in kept(graph))


def _one(value: Value, captured: dict[int, Value]) -> Value | None:
    """The value that stands for all reads of it; None for a scalar that is written down."""
    if not isinstance(value, Constant):
        return value
    return captured.setdefault(id(value.value), value) if value.shape else None


def _saved(value: Value, uses: list[Use]) -> Saved:
    made, lengths = _origin(value)
    return Saved(value, made, _needed_by(uses), lengths, _kind(value))


def _depth(value: Value, depth: dict[Op, int]) -> int:
    """How often what makes the value was transposed; 0 for what is not computed."""
    owner = value.owner.owner if isinstance(value.owner, Region) else value.owner
    return depth[owner] if isinstance(owner, Op) else 0


def _kind(value: Value) -> Kind:
    if isinstance(value, Constant):
        return "constant"
    return "intermediate" if value.op is not None else "argument"


def _origin(value: Value) -> tuple[Value, tuple[int, ...]]:
    """The innermost value of a step that a value comes from, and the loops it has left since."""
    lengths: list[int] = []
    while (inner := inside(value)) is not None:
        if isinstance(value.op, Scan) and value.op.stack_of(value) is not None:
            lengths.append(value.op.length)
        value = inner
    return value, tuple(lengths)


def inside(result: Value) -> Value | None:
    """The value in its region that a result of a structured op was; of an argument of a call, that
    outside of it.
    """
    op = result.op
    if op is None:
        region = result.region
        if region is not None and isinstance(region.owner, Call):
            return region.owner.operands[result.position]
        return None
    index = result.position
    match op:
        case Cond():
            values = op.outcomes[index].values
            return next((v for v in values if v.op and not is_undefined(v)), values[-1])
        case Scan() | While() | Remat() | Call():
            return _written(op, index) or op.regions[-1].outputs[index]
        case _:
            return op.operands[index] if op.name in SAME else None


def _written(op: Op, index: int) -> Value | None:
    """The slices that each step writes into a buffer that a loop carries and finds empty.

    That is what a stack becomes in a loop that stops early.
    """
    if not isinstance(op, While | Scan) or index >= len(op.carries):
        return None
    carry = op.carries[index]
    writer = carry.next.op
    if not is_undefined(carry.init) or writer is None or writer.name != "dynamic_update_slice":
        return None
    buffer, slice_, *_ = writer.operands
    return _reshaped(slice_) if buffer is carry.param else None


def _reshaped(value: Value) -> Value:
    """The same numbers as they were before they got another shape."""
    while (op := value.op) is not None and op.name in {"broadcast_in_dim", "reshape"}:
        if op.operands[0].nbytes != value.nbytes:
            break
        value = op.operands[0]
    return value


def _needed_by(crossing: list[Use]) -> tuple[Op, ...]:
    """The innermost ops that read a value, followed into and out of regions."""
    found: dict[Op, None] = {}
    pending, seen = crossing[::-1], set(crossing)
    while pending:
        use = pending.pop()
        onward = [use for value in _passed_on(use) for use in value.uses]
        if not onward:
            found[use.op] = None
        pending += [each for each in reversed(onward) if each not in seen]
        seen.update(onward)
    return tuple(found)


def _passed_on(use: Use) -> Iterator[Value]:
    """The values that an operand becomes, where an op does nothing else to it."""
    op, position = use
    match op:
        case Scan() | Call():
            yield op.regions[0].params[position]
        case While():
            yield from (region.params[position] for region in op.regions)
        case _ if op.is_terminator and op.parent is not None:
            around = op.parent
            if not isinstance(around, While):
                yield around.results[position]
            if isinstance(around, Scan) and position < around.num_carries:
                yield around.body.params[position]
        case _:
            return
