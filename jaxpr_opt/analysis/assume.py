"""What values become when some predicates are known: one forward walk, nothing written.

`Assumed(region, {p: False})` answers, for every value in the region, what it equals in a step in which `p` is
false everywhere: itself, another value, or a `Splat` (all elements one known scalar).  It sees through conds on the
predicate, selects (batched ones too), masks derived from it, and sums with a splat of zero.

With `linear=True` a product with a zero is zero.  That holds for cotangents only, whose zeros are symbolic: JAX
itself drops ``0 * residual`` whenever it knows the zero while tracing.  It must not be asked of primal code, where
``0 * inf`` is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpr_opt.ir import Carry, Cond, Constant, Op, Region, Scan, Value
from jaxpr_opt.traits import LINEAR_IN

RESHAPING = frozenset({"broadcast_in_dim", "copy", "expand_dims", "reshape", "rev", "slice", "squeeze", "transpose"})


@dataclass(frozen=True, slots=True)
class Splat:
    """An array of which every element is `value`."""

    value: Any

    @property
    def is_zero(self) -> bool:
        return bool(self.value == 0)


Known = Value | Splat


class Assumed:
    """The region's values under `facts`, a map from boolean values to what all their elements are."""

    def __init__(self, region: Region, facts: Mapping[Value, bool], *, linear: bool = False) -> None:
        self._known: dict[Value, Known] = {value: Splat(np.bool_(fact)) for value, fact in facts.items()}
        self._linear = linear
        self._walk(region)

    def __getitem__(self, value: Value) -> Known:
        if value in self._known:
            return self._known[value]
        if isinstance(value, Constant):
            scalar = value.scalar
            return value if scalar is None else Splat(scalar)
        return value

    def keeps(self, carry: Carry) -> bool:
        """Whether the carry has at the end of the step the value it had at its start."""
        return _same(self[carry.next], self[carry.param])

    def _walk(self, region: Region) -> None:
        for op in region.ops:
            for result, known in zip(op.results, self._results(op), strict=False):
                if known is not result and result not in self._known:
                    self._known[result] = known

    def _results(self, op: Op) -> list[Known]:
        if isinstance(op, Cond):
            return self._cond(op)
        if isinstance(op, Scan):
            return self._scan(op) if self._linear else []
        if len(op.results) != 1 or op.regions or op.effects:
            return []
        return [self._first_order(op, [self[v] for v in op.operands])]

    def _cond(self, op: Cond) -> list[Known]:
        selector = self[op.selector]
        if isinstance(selector, Splat):
            branch = op.branches[min(max(int(selector.value), 0), len(op.branches) - 1)]
            self._walk(branch)
            return [self[v] for v in branch.outputs]
        results: list[Known] = []
        for branch in op.branches:
            self._walk(branch)
        for outcome in op.outcomes:
            first, *rest = (self[v] for v in outcome.values)
            results.append(first if all(_same(first, other) for other in rest) else outcome.result)
        return results

    def _scan(self, op: Scan) -> list[Known]:
        """A linear scan whose carries all start at zero keeps those that its body keeps at zero."""
        zero = {c.param: c for c in op.carries if _is_zero(self[c.init])}
        while zero:
            inner = Assumed(op.body, {}, linear=True)
            inner._known = dict(self._known)
            inner._known.update({p: Splat(np.zeros((), c.param.dtype)[()]) for p, c in zero.items()})
            inner._known.update({s.param: k for s in op.streams if isinstance(k := self[s.operand], Splat)})
            inner._walk(op.body)
            lost = [p for p, c in zero.items() if not _is_zero(inner[c.next])]
            if not lost:
                by_result = {c.result: inner[c.param] for c in zero.values()}
                by_result |= {s.result: k for s in op.stacks if isinstance(k := inner[s.value], Splat)}
                return [by_result.get(v, v) for v in op.results]
            for param in lost:
                del zero[param]
        return []

    def _first_order(self, op: Op, known: list[Known]) -> Known:
        name, result = op.name, op.result
        if name in RESHAPING:
            return known[0] if isinstance(known[0], Splat) else result
        if name == "convert_element_type":
            return self._converted(known[0], result)
        if name == "select_n":
            return self._selected(known, result)
        if name in ("add_any", "add"):
            a, b = known
            if _is_zero(a):
                return _typed(b, result)
            return _typed(a, result) if _is_zero(b) else result
        if name == "sub" and _is_zero(known[1]):
            return _typed(known[0], result)
        if name in _COMPARE and all(isinstance(k, Splat) for k in known):
            return Splat(_COMPARE[name](*(k.value for k in known if isinstance(k, Splat))))
        if name in _LOGIC and result.dtype == bool and all(isinstance(k, Splat) for k in known):
            return Splat(_LOGIC[name](*(k.value for k in known if isinstance(k, Splat))))
        if name in ("and", "or") and result.dtype == bool:
            absorbing = name == "or"
            if any(isinstance(k, Splat) and bool(k.value) == absorbing for k in known):
                return Splat(np.bool_(absorbing))
            others = [k for k in known if not isinstance(k, Splat)]
            return _typed(others[0], result) if len(others) == 1 else result
        if name in ("reduce_or", "reduce_and", "reduce_max", "reduce_min"):
            return known[0] if isinstance(known[0], Splat) else result
        if name == "clamp" and all(isinstance(k, Splat) for k in known):
            low, x, high = (k.value for k in known if isinstance(k, Splat))
            return Splat(np.clip(x, low, high))
        if self._linear and _vanishes(name, known):
            return Splat(np.zeros((), result.dtype)[()])
        return result

    def _converted(self, known: Known, result: Value) -> Known:
        if isinstance(known, Splat):
            dtype = result.dtype
            return Splat(np.asarray(known.value).astype(dtype)[()]) if isinstance(dtype, np.dtype) else result
        return _typed(known, result)

    def _selected(self, known: list[Known], result: Value) -> Known:
        which, *cases = known
        if isinstance(which, Splat):
            chosen = cases[min(max(int(which.value), 0), len(cases) - 1)]
            return _typed(chosen, result)
        first, *rest = cases
        return _typed(first, result) if all(_same(first, other) for other in rest) else result


_LOGIC = {"and": np.logical_and, "not": np.logical_not, "or": np.logical_or, "xor": np.logical_xor}
_COMPARE = {"eq": np.equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less,
            "ne": np.not_equal}  # fmt: skip


def _typed(known: Known, result: Value) -> Known:
    """`known` if it may stand for `result`: a splat always may, a value only with the same shape and dtype."""
    if isinstance(known, Splat) or (known.shape == result.shape and known.dtype == result.dtype):
        return known
    return result


def _same(a: Known, b: Known) -> bool:
    if isinstance(a, Splat) and isinstance(b, Splat):
        return bool(a.value == b.value)
    return a is b


def _is_zero(known: Known) -> bool:
    return isinstance(known, Splat) and known.is_zero


def _vanishes(name: str, known: list[Known]) -> bool:
    """Whether a linear op's result is zero because enough of its operands are."""
    rule = LINEAR_IN.get(name)
    if rule == "any":
        return any(_is_zero(k) for k in known)
    if rule == "all":
        return bool(known) and all(_is_zero(k) for k in known)
    if rule == "first":
        return _is_zero(known[0])
    if rule == "cases":
        return all(_is_zero(k) for k in known[1:])
    if rule == "base and updates":
        return _is_zero(known[0]) and _is_zero(known[2 if name == "scatter-add" else 1])
    return False
