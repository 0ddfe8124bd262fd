"""Stack the scalars of a step as one row, for loops that read them row by row.

Before::

    a, b = scan[8] carry(...) {
      yield ys(x, y)
    }
    c = scan[8] carry(...) xs(u=a, v=b) {...}

After::

    ab = scan[8] carry(...) {
      row = concatenate x y
      yield ys(row)
    }
    c = scan[8] carry(...) xs(row=ab) {
      u, v = row
      ...
    }

A loop that carries a dictionary of scalars passes its transpose one stack for each residual, and
XLA writes each by an op of its own: with 128 stacks, most of the loop's time. One row is one write.
Sound when

1. they are scalars of one type, numbers and not of weak type, so that a row of them is an array and
   its elements have their type again;
2. all readers of each stack are scans that stream every one of them: a reader of a whole stack
   needs it as it is;
3. nothing differentiates the loop any more (the final phase): the transpose of reading an element
   is a row of zeros for each.

Cost: none since JAX 0.12; a row has as many bytes. Before, XLA:CPU runs a loop op by op if its
steps touch more than 1024 bytes, and counts a row for each element that is read of it: loops of 16
stacks would become slower, and long ones only a quarter faster.
Source: https://github.com/jax-ml/jax/issues/40150.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.residual_transfer import stack_of_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import compile_loops_whole
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Alike(Match):
    """Stacks of scalars of one type that the same ops read."""

    op: Scan
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class JoinScalarStacks(Pass[Alike]):
    """Many stacks of scalars -> one stack of rows."""

    name: ClassVar[str] = "join-scalar-stacks"
    phase: ClassVar[Phase] = "final"  # (3)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Alike]:
        alike: dict[tuple[Any, ...], list[Stack]] = {}
        for stack in op.stacks:
            if _is_scalar(stack.value):  # (1)
                alike.setdefault((stack.result.aval, *stack.result.users), []).append(stack)
        for stacks in alike.values():
            if cost_model().is_too_many_arrays(len(stacks)):
                says = f"{len(stacks)} stacks of scalars become one of rows"
                yield Alike(op, says, tuple(stacks), about=stacks[0].result)

    def refuse(self, match: Alike) -> str | None:
        for stack in match.stacks:
            for op, position in stack.result.uses:
                if not isinstance(op, Scan) or position < op.num_carries:  # (2)
                    return f"{op.name} reads {stack.result.label} whole"
        if not compile_loops_whole():
            return "XLA of this JAX runs a loop that reads rows op by op"
        return None

    def rewrite(self, match: Alike, rw: Rewriter) -> None:
        scan, joined = match.op, match.stacks
        rows = stack_of_rows(scan, (s.value for s in joined), rw)
        numbers = {stack.result: number for number, stack in enumerate(joined)}
        for reader in joined[0].result.users:
            assert isinstance(reader, Scan)
            _read_rows(reader, rows.result, numbers, rw)
        others = [stack for stack in scan.stacks if stack.result not in numbers]
        rw.set_scan(scan, stacks=[*others, rows])


def _is_scalar(value: Value) -> bool:  # (1)
    return value.shape == () and dtypes.is_of_bytes(value.dtype) and not is_weak(value)


def _read_rows(scan: Scan, rows: Value, numbers: Mapping[Value, int], rw: Rewriter) -> None:
    """Make a scan read its streams of scalars from one of rows."""
    replaced = [s for s in scan.streams if s.operand in numbers]
    wanted = [numbers[s.operand] for s in replaced]
    param, first = rw.new_value(rw.row_aval(rows), "row"), scan.body.first
    assert first is not None

    def elements(row: jax.Array) -> list[jax.Array]:
        return [lax.index_in_dim(row, number, keepdims=False) for number in wanted]

    read = rw.insert_many(elements, param, before=first)
    for stream, element in zip(replaced, read, strict=True):
        rw.replace(stream.param, element)
    others = [s for s in scan.streams if s.operand not in numbers]
    rw.set_scan(scan, streams=[*others, Stream(rows, param)])
