"""Linearize and vectorize programs in which equations recur.

JAX runs a primitive's rule for each equation, and binds what it makes; it caches only calls of
`jit`. In long straight-line code most equations differ only in their operands. So one of each kind
is transformed, and the equations that this gives are copied for all of them, each with its own
operands and source info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.bridge import compat, compat_ad

_REPEATS = 4
"""How often equations of a kind recur on average in a program for which this is worth it: a
transformation of one alone takes a few times as long as among others."""

_NO_NAMES = _source_info.NameStack()


class Kind:
    """A program of one or more equations, and what it is transformed to."""

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        self.jaxpr = jaxpr
        self._made: dict[Hashable, Any] = {}

    def linearized(self, nonzero: compat_ad.Mask, is_vjp: bool) -> compat_ad.Linearized:
        """Its halves."""
        if nonzero not in self._made:
            self._made[nonzero] = compat_ad.linearize(self.jaxpr, nonzero, is_vjp=is_vjp)
        return self._made[nonzero]  # type: ignore[no-any-return]

    def batched(self, axis: Any, dims: tuple[Any, ...]) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
        """It for all rows of a batch, and where its results have them."""
        if dims not in self._made:
            with _source_info.reset_name_stack():
                self._made[dims] = compat_ad.batch(self.jaxpr, axis, dims)
        return self._made[dims]  # type: ignore[no-any-return]


class _Unit(NamedTuple):
    """Equations of a program that are transformed together."""

    kind: Kind
    operands: Sequence[Any]
    results: Sequence[Any]
    source: Any
    """Where its equation comes from; None if it has several, which know that themselves."""


class _UnknownError(Exception):
    """A transformation gives what cannot be copied."""


# ---------------------------------------------------------------- the transformations


def linearize(jaxpr: ClosedJaxpr, nonzero: compat_ad.Mask, *, is_vjp: bool) -> compat_ad.Linearized:
    """As `compat_ad.linearize`."""
    hoisted, constants = compat_ad.hoist_constants(jaxpr)
    units = _units(hoisted)
    try:
        if units is not None:
            moving = (*(False for _ in constants), *nonzero)
            return compat_ad.bind_in_halves(_linearized(hoisted, units, moving, is_vjp), constants)
    except _UnknownError:
        pass
    return compat_ad.linearize(jaxpr, nonzero, is_vjp=is_vjp)


def batch(
    jaxpr: ClosedJaxpr, axis: Any, dims: Sequence[Any], *, first: bool = False
) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
    """As `compat_ad.batch`."""
    is_plain = axis.spmd_name is None and axis.explicit_mesh_axis is None
    hoisted, constants = compat_ad.hoist_constants(jaxpr)
    units = _units(hoisted) if is_plain else None
    try:
        if units is not None:
            spread = (*(None for _ in constants), *dims)
            made, dims_out = _batched(hoisted, units, axis, spread, first=first)
            return compat_ad.bind_constants(made, constants), dims_out
    except _UnknownError:
        pass
    return compat_ad.batch(jaxpr, axis, dims, first=first)


def _linearized(
    jaxpr: ClosedJaxpr, units: Sequence[_Unit], nonzero: compat_ad.Mask, is_vjp: bool
) -> compat_ad.Linearized:
    opened, info = compat.open_jaxpr(jaxpr), compat.debug_info(jaxpr).with_unknown_names()
    primal = {v: v for v in opened.invars}
    moving = [v for v, nz in zip(opened.invars, nonzero, strict=True) if nz]
    tangent: dict[Any, Any] = {v: _core.Var(v.aval.to_tangent_aval()) for v in moving}
    seeds = list(tangent.values())
    forward, linear = _Copies(_NO_NAMES), _Copies(_NO_NAMES)
    for unit in units:
        operands = [primal[v] for v in unit.operands]
        mask = tuple(v in tangent for v in unit.operands)
        if not any(mask):
            made = forward.copy(unit.kind.jaxpr, operands, unit.source)
            primal.update(zip(unit.results, made, strict=True))
            continue
        parts = unit.kind.linearized(mask, is_vjp)
        made = forward.copy(parts.forward, operands, unit.source)
        kept = [operands[i] if kind == "input" else made[i] for kind, i in parts.residuals]
        kept += [tangent[v] for v in unit.operands if v in tangent]
        moved = iter(linear.copy(parts.tangent, kept, unit.source))
        primal.update(zip(unit.results, made, strict=False))
        pairs = zip(unit.results, parts.nonzero_out, strict=True)
        tangent.update((v, next(moved)) for v, nz in pairs if nz)
    nonzero_out = tuple(not compat.is_literal(v) and v in tangent for v in opened.outvars)
    out = [tangent[v] for v, nz in zip(opened.outvars, nonzero_out, strict=True) if nz]
    residuals = linear.free(seeds, out)
    every = _closed([*residuals, *seeds], linear.eqns, out, info)
    keep = [False] * len(residuals) + [True] * len(seeds)
    pulled, used = compat_ad.dce(every, (True,) * len(out), keep)
    residuals = [v for v, is_used in zip(residuals, used, strict=False) if is_used]
    position = {v: i for i, v in enumerate(opened.invars)}
    stored = [v for v in residuals if v not in position]
    outputs = [v if compat.is_literal(v) else primal[v] for v in opened.outvars]
    made_first = _closed(opened.invars, forward.eqns, [*outputs, *stored], info)
    first, _ = compat_ad.dce(made_first, (True,) * len(made_first.out_avals), keep_inputs=True)
    places = {v: ("output", len(outputs) + k) for k, v in enumerate(stored)}
    places |= {v: ("input", i) for v, i in position.items()}
    return compat_ad.Linearized(first, pulled, tuple(places[v] for v in residuals), nonzero_out)


def _batched(
    jaxpr: ClosedJaxpr, units: Sequence[_Unit], axis: Any, dims: Sequence[Any], *, first: bool
) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
    opened = compat.open_jaxpr(jaxpr)
    row: dict[Any, Any] = {v: v for v in opened.invars}
    where: dict[Any, Any] = dict(zip(opened.invars, dims, strict=True))
    for v, dim in where.items():
        if dim is not None:
            row[v] = _core.Var(_core.unmapped_aval(axis.size, _known(dim), v.aval))
    inputs, copies = list(row.values()), _Copies(_source_info.current_name_stack())
    for unit in units:
        operands, places = [row[v] for v in unit.operands], tuple(where[v] for v in unit.operands)
        made_at: Sequence[Any] = [None] * len(unit.results)
        program = unit.kind.jaxpr
        if any(each is not None for each in places):
            program, made_at = unit.kind.batched(axis, places)
        made = copies.copy(program, operands, unit.source)
        row.update(zip(unit.results, made, strict=True))
        where.update(zip(unit.results, map(_known, made_at), strict=True))
    out = [v if compat.is_literal(v) else row[v] for v in opened.outvars]
    out_at = [None if compat.is_literal(v) else where[v] for v in opened.outvars]
    for i, dim in enumerate(out_at if first else ()):
        if dim not in {None, 0}:
            moved = compat_ad.moved_first(out[i].aval, dim)
            (out[i],), out_at[i] = copies.copy(moved, [out[i]], None), 0
    return _closed(inputs, copies.eqns, out, compat.debug_info(jaxpr)), tuple(out_at)


def _known(dim: Any) -> int | None:
    if dim is not None and not isinstance(dim, int):
        raise _UnknownError
    return dim


# ---------------------------------------------------------------- copies of equations


class _Copies:
    """Equations that are copied from programs of the kinds."""

    def __init__(self, around: Any) -> None:
        self.eqns: list[Any] = []
        self._around = around

    def copy(self, jaxpr: ClosedJaxpr, operands: Sequence[Any], source: Any) -> list[Any]:
        """The results of a program's equations, which come from where `source` says."""
        opened = compat.open_jaxpr(jaxpr)
        if opened.constvars:
            raise _UnknownError
        names: dict[Any, Any] = dict(zip(opened.invars, operands, strict=True))
        for eqn in opened.eqns:
            made = [_core.Var(v.aval) for v in eqn.outvars]
            reads = [v if compat.is_literal(v) else names[v] for v in eqn.invars]
            info = self._placed(eqn.source_info, source)
            self.eqns.append(eqn.replace(invars=reads, outvars=made, source_info=info))
            names.update(zip(eqn.outvars, made, strict=True))
        return [v if compat.is_literal(v) else names[v] for v in opened.outvars]

    def free(self, bound: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
        """The variables that the equations read and do not make, in order."""
        known, found = set(bound), dict[Any, None]()
        for eqn in self.eqns:
            found |= dict.fromkeys(v for v in _variables(eqn.invars) if v not in known)
            known.update(eqn.outvars)
        return list(found | dict.fromkeys(v for v in _variables(outvars) if v not in known))

    def _placed(self, info: Any, source: Any) -> Any:
        if source is None:
            return info.replace(name_stack=self._around + info.name_stack)
        names = self._around + source.name_stack + info.name_stack
        return source.replace(name_stack=names)


def _closed(
    inputs: Sequence[Any], eqns: Sequence[Any], outputs: Sequence[Any], info: Any
) -> ClosedJaxpr:
    return ClosedJaxpr(
        _core.Jaxpr((), list(inputs), list(outputs), list(eqns), debug_info=info), ()
    )


# ---------------------------------------------------------------- equations of one kind


def _units(jaxpr: ClosedJaxpr) -> list[_Unit] | None:
    """The equations of a program, each of a kind, or together with others of which each is alone;
    None if there are many kinds of them.
    """
    opened = compat.open_jaxpr(jaxpr)
    if opened.constvars or jaxpr.effects or jaxpr.is_high:
        return None
    kinds = [_kind(eqn) for eqn in opened.eqns]
    count = Counter(kind for kind in kinds if kind is not None)
    shared: dict[Hashable, Kind] = {}
    reads = Counter(v for eqn in opened.eqns for v in _operands(eqn))
    reads.update(set(_variables(opened.outvars)))
    units: list[_Unit] = []
    alone: list[Any] = []
    groups = 0
    for eqn, kind in [*zip(opened.eqns, kinds, strict=True), (None, None)]:
        if eqn is not None and count[kind] < 2:
            alone.append(eqn)
            continue
        if alone:
            units.append(_group(alone, reads))
            alone, groups = [], groups + 1
        if eqn is not None:
            known = shared.get(kind) or shared.setdefault(kind, Kind(_alone(eqn)))
            units.append(_Unit(known, _operands(eqn), eqn.outvars, eqn.source_info))
    is_worth_it = _REPEATS * (len(shared) + groups) <= len(opened.eqns)
    return units if is_worth_it else None


def _group(eqns: Sequence[Any], reads: Counter[Any]) -> _Unit:
    """Equations together, of which only what others read is a result."""
    made = {v for eqn in eqns for v in eqn.outvars}
    inside = Counter(v for eqn in eqns for v in _operands(eqn))
    operands = [v for v in inside if v not in made]
    results = [v for eqn in eqns for v in eqn.outvars if reads[v] > inside[v]]
    info = _core.DebugInfo("jaxpr_opt", "equations", None, None)
    return _Unit(Kind(_closed(operands, eqns, results, info)), operands, results, None)


def _variables(atoms: Sequence[Any]) -> Iterator[Any]:
    return (v for v in atoms if not compat.is_literal(v))


def _operands(eqn: Any) -> list[Any]:
    """The variables that an equation reads, each once."""
    return list(dict.fromkeys(_variables(eqn.invars)))


def _kind(eqn: Any) -> Hashable | None:
    """A key that equations of one kind share; None for an equation that is like no other."""
    position = {v: i for i, v in enumerate(_operands(eqn))}
    reads = tuple(
        (_bits(v.val) if compat.is_literal(v) else position[v], v.aval) for v in eqn.invars
    )
    kind = (eqn.primitive, tuple(sorted(eqn.params.items())), reads, eqn.ctx)
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _bits(value: Any) -> Hashable:
    """A key that equal literals share: the sign of zero and the bits of a NaN count, too."""
    return type(value), np.asarray(value).tobytes()


def _alone(eqn: Any) -> ClosedJaxpr:
    """A program of one equation, which comes from nowhere."""
    operands = _operands(eqn)
    source = eqn.source_info.replace(name_stack=_NO_NAMES)
    info = _core.DebugInfo("jaxpr_opt", eqn.primitive.name, None, None)
    return _closed(operands, [eqn.replace(source_info=source)], eqn.outvars, info)
