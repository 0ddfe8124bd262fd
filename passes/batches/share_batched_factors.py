"""Multiply all rows of a batch by one matrix, not each by a copy of it.

Before::

    b = broadcast_in_dim[dims=(1, 2)] w         # a copy for each row
    y = dot_general[contract=1x1, batch=0x0] x b

After::

    y = dot_general x w

`vmap` of a `cond` passes a copy of all weights to each row of the batch. Of a convolution it makes
one in groups, with a part of the kernel for each row. Sound, up to rounding, when

1. a factor is the same for all rows of a batch axis of the product, or for so many at a time, as
   where heads of queries share one of keys; or a kernel consists of copies, one for each group of
   features (`jaxpr_opt.analysis.batches.repeated`);
2. products are as precise in any shape: a GPU or TPU may multiply matrices of float32 with fewer
   bits, but not vectors;
3. neither types nor the op say which device holds which rows.

Cost: a matrix product instead of one for each row, and no copies. The factor with rows of a batch
is its first. It fires where reading the copies takes longer than starting such a product, reading
that factor otherwise than row by row, and moving the result: a few rows that are the same, times a
matrix for each row of a batch, stay as they are (they took 1.1 to 4 times as long, JAX 0.10 and
0.12). More rows of a batch never take a convolution longer than
more groups.
Source: https://github.com/jax-ml/jax/issues/8409. `jax.vmap` of a product by one matrix gives this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.batches.repeated import copies, times
from jaxpr_opt.bridge.parameters import groups_of, is_resharded, numbers_of
from jaxpr_opt.builders.batches.merged_rows import multiply_split
from jaxpr_opt.builders.batches.shared_factors import product_of_shared
from jaxpr_opt.builders.batches.shared_kernels import convolution_of_shared
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
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
    times: int
    """How often each row is there along that axis, one after the other."""

    @property
    def copies(self) -> int:
        """Bytes of all copies but one."""
        factor = self.op.operands[self.position]
        return int(factor.nbytes - factor.nbytes // self.times)

    @property
    def is_part(self) -> bool:
        """Whether there are several rows."""
        return self.times < self.op.result.shape[self.number]

    @property
    def turned(self) -> int:
        """Bytes of the other factor, if its rows are not what is summed up."""
        factor, terms = self.op.operands[1 - self.position], self._contracted[1 - self.position]
        last = range(len(factor.shape) - len(terms), len(factor.shape))
        return 0 if set(terms) == set(last) or not self._free(1 - self.position) else factor.nbytes

    @property
    def moved(self) -> int:
        """Bytes of the result, if axes of one factor and of the other change places in it."""
        are_swapped = self.position == 0 and self._free(0) and self._free(1)
        return int(self.op.result.nbytes) if are_swapped else 0

    @property
    def _contracted(self) -> Sequence[Sequence[int]]:
        contracted: Sequence[Sequence[int]] = numbers_of(self.op)[0]
        return contracted

    def _free(self, position: int) -> int:
        """How many axes of a factor are of the result alone."""
        axes = [of_factor[position] for of_factor in numbers_of(self.op)]
        return len(self.op.operands[position].shape) - sum(map(len, axes))


@dataclass(frozen=True, slots=True, eq=False)
class SharedKernel(Match):
    """A convolution of which all groups of features have the same kernel."""


@dataclass(frozen=True)
class ShareBatchedFactors(Pass[SharedFactor | SharedKernel]):
    """Copies of a matrix, one for each row of a batch -> the matrix."""

    name: ClassVar[str] = "share-batched-factors"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"conv_general_dilated", "dot_general"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SharedFactor | SharedKernel]:
        if not all(is_sized(v.shape) for v in op.operands):
            return
        if is_resharded(op) or any(map(is_sharded, op.operands)):  # (3)
            return
        if op.name == "conv_general_dilated":
            kernel, (in_features, _) = op.operands[1], groups_of(op)
            if in_features > 1 and copies(kernel, numbers_of(op)[1][0]) % in_features == 0:  # (1)
                one = bytes_text(kernel.nbytes // in_features)
                says = f"all rows are convolved with the same {one}, not a copy each"
                yield SharedKernel(op, says, about=kernel)
            return
        _, batch = numbers_of(op)
        for position, factor in enumerate(op.operands):
            for number, axis in enumerate(batch[position]):
                rows = times(factor, axis)  # (1)
                if rows > 1:
                    one = bytes_text(factor.nbytes // factor.shape[axis])
                    count = "all" if rows == factor.shape[axis] else f"each {rows}"
                    says = f"{count} rows are multiplied by the same {one}, not a copy each"
                    yield SharedFactor(op, says, position, number, rows, about=factor)
                    return

    def refuse(self, match: SharedFactor | SharedKernel) -> str | None:
        if isinstance(match, SharedKernel):
            return None
        model = cost_model()
        if not model.is_as_precise_in_any_shape(match.op):  # (2)
            return "a product of matrices would have fewer bits"
        made = match.op.result.nbytes
        if not model.is_less_without_copies(match.copies, match.turned, match.moved, made):
            return "reading the copies takes no longer than a product of matrices, and moving it"
        return None

    def rewrite(self, match: SharedFactor | SharedKernel, rw: Rewriter) -> None:
        if isinstance(match, SharedKernel):
            made = convolution_of_shared(match.op, rw)
        elif match.is_part:
            batch = numbers_of(match.op)[1]
            axes = [of_factor[match.number] for of_factor in batch]
            sizes = match.op.result.shape[match.number] // match.times, match.times
            made = multiply_split(match.op, axes, sizes, rw)
        else:
            made = product_of_shared(match.op, match.position, match.number, rw)
        rw.replace(match.op.result, made)
        rw.erase(match.op)
