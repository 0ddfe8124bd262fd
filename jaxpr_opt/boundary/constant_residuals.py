"""Residuals that depend on no input: the tangent program recomputes them.

XLA sees no constants across functions: an index that is an argument may be any number. ``v.at[1:-1,
1:-1].add(x)`` passes ``[1, 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr

from jaxpr_opt.bridge import compat, compat_ad
from jaxpr_opt.bridge.compat_ad import Linearized
from jaxpr_opt.ir.traits import ELEMENTWISE, MOVING, TRANSCENDENTAL

_CHEAP = (ELEMENTWISE | MOVING | {"concatenate"}) - TRANSCENDENTAL


def made_again(plain: Linearized, num_outputs: int) -> Linearized:
    """The halves without residuals that cheap equations make of constants."""
    forward = compat.open_jaxpr(plain.forward)
    made = _made_of_constants(forward)
    own = {  # each value once: what it makes is read where the residual was
        value: k
        for k, (kind, i) in enumerate(plain.residuals)
        if kind == "output" and i >= num_outputs
        if not compat.is_literal(value := forward.outvars[i]) and value in made
    }
    if not own:
        return plain
    tangent = _with_equations(plain.tangent, _needed(own, made), own)
    left = [each for k, each in enumerate(plain.residuals) if k not in own.values()]
    read = {i for kind, i in left if kind == "output"}
    used = [i < num_outputs or i in read for i in range(len(forward.outvars))]
    residuals = tuple((kind, sum(used[:i]) if kind == "output" else i) for kind, i in left)
    kept = compat_ad.select_outputs(plain.forward, used)
    return Linearized(kept, tangent, residuals, plain.nonzero_out)


def _made_of_constants(jaxpr: compat.Opened) -> dict[Any, Any]:
    """The equation of each value that cheap ones make of no input."""
    made: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        cheap = eqn.primitive.name in _CHEAP and not eqn.effects
        if cheap and all(compat.is_literal(v) or v in made for v in eqn.invars):
            made.update(dict.fromkeys(eqn.outvars, eqn))
    return made


def _needed(values: Sequence[Any] | dict[Any, Any], made: dict[Any, Any]) -> list[Any]:
    """The equations that make some values, in order."""
    needed: set[int] = set()
    pending = list(values)
    while pending:
        eqn = made[pending.pop()]
        if id(eqn) not in needed:
            needed.add(id(eqn))
            pending.extend(v for v in eqn.invars if not compat.is_literal(v))
    return [eqn for eqn in dict.fromkeys(made.values()) if id(eqn) in needed]


def _with_equations(
    tangent: ClosedJaxpr, equations: Sequence[Any], places: dict[Any, int]
) -> ClosedJaxpr:
    """A program that makes some of its inputs itself, by equations that call them otherwise."""
    inner: Any = getattr(tangent, "jaxpr", tangent)
    names = {value: inner.invars[k] for value, k in places.items()}

    def named(values: Sequence[Any]) -> list[Any]:
        return [v if compat.is_literal(v) else names.get(v, v) for v in values]

    first = [e.replace(invars=named(e.invars), outvars=named(e.outvars)) for e in equations]
    inputs = [v for k, v in enumerate(inner.invars) if k not in places.values()]
    made = inner.replace(invars=inputs, eqns=[*first, *inner.eqns])
    return made if compat.JAXPRS_ARE_CLOSED else ClosedJaxpr(made, tangent.consts)
