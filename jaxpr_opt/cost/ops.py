"""The cost of the ops of a program: floating-point operations and bytes moved.

Costs are values: they add up along a region, multiply with the length of a scan (``cost(scan[n]) ==
n * cost(body)``), and the most expensive branch of a cond counts. An unknown cost is None, and so
is the cost of everything it is part of: the number of iterations of a `while` is unknown.

Every op is priced by itself, as if XLA fused nothing: an upper bound of the bytes moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from math import ceil, log2, prod

from jaxpr_opt.bridge.parameters import (
    callee_of,
    dimension_of,
    mesh_of,
    numbers_of,
    window_dimensions_of,
)
from jaxpr_opt.cost.functions import of_real_numbers
from jaxpr_opt.cost.layouts import features_last
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import UNDEFINED, Call, Cond, Op, Region, Remat, Scan, While, is_sized
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.traits import ELEMENTWISE, MOVING, is_transcendental


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """FLOPs, and bytes read and written; None is unknown."""

    flops: int | None = 0
    bytes: int | None = 0
    products: int | None = 0
    """FLOPs of products of matrices among them, which a device does faster than others."""
    turned: int | None = 0
    """FLOPs of convolutions among those products, in loops, that XLA:CPU computes place by place:
    their operands are not laid out with features last, or have few features."""
    functions: int | None = 0
    """Values of transcendental functions among them, which take longer."""

    def __add__(self, other: Cost) -> Cost:
        return self._with(other, sum)

    def __mul__(self, times: int) -> Cost:
        """So many times; nothing, even of something unknown, costs nothing."""
        if times == 0:
            return Cost()
        return Cost(**{k: None if v is None else times * v for k, v in self._figures()})

    __rmul__ = __mul__

    def __or__(self, other: Cost) -> Cost:
        """One or the other: the dearer, figure by figure."""
        return self._with(other, max)

    def _with(self, other: Cost, combine: Callable[[Iterable[int]], int]) -> Cost:
        both = zip(self._figures(), other._figures(), strict=True)
        return Cost(**{name: _known(combine, mine, its) for (name, mine), (_, its) in both})

    def _figures(self) -> list[tuple[str, int | None]]:
        return [(each.name, getattr(self, each.name)) for each in fields(self)]


def _known(combine: Callable[[Iterable[int]], int], *parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return combine(known) if len(known) == len(parts) else None


UNKNOWN = Cost(flops=None, bytes=None, products=None, turned=None, functions=None)


def cost(item: Op | Region) -> Cost:
    """The cost of running an op, or a region, once."""
    if isinstance(item, Region):
        return sum((cost(op) for op in item.ops), start=Cost())
    match item:
        case Scan():
            return item.length * cost(item.body) if item.has_length else UNKNOWN
        case While():
            return UNKNOWN
        case Cond():
            return _dearest(map(cost, item.branches))
        case Remat():
            return cost(item.body)
        case Call():
            mesh = mesh_of(item)
            return (1 if mesh is None else int(mesh.size)) * cost(item.body)
        case _:
            return _first_order(item)


def _dearest(costs: Iterable[Cost]) -> Cost:
    dearest, *others = costs
    for each in others:
        dearest |= each
    return dearest


@remembered
def _first_order(op: Op) -> Cost:
    if op.is_terminator or op.name == UNDEFINED:
        return Cost()
    if callee_of(op) is not None:
        return cost(import_jaxpr(callee_of(op)).body)
    rule, values = _rule(op.name), (*op.operands, *op.results)
    if not all(is_sized(v.shape) for v in values):
        return UNKNOWN
    moved, flops = sum(v.nbytes for v in values), None if rule is None else rule(op)
    return Cost(
        flops=flops,
        bytes=moved,
        products=flops if op.name in MATRIX_PRODUCTS else 0,
        turned=flops if _is_turned(op) else 0,
        functions=of_real_numbers(op, flops) if is_transcendental(op) else 0,
    )


MATRIX_PRODUCTS = frozenset({"conv_general_dilated", "dot_general"})
"""What a device does with its units for products of matrices."""

Rule = Callable[[Op], int]
_FLOPS: dict[str, Rule] = {}


def flops(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of some primitives."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in _FLOPS, f"two FLOP rules for {name}"
            _FLOPS[name] = rule
        return rule

    return register


def _rule(name: str) -> Rule | None:
    """The rule of a primitive; those of the traits' table need none of their own."""
    if name in _FLOPS:
        return _FLOPS[name]
    if name in MOVING:
        return _moving
    return _elementwise if name in ELEMENTWISE else None


@flops(
    "bitcast_convert_type", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad",
    "optimization_barrier", "random_clone", "random_unwrap", "random_wrap", "scatter", "split",
    "stack", "unstack",
)  # fmt: skip
def _moving(_: Op) -> int:
    return 0


@flops(
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "clz", "complex", "cosh",
    "digamma", "erf_inv", "erfc", "igamma", "lgamma", "nextafter", "population_count", "sinh",
)  # fmt: skip
def _elementwise(op: Op) -> int:
    return op.results[0].size


@flops(
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce",
    "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor",
)  # fmt: skip
def _reduction(op: Op) -> int:
    return op.operands[0].size


@flops("scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
def _scatter(op: Op) -> int:
    return op.operands[2].size


@flops("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _window(op: Op) -> int:
    return op.results[0].size * int(prod(window_dimensions_of(op)))


@flops("sort", "top_k")
def _sort(op: Op) -> int:
    """Comparisons of a merge sort."""
    length = int(op.operands[0].shape[dimension_of(op)])
    return op.operands[0].size * ceil(log2(max(length, 2)))


WORD = 58
"""Operations of one word of `threefry2x32`, JAX's default generator of random numbers: 20 rounds of
five for two words, and 16 for the keys."""


HASHING = frozenset(
    {"random_bits", "random_fold_in", "random_seed", "random_split", "threefry2x32"}
)
"""Ops of that generator."""


@flops(*HASHING)
def _random(op: Op) -> int:
    return WORD * sum(ceil(v.nbytes / 4) for v in op.results)


@flops("dot_general")
def _dot_general(op: Op) -> int:
    (contracted, _), _ = numbers_of(op)
    depth = prod(int(op.operands[0].shape[axis]) for axis in contracted)
    return 2 * op.result.size * depth


def rows_multiplied(product: Op) -> int:
    """The rows that a product of matrices makes, in all batches; none of one with a vector."""
    (_, contracted), (_, batch) = numbers_of(product)
    sizes = dict(enumerate(map(int, product.operands[1].shape)))
    columns = prod(size for axis, size in sizes.items() if axis not in (*contracted, *batch))
    rows = product.result.size // max(columns, 1)
    is_of_matrices = columns > 1 and rows > prod(sizes[axis] for axis in batch)
    return rows if is_of_matrices else 0


_FEATURES = 8
"""Features of which as many are multiplied at once: of 4 x 4, 240 ps a FLOP; of 8 x 8, 46 ps; of 16
x 16, 17 ps.  Measured on CPU, 22 x 22 places, kernels of 3 x 3; alike on JAX 0.10 and 0.12."""


def _is_turned(op: Op) -> bool:
    """Whether it is a convolution in a loop, of operands that are laid out otherwise, or of few
    features.
    """
    if op.name != "conv_general_dilated" or not is_in_a_loop(op):
        return False
    return not all(features_last(op)) or _has_few_features(op)


def _has_few_features(convolution: Op) -> bool:
    kernel, axes = convolution.operands[1], numbers_of(convolution).rhs_spec
    made, read = (int(kernel.shape[axis]) for axis in axes[:2])
    return read < _FEATURES and made <= _FEATURES


@flops("conv_general_dilated")
def _convolution(op: Op) -> int:
    """The kernel already has only the input features of one group."""
    kernel = op.operands[1]
    features = int(kernel.shape[numbers_of(op).rhs_spec[0]])
    return 2 * op.result.size * (kernel.size // max(features, 1))
