"""Whether a program is linear in some of its inputs, judged by its ops.

The backward program that JAX derives from its own rules is linear in the cotangents. A user's rule
(`jax.custom_vjp`) need not be: it may clip them, or return something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import compat_source, dtypes
from jaxpr_opt.bridge.parameters import combiner_of, first_right_side_of, has_unique_indices
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import UNDEFINED, Call, Cond, Graph, Op, Region, Remat, Scan, Value, While
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.traits import BARRIER, linear_in


class Kind(Enum):
    """How a value depends on the inputs in question."""

    ZERO = "zero"
    LINEAR = "linear"
    FIXED = "not at all"
    OTHER = "in another way, or nobody knows"


ZERO, LINEAR, FIXED, OTHER = Kind
MOVED = {ZERO, LINEAR}


def is_linear(graph: Graph, inputs: Iterable[Value]) -> bool:
    """Whether all outputs are linear in these inputs."""
    kinds = Kinds(dict.fromkeys(inputs, LINEAR))
    kinds.walk(graph.body)
    return all(kinds[v] in MOVED for v in graph.body.outputs)


def has_transpose(graph: Graph, inputs: Iterable[Value]) -> bool:
    """Whether JAX can transpose all that a program writes into what is linear in these inputs: of
    windows that may meet it would not know which is left.
    """
    kinds = Kinds(dict.fromkeys(inputs, LINEAR))
    kinds.walk(graph.body)
    scatters = (op for op in graph.walk() if op.name == "scatter" and not combiner_of(op))
    return all(has_unique_indices(op) or kinds[op.operands[0]] in {FIXED, ZERO} for op in scatters)


def carries_cotangents(scan: Scan) -> bool:
    """Whether a loop carries cotangents, counters aside: JAX made it by transposing; or it is
    inside such a loop, and linear in what that carries. One that carries nothing may mask them,
    and stack what is linear in them: the gradients of rows of which a sum is used.
    """
    around = next((op for op in with_parents(scan) if op.source.transposed), None)
    if not isinstance(around, Scan):
        return False
    kinds = _of_cotangents(around)
    found = [kinds[c.param] for c in scan.carries if not dtypes.is_integral(c.param.dtype)]
    if not found and around is scan:
        return _stacks_masked(scan)
    return LINEAR in found and (around is scan or MOVED.issuperset(found))


def is_cotangent(value: Value, scan: Scan) -> bool:
    """Whether a value of a step of a loop of cotangents is one, too."""
    around = next((op for op in with_parents(scan) if op.source.transposed), None)
    return isinstance(around, Scan) and _of_cotangents(around)[value] is LINEAR


def is_product_of_cotangent(value: Value, other: Value, loop: Op | None) -> bool:
    """Whether a product is one of a cotangent with what is none, in a loop of cotangents."""
    if not isinstance(loop, Scan) or not carries_cotangents(loop) or value is other:
        return False
    return is_cotangent(value, loop) and not is_cotangent(other, loop)


def is_transposed(op: Op) -> bool:
    """Whether JAX made an op by transposing, and not by computing the forward pass again."""
    return op.source.transposed and not compat_source.is_recomputed(op.source.info)


@remembered
def _of_cotangents(scan: Scan) -> Kinds:
    """The kinds of all that a step of a loop of cotangents computes, by those of its carries that
    it is linear in: others are of the forward pass.
    """
    moving = [c for c in scan.carries if not dtypes.is_integral(c.param.dtype)]
    while True:
        kinds = _Cotangents(dict.fromkeys((c.param for c in moving), LINEAR))
        kinds.walk(scan.body)
        lost = [c for c in moving if kinds[c.next] not in MOVED]
        if not lost:
            return kinds
        moving = [c for c in moving if c not in lost]


@remembered
def _stacks_masked(scan: Scan) -> bool:
    """Whether all numbers that a loop stacks are linear in what masks make zero."""
    kinds = _Masked({})
    kinds.walk(scan.body)
    stacked = [kinds[s.value] for s in scan.stacks if not dtypes.is_integral(s.value.dtype)]
    return LINEAR in stacked and MOVED.issuperset(stacked)


def linear_operands(op: Op, is_fixed: Callable[[Value], bool]) -> list[Value] | None:
    """The operands of an op without regions that are not fixed, if its results are linear in all
    of them together; None if they are not.
    """
    if op.regions:
        return None
    moving = [v for v in op.operands if not is_fixed(v)]
    kinds = [LINEAR if v in moving else ZERO if uniform(v) == 0 else FIXED for v in op.operands]
    return moving if moving and _is_linear_in(op, kinds) else None


class Kinds:
    """The kind of every value of a program, by that of its inputs; others are fixed."""

    def __init__(self, known: dict[Value, Kind]) -> None:
        self._known = known

    def __getitem__(self, value: Value) -> Kind:
        known = self._known.get(value)
        return known or (ZERO if uniform(value) == 0 else FIXED)

    def walk(self, region: Region) -> None:
        """Find the kinds of what a region computes."""
        for op in region.ops:
            if not op.is_terminator:
                self._known |= dict(zip(op.results, self._results(op), strict=True))

    def _results(self, op: Op) -> Sequence[Kind]:
        if isinstance(op, Scan | While):
            return self._loop(op)
        if isinstance(op, Cond):
            return self._cond(op)
        if isinstance(op, Remat | Call):
            return self._call(op)
        if op.name == BARRIER:
            return [self[v] for v in op.operands]
        if op.name == UNDEFINED:
            return [ZERO]  # nothing comes of it
        return [self._other(op)] * len(op.results)

    def _loop(self, op: Scan | While) -> list[Kind]:
        """(1) What a step takes and what it gives have one kind: that of a carry is sought.  How
        many steps there are must not depend on what moves.
        """
        streams, stacks = (op.streams, op.stacks) if isinstance(op, Scan) else ((), ())
        self._known |= {s.param: self[s.operand] for s in streams}
        carried = [self[c.init] for c in op.carries]
        before: list[Kind] = []
        while carried != before:
            before = carried
            self._known |= {c.param: kind for c, kind in zip(op.carries, carried, strict=True)}
            self.walk(op.body)
            carried = [_either(a, self[c.next]) for c, a in zip(op.carries, carried, strict=True)]
        if isinstance(op, While) and not self._is_fixed(op.predicate, carried):
            return [OTHER] * len(op.results)
        found = {c.result: kind for c, kind in zip(op.carries, carried, strict=True)}
        found |= {s.result: self[s.value] for s in stacks}
        return [found[v] for v in op.results]

    def _is_fixed(self, predicate: Region, carried: Sequence[Kind]) -> bool:
        self._known |= dict(zip(predicate.params, carried, strict=True))
        self.walk(predicate)
        return all(self[v] in {FIXED, ZERO} for v in predicate.outputs)

    def _cond(self, op: Cond) -> list[Kind]:
        """(2) What is chosen by something that moves is not linear."""
        for branch in op.branches:
            self.walk(branch)
        if self[op.selector] not in {FIXED, ZERO}:
            return [OTHER] * len(op.results)
        found = []
        for outcome in op.outcomes:
            kind, *rest = (self[v] for v in outcome.values)
            for other in rest:
                kind = _either(kind, other)
            found.append(kind)
        return found

    def _call(self, op: Remat | Call) -> list[Kind]:
        self._known |= {p: self[v] for p, v in zip(op.body.params, op.operands, strict=True)}
        self.walk(op.body)
        return [self[v] for v in op.body.outputs]

    def _other(self, op: Op) -> Kind:
        kinds = [self[v] for v in op.operands]
        kinds += [self[v] for region in op.regions for v in region.captures()]
        if not op.regions and _is_linear_in(op, kinds):
            return LINEAR if LINEAR in kinds else ZERO
        return FIXED if {FIXED, ZERO}.issuperset(kinds) else OTHER


class _Cotangents(Kinds):
    """What is added to a cotangent by JAX's own sum of two is one, too: a row of a stream, say."""

    def _other(self, op: Op) -> Kind:
        kinds = {self[v] for v in op.operands}
        if op.name == "add_any" and LINEAR in kinds and OTHER not in kinds:
            return LINEAR
        return super()._other(op)


class _Masked(_Cotangents):
    """What is zero where a mask says so is linear in itself."""

    def _other(self, op: Op) -> Kind:
        is_selected = op.name == "select_n" and any(uniform(v) == 0 for v in op.operands[1:])
        is_factor = op.name == "convert_element_type" and op.operands[0].dtype == bool
        is_masked = (is_selected or is_factor) and not dtypes.is_integral(op.result.dtype)
        return LINEAR if is_masked else super()._other(op)


def _either(a: Kind, b: Kind) -> Kind:
    """The kind of what is one or the other; zero is linear, and fixed."""
    if a is b or b is ZERO:
        return a
    return b if a is ZERO else OTHER


def _is_linear_in(op: Op, kinds: Sequence[Kind]) -> bool:
    """Whether an op without regions is linear in those of its operands that move: (3) in all
    together, (4) in one of them, or (5) in some, while the others are fixed.
    """
    rule = linear_in(op) or _OTHERS.get(op.name)
    if rule is None or OTHER in kinds or MOVED.isdisjoint(kinds):
        return False
    if rule == "any":
        return kinds.count(LINEAR) < 2
    linear = _linear_operands(rule, op)
    return all(kind in MOVED if i in linear else kind is not LINEAR for i, kind in enumerate(kinds))


def _linear_operands(rule: str, op: Op) -> Sequence[int]:
    if rule == "all":
        return range(len(op.operands))
    if rule == "first":
        return [0]
    if rule == "cases":
        return range(1, len(op.operands))
    if rule == "last":
        return [len(op.operands) - 1]
    if rule == "right sides":
        return range(first_right_side_of(op), len(op.operands))
    return [0, 2 if op.name in _SCATTERS else 1]


_SCATTERS = {"scatter", "scatter-add"}
_OTHERS = {"select_if_vmap": "cases"} | dict.fromkeys(
    (
        "all_gather", "all_gather_invariant", "all_to_all", "pbroadcast", "ppermute", "psum",
        "psum_invariant", "pvary", "reduce_scatter",
    ),
    "all",
)  # fmt: skip
"""In which operands other ops are linear."""
