"""Make one product, or one scatter, of those of a batch that are summed up.

Before::

    d = dot_general[contract=x, batch=0x0] x c  # a gradient for each row
    s = select_n p z d
    r = reduce_sum[axes=(0,)] s
    s1 = scatter-add[operand_batching_dims=(0,)] z1 i u
    r1 = reduce_sum[axes=(0,)] s1

After::

    r = dot_general[contract=0x0] x1 c1         # of rows that are chosen
    r1 = scatter-add z2 i u

The mean of the gradients of a batch has this form, and the transpose of what `vmap` of a `cond`
passes to each row of the batch: a gradient of all weights for each, and a table of zeros. Sound, up
to rounding, when

1. what is summed up, along batch axes only, is made of products and scatters that nothing else
   reads, row by row: they are moved, added, and rows of them replaced by zeros (then those of both
   factors, or of what is added, are);
2. what a scatter adds to is zeros, or is summed up, too. One that does not add writes into zeros,
   and no window of a row twice;
3. products are as precise in any shape: a GPU or TPU may multiply matrices of float32 with fewer
   bits, but not vectors;
4. numbers have the range of float32: a product of float16 may overflow where its sum does not. If
   they have fewer bits than float32, no two windows of a row are one: they are rounded at each
   addition;
5. no type says which device holds which rows.

Facts about the indices of a batch (sorted, unique) need not hold across rows, and are dropped.

Cost: a matrix product instead of one for each row, if adding these up takes longer than choosing
rows of the factors; one table of zeros instead of one for each row.
Source: https://github.com/jax-ml/jax/issues/8409. The gradient of a mean has this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.batches.batch_sums import SumOfTerms, sum_of_terms
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, may_coincide
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.batches.batch_sums import make_sum
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text

PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})


@dataclass(frozen=True, slots=True, eq=False)
class SummedBatch(Match):
    """A sum over a batch of what is made of products and scatters."""

    found: SumOfTerms


@dataclass(frozen=True)
class SumBatchesAtOnce(Pass[SummedBatch]):
    """Products or scatters of a batch that are summed up -> one."""

    name: ClassVar[str] = "sum-batches-at-once"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"reduce_sum"})
    needs: ClassVar[frozenset[str]] = PRODUCTS | SCATTERS

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SummedBatch]:
        if not is_sized(op.operands[0].shape) or is_sharded(op.operands[0]):  # (5)
            return
        found = sum_of_terms(op)  # (1, 2)
        if found is not None and found.made_by(self.needs):
            one = bytes_text(op.result.nbytes)
            says = f"all rows add to the same {one}, not each to its own"
            yield SummedBatch(op, says, found, about=op.operands[0])

    def refuse(self, match: SummedBatch) -> str | None:
        model = cost_model()
        products, scatters = (match.found.made_by(names) for names in (PRODUCTS, SCATTERS))
        if not all(map(model.is_as_precise_in_any_shape, products)):  # (3)
            return "a product of matrices would have fewer bits"
        for product in products:
            if not dtypes.has_common_range(product.result.dtype):  # (4)
                return f"products of {product.result.dtype} may overflow"
        for scatter in scatters:
            if dtypes.is_half(scatter.result.dtype) and may_coincide(scatter):  # (4)
                return f"windows of a row may be one, and {scatter.result.dtype} has few bits"
        masks = {product: len(term.masks) for product, term in products.items()}
        if not scatters and not any(model.is_less_as_one_product(*each) for each in masks.items()):
            return "adding up the products takes no longer"
        return None

    def rewrite(self, match: SummedBatch, rw: Rewriter) -> None:
        rw.replace(match.op.result, make_sum(match.found, rw))
        for each in match.found.ops:
            rw.erase(each)
