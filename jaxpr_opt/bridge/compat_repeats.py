"""Linearize programs in which equations recur.

JAX runs a primitive's forward-mode rule and splits the result, equation by equation; it caches only
calls of `jit`. In long straight-line code most equations differ only in their operands, so one of
each kind is linearized, and the result is bound for all of them, each under its own source info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters import ad as _ad
from jax.extend.core import ClosedJaxpr, Primitive

from jaxpr_opt.bridge import compat, compat_ad


class _Equation(Primitive):
    """An equation of the kind that its parameter `jaxpr` has one of."""

    def bind_with_trace(self, trace: Any, args: Any, *rest: Any) -> Any:
        """Bind the equation itself, unless it is being linearized."""
        if isinstance(trace, _ad.LinearizeTrace):
            return super().bind_with_trace(trace, args, *rest)  # type: ignore[no-untyped-call]
        with _core.set_current_trace(trace):
            return _evaluate(rest[-1]["jaxpr"], args)


equation_p = _Equation("equation")
equation_p.multiple_results = True


def share_repeated(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with equations that differ in nothing but their operands made one kind."""
    inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
    kinds = [_kind(eqn) for eqn in inner.eqns]
    count = Counter(kind for kind in kinds if kind is not None)
    shared: dict[Hashable, ClosedJaxpr] = {}
    for eqn, kind in zip(inner.eqns, kinds, strict=True):
        if count[kind] > 1 and kind not in shared:
            shared[kind] = _alone(eqn)
    if not shared:
        return jaxpr
    pairs = zip(inner.eqns, kinds, strict=True)
    made = inner.replace(eqns=[_of_kind(e, shared[k]) if k in shared else e for e, k in pairs])
    return made if compat.JAXPRS_ARE_CLOSED else ClosedJaxpr(made, jaxpr.consts)


def _of_kind(eqn: Any, kind: ClosedJaxpr) -> Any:
    return eqn.replace(primitive=equation_p, params={"jaxpr": kind}, invars=_operands(eqn))


def _operands(eqn: Any) -> list[Any]:
    """What an equation reads, each once."""
    return list(dict.fromkeys(v for v in eqn.invars if not compat.is_literal(v)))


def _kind(eqn: Any) -> Hashable | None:
    """What equations of one kind have in common; None for one that stays as it is."""
    if eqn.primitive not in _ad.primitive_jvps or eqn.primitive in _ad.primitive_linearizations:
        return None
    if eqn.effects or any(True for _ in compat.inner_jaxprs(eqn.params)):
        return None
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
    """What equal literals have in common: the sign of zero and the bits of a NaN, too."""
    return type(value), np.asarray(value).tobytes()


def _alone(eqn: Any) -> ClosedJaxpr:
    """A program of one equation, which comes from nowhere."""
    operands = _operands(eqn)
    source = eqn.source_info.replace(name_stack=_source_info.NameStack())
    names = tuple(f"args[{i}]" for i in range(len(operands)))
    info = _core.DebugInfo("jaxpr_opt", eqn.primitive.name, names, None)
    body = [eqn.replace(source_info=source)]
    return ClosedJaxpr(_core.Jaxpr((), operands, list(eqn.outvars), body, debug_info=info), ())


def _evaluate(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Bind the equations of a jaxpr under the source info of the equation that it is for."""
    opened = compat.open_jaxpr(jaxpr)
    env = dict(zip(opened.invars, args, strict=True))
    env.update(zip(opened.constvars, opened.consts, strict=True))
    around = _source_info.current_name_stack()
    for eqn in opened.eqns:
        operands = [_read(env, v) for v in eqn.invars]
        names = eqn.source_info.name_stack
        named = _source_info.set_name_stack(around + names) if names.stack else nullcontext()
        with named, eqn.ctx.manager:
            made = compat.bind(eqn.primitive, operands, eqn.params)
        env.update(zip(eqn.outvars, made, strict=True))
    return [_read(env, v) for v in opened.outvars]


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom.val if compat.is_literal(atom) else env[atom]


def _linearize(
    is_vjp: bool, nonzero: compat_ad.Mask, *primals: Any, jaxpr: ClosedJaxpr
) -> tuple[Sequence[Any], compat_ad.Mask, Sequence[Any], Callable[..., Any]]:
    parts = compat_ad.linearize(jaxpr, nonzero, is_vjp=is_vjp)  # JAX remembers it
    made = _evaluate(parts.forward, primals)
    residuals = [primals[i] if kind == "input" else made[i] for kind, i in parts.residuals]
    return (
        made[: len(parts.nonzero_out)],
        parts.nonzero_out,
        residuals,
        lambda kept, tangents: _evaluate(parts.tangent, [*kept, *tangents]),
    )


compat_ad.register_linearization(equation_p, _linearize)
