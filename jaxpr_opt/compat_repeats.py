"""Linearization of a program in which the same equations occur again and again.

JAX runs a primitive's forward-mode rule and splits what it gives, equation by equation; only calls
of `jit` are remembered.  In a long straight line of code most equations differ in nothing but their
operands, so one of each kind is linearized, and what comes of it is bound for all of them, each
under its own source info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters import ad as _ad
from jax.extend.core import ClosedJaxpr, Primitive

from jaxpr_opt import compat, compat_ad


class _Equation(Primitive):
    """An equation of the kind that its parameter `jaxpr` has one of."""

    def bind_with_trace(self, trace: Any, args: Any, *rest: Any) -> Any:
        """Bind the equation itself, unless it is being linearized."""
        if isinstance(trace, _ad.LinearizeTrace):
            return super().bind_with_trace(trace, args, *rest)
        with _core.set_current_trace(trace):
            return _evaluate(rest[-1]["jaxpr"], args)


equation_p = _Equation("equation")
equation_p.multiple_results = True


def share_repeated(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with equations that differ only in their operands made one kind of equation."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    kinds = [_kind(eqn) for eqn in inner.eqns]
    count = Counter(kind for kind in kinds if kind is not None)
    shared: dict[Hashable, ClosedJaxpr] = {}
    eqns = []
    for eqn, kind in zip(inner.eqns, kinds, strict=True):
        if kind is None or count[kind] == 1:
            eqns.append(eqn)
            continue
        if kind not in shared:
            shared[kind] = _alone(eqn, inner)
        eqns.append(
            eqn.replace(
                primitive=equation_p, params={"jaxpr": shared[kind]}, invars=_operands(eqn)
            )
        )
    if not shared:
        return jaxpr
    made = inner.replace(eqns=eqns)
    return made if inner is jaxpr else ClosedJaxpr(made, jaxpr.consts)


def _operands(eqn: Any) -> list[Any]:
    return list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, _core.Literal)))


def _kind(eqn: Any) -> Hashable | None:
    """What equal kinds have in common; None for an equation that stays as it is."""
    if eqn.primitive not in _ad.primitive_jvps or eqn.primitive in _ad.primitive_linearizations:
        return None
    if eqn.effects or any(True for _ in _core.jaxprs_in_params(eqn.params)):
        return None
    position = {v: i for i, v in enumerate(_operands(eqn))}
    reads = tuple(
        (_bits(v.val) if isinstance(v, _core.Literal) else position[v], v.aval) for v in eqn.invars
    )
    kind = (eqn.primitive, tuple(sorted(eqn.params.items(), key=lambda p: p[0])), reads, eqn.ctx)
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _bits(value: Any) -> Hashable:
    """What equal literals have in common: the sign of zero and the bits of a NaN included."""
    return type(value), np.asarray(value).tobytes()


def _alone(eqn: Any, around: Any) -> ClosedJaxpr:
    """A program of one equation."""
    operands = _operands(eqn)
    alone = eqn.replace(source_info=eqn.source_info.replace(name_stack=_source_info.NameStack()))
    info = around.debug_info
    names = _core.DebugInfo("equation", "equation", tuple(f"x{i}" for i in range(len(operands))), None)
    return ClosedJaxpr(_core.Jaxpr((), operands, list(eqn.outvars), [alone], debug_info=names), ())


def _evaluate(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Bind the equations of a jaxpr under the source info of the equation that it is for."""
    opened = compat.open_jaxpr(jaxpr)
    env = dict(zip(opened.invars, args, strict=True))
    env.update(zip(opened.constvars, opened.consts, strict=True))
    around = _source_info.current_name_stack()
    for eqn in opened.eqns:
        operands = [_read(env, v) for v in eqn.invars]
        with _source_info.set_name_stack(around + eqn.source_info.name_stack), eqn.ctx.manager:
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
