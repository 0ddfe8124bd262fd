"""Open a checkpoint that keeps nothing apart.

Before, in the transpose of a loop over checkpointed steps::

    g = scan[100, reverse] carry(a=ct) xs(r=xs) {
      b = remat {
        y = tanh r
        d = one_minus_square y
        e = mul a d
        yield e
      }
      yield carry(b)
    }

After::

    g = scan[100, reverse] carry(a=ct) xs(r=xs) {
      y = tanh r
      d = one_minus_square y
      e = mul a d
      yield carry(e)
    }

JAX puts a barrier around what a transposed checkpoint computes again, so that XLA does not take the
values from where they were computed first. To the passes, too, its body is closed. Sound always:
the ops are the same. A checkpoint keeps nothing apart if

1. it only moves or broadcasts data: there is nothing to compute again; or nothing differentiates
   any more (the final phase), and
2. JAX has not differentiated it: then it lowers it without a barrier; or
3. it is the only one in the step of a loop: the values were computed first in another loop, from
   which XLA takes none. With several in a step, the barriers keep XLA from computing the values of
   all at the same time. What is the same in each step, as slices of outer weights, XLA then
   computes before the loop: it takes no more memory than the rows that the loop reads; or
4. the device ignores it: it is outside of loops, or beside an op that it computes again, and XLA
   drops its barriers, and takes the values from where they were computed first. So under a memory
   budget only: what is computed once is counted once, and segments of it may be computed again by
   other means.

Source: `prevent_cse` of `jax.checkpoint`, which its documentation advises to turn off in a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.bridge.parameters import is_in_transpose
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.devices import ignores_checkpoints
from jaxpr_opt.ir.graph import Op, Region, Remat, Scan, Value
from jaxpr_opt.ir.nesting import is_in_a_loop, phase_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SPREADING, is_data_movement, is_plainly_called
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True)
class OpenCheckpoints(Pass[Match]):
    """A remat that keeps nothing apart -> its ops."""

    name: ClassVar[str] = "open-checkpoints"
    anchors: ClassVar[tuple[type[Op], ...]] = (Remat,)
    cleanup: ClassVar[bool] = True

    def find(self, op: Op) -> Iterator[Match]:
        assert isinstance(op, Remat)
        ops = op.body.ops
        if all(each.is_terminator or is_data_movement(each) for each in ops):  # (1)
            yield Match(op, "there is nothing to recompute")
        elif is_plainly_called(op):  # (2, 3)
            yield Match(op, "XLA takes its values from nowhere else")
        elif cost_model().is_bounded and _is_ignored(op):  # (4)
            yield Match(op, "XLA computes nothing again for it")

    def refuse(self, match: Match) -> str | None:
        remat, step = match.op, match.op.region
        if step is None or not isinstance(step.owner, Scan) or not is_in_transpose(remat):
            return None  # it runs the same ops
        once, rows = _of_all_steps(remat.regions[0], step), step.owner.streams
        if once > sum(stream.operand.nbytes for stream in rows):  # (3)
            return f"XLA would compute {bytes_text(once)} before the loop"
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        remat = match.op
        values = rw.inline(remat.regions[0], (), remat)
        for result, value in zip(remat.results, values, strict=True):
            rw.replace(result, value)
        rw.erase(remat)


def _is_ignored(remat: Remat) -> bool:
    """Whether a checkpoint has been differentiated, if ever, and XLA ignores it."""
    if phase_of(remat) == "differentiable" or not ignores_checkpoints():
        return False
    return not is_in_a_loop(remat) or any(_is_computed_beside(op, remat) for op in remat.body.ops)


def _is_computed_beside(op: Op, remat: Remat) -> bool:
    """Whether an op in a checkpoint computes what one beside the checkpoint does."""
    if op.is_terminator or is_data_movement(op):
        return False
    others = (user for value in op.operands[:1] for user in value.users)
    return any(
        other.region is remat.region
        and (other.name, other.operands, other.params) == (op.name, op.operands, op.params)
        and [v.aval for v in other.results] == [v.aval for v in op.results]
        for other in others
    )


def _of_all_steps(body: Region, step: Region) -> int:
    """The bytes of what a checkpoint computes of outer values alone."""
    same: set[Value] = set()
    nbytes = 0
    for op in body.ops:
        read = inputs(op)
        varies = any(v not in same and (body.defines(v) or step.defines(v)) for v in read)
        if varies or op.is_terminator or op.name in SPREADING:
            continue
        same.update(op.results)
        nbytes += 0 if is_view(op) else sum(result.nbytes for result in op.results)
    return nbytes
