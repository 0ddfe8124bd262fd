"""Multiply all rows of a batch by one matrix, not each by a copy of it, and add up its gradient.

Before::

    b = broadcast_in_dim[dims=(1, 2)] w         # a copy for each row
    y = dot_general[contract=1x1, batch=0x0] x b
    d = dot_general[contract=x, batch=0x0] x c  # a gradient for each row
    s = select_n p d z
    r = reduce_sum[axes=(0,)] s

After::

    y = dot_general x w
    r = dot_general[contract=0x0] x1 c1         # of rows that are chosen

`vmap` of a `cond` passes a copy of all weights to each row of the batch, and its transpose makes a
gradient of them for each. Sound, up to rounding, when

1. a factor is the same for all rows of a batch axis of the product
   (`jaxpr_opt.analysis.windows.repeated`);
2. or what is summed up, along batch axes only, is made of products that nothing else reads, row by
   row: they are moved, added, and rows of them replaced by zeros (then those of both factors are);
3. products are as precise in any shape: a GPU or TPU may multiply matrices of float32 with fewer
   bits, but not vectors;
4. numbers have the range of float32: a product of float16 may overflow where its sum does not.

Cost: a matrix product instead of one for each row, and no copies. It fires where reading these
takes longer than starting such a product.
Source: https://github.com/jax-ml/jax/issues/8409. `jax.vmap` of a product by one matrix gives this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.windows.repeated import is_repeated
from jaxpr_opt.analysis.windows.summed_products import SumOfTerms, sum_of_terms
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.builders.shared_factors import product_of_shared, sum_of_products
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SharedFactor(Match):
    """A product of which one factor is the same along a batch axis."""

    position: int
    """Of the factor."""
    number: int
    """Of the batch axis."""

    @property
    def copies(self) -> int:
        """Bytes of all copies but one."""
        factor, rows = self.op.operands[self.position], self.op.result.shape[self.number]
        return int(factor.nbytes - factor.nbytes // rows)


@dataclass(frozen=True, slots=True, eq=False)
class SharedGradient(Match):
    """A sum over a batch of what is made of products."""

    found: SumOfTerms


@dataclass(frozen=True)
class ShareBatchedFactors(Pass[SharedFactor | SharedGradient]):
    """Copies of a matrix, one for each row of a batch -> the matrix."""

    name: ClassVar[str] = "share-batched-factors"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general", "reduce_sum"})
    needs: ClassVar[frozenset[str]] = frozenset({"dot_general"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SharedFactor | SharedGradient]:
        if not all(is_sized(v.shape) for v in op.operands):
            return
        if op.name == "reduce_sum":
            found = sum_of_terms(op)  # (2)
            if found is not None:
                one = bytes_text(op.result.nbytes)
                says = f"all rows add to the same {one}, not each to its own"
                yield SharedGradient(op, says, found, about=op.operands[0])
            return
        _, batch = numbers_of(op)
        for position, factor in enumerate(op.operands):
            for number, axis in enumerate(batch[position]):
                if factor.shape[axis] > 1 and is_repeated(factor, axis):  # (1)
                    one = bytes_text(factor.nbytes // factor.shape[axis])
                    says = f"all rows are multiplied by the same {one}, not a copy each"
                    yield SharedFactor(op, says, position, number, about=factor)
                    return

    def refuse(self, match: SharedFactor | SharedGradient) -> str | None:
        model = cost_model()
        if isinstance(match, SharedFactor):
            if not model.is_as_precise_in_any_shape(match.op):  # (3)
                return "a product of matrices would have fewer bits"
            if not model.is_less_without_copies(match.copies):
                return "reading the copies takes no longer than starting a product of matrices"
            return None
        products = {t.product: len(t.masks) for t in match.found.terms if t.product}
        if not all(map(model.is_as_precise_in_any_shape, products)):  # (3)
            return "a product of matrices would have fewer bits"
        for product in products:
            if not dtypes.has_common_range(product.result.dtype):  # (4)
                return f"products of {product.result.dtype} may overflow"
        if not any(model.is_less_as_one_product(*each) for each in products.items()):
            return "adding up the products takes no longer"
        return None

    def rewrite(self, match: SharedFactor | SharedGradient, rw: Rewriter) -> None:
        if isinstance(match, SharedFactor):
            made = product_of_shared(match.op, match.position, match.number, rw)
            rw.replace(match.op.result, made)
            rw.erase(match.op)
            return
        rw.replace(match.op.result, sum_of_products(match.found, rw))
        for each in match.found.ops:
            rw.erase(each)
