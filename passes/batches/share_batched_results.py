"""Compute once what is the same in all rows of a batch.

Before::

    b = broadcast_in_dim[dims=(1, 2)] w         # a copy for each row
    l = cholesky b

After::

    l1 = cholesky w
    l = broadcast_in_dim[dims=(1, 2)] l1

`vmap` of a `cond` passes a copy of everything the branches read to each row of the batch: what they
compute of it alone, each row computes again. Sound, up to rounding, when

1. all operands are the same in all rows of an axis of the results, by what makes them
   (`jaxpr_opt.analysis.batches.repeated`), and the op computes each row by itself;
2. neither types nor the op say which device holds which rows.

Cost: one row instead of all. It fires where computing them takes longer than starting an op. XLA
computes elementwise ops once by itself.
Source: https://github.com/jax-ml/jax/issues/8409. `jax.vmap` without a `cond` gives this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.batches.repeated import is_repeated
from jaxpr_opt.bridge.parameters import is_resharded
from jaxpr_opt.builders.batches.shared_results import computed_once
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import CUMULATIVE, OF_MATRICES, REDUCING


@dataclass(frozen=True, slots=True, eq=False)
class SharedResult(Match):
    """An op of which all rows along an axis of the results are the same."""

    axis: int


@dataclass(frozen=True)
class ShareBatchedResults(Pass[SharedResult]):
    """An op for each row of a batch, all the same -> one."""

    name: ClassVar[str] = "share-batched-results"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = CUMULATIVE | OF_MATRICES | REDUCING | {"sort"}
    rows: ClassVar[bool] = True

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SharedResult]:
        first, values = op.results[0], (*op.operands, *op.results)
        if is_resharded(op) or any(map(is_sharded, values)):  # (2)
            return
        if not all(is_sized(v.shape) for v in values):
            return
        for axis, rows in enumerate(first.shape):
            if rows > 1 and is_repeated(first, axis):  # (1)
                says = f"{op.name} for one row, of {rows} that are the same"
                yield SharedResult(op, says, axis, about=first)
                return

    def refuse(self, match: SharedResult) -> str | None:
        if not cost_model().is_less_once(match.op, match.op.results[0].shape[match.axis]):
            return "computing it for all rows takes no longer"
        return None

    def rewrite(self, match: SharedResult, rw: Rewriter) -> None:
        made = computed_once(match.op, match.axis, rw)
        for old, new in zip(match.op.results, made, strict=True):
            rw.replace(old, new)
        rw.erase(match.op)
