"""Fall back to JAX's rule for the plain program if one of our rules fails.

Each function here takes a rule and `plain`, which turns an equation's parameters into the program
as a function, and returns a rule that cannot fail where the plain program does not (see
`jaxpr_opt.bridge.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core as _core
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax.extend.core import Primitive

from jaxpr_opt.bridge import guard
from jaxpr_opt.bridge.compat_ad import merged

Plain = Callable[..., Callable[..., Sequence[Any]]]
Rule = Callable[..., Any]

# What is needed when something has failed is looked up now: were it gone, importing would fail.
_EvalTrace, _closed_call_p = _core.EvalTrace, _core.closed_call_p
_set_current_trace: Any = _core.set_current_trace
_is_undefined_primal: Any = _ad.is_undefined_primal
_instantiate_zeros: Any = _ad.instantiate_zeros
_lower_fun: Any = _mlir.lower_fun
_split_closed_call = _pe.partial_eval_jaxpr_custom_rules[_closed_call_p]


def guard_binding(primitive: Primitive, plain: Plain) -> None:
    """Where a trace cannot make anything of an equation, it is given those of the plain program.

    That holds for forward mode, linearization, batching, partial evaluation and staging alike.
    What programs raise that run is theirs.
    """

    def bind(trace: Any, args: Sequence[Any], *rest: Any) -> Any:
        *_, params = rest

        def bound() -> Any:
            return Primitive.bind_with_trace(primitive, trace, args, *rest)

        def evaluated() -> list[Any]:
            with _set_current_trace(trace):
                return list(plain(**params)(*args))

        if isinstance(trace, _EvalTrace):
            with guard.running():
                return bound()
        return guard.attempt(bound, evaluated)

    primitive.def_bind_with_trace(bind)


def guarded_lowering(rule: Rule, plain: Plain) -> Rule:
    """`rule`; where it fails, the plain program is lowered."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        return guard.attempt(
            lambda: rule(ctx, *args, **params), lambda: _lower_fun(plain(**params))(ctx, *args)
        )

    return lower


def guarded_transpose(rule: Rule, plain: Plain) -> Rule:
    """`rule`; where it fails, JAX's own transpose of the plain program."""

    def transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> Sequence[Any]:
        def pulled() -> list[Any]:
            linear = [_is_undefined_primal(x) for x in args]
            pull = jax.linear_transpose(
                lambda *xs: list(plain(**params)(*merged(linear, xs, args))),
                *(x.aval for x, is_linear in zip(args, linear, strict=True) if is_linear),
            )
            found = iter(pull([_instantiate_zeros(ct) for ct in cotangents]))
            return [next(found) if is_linear else None for is_linear in linear]

        return guard.attempt(lambda: rule(cotangents, *args, **params), pulled)

    return transpose


def guarded_dce(rule: Rule) -> Rule:
    """`rule`; where it fails, the equation stays as it is."""

    def narrow(used_outputs: Sequence[bool], *rest: Any) -> Any:
        *_, eqn = rest
        return guard.attempt(
            lambda: rule(used_outputs, *rest), lambda: ([True] * len(eqn.invars), eqn)
        )

    return narrow


def guarded_split(rule: Rule) -> Rule:
    """`rule`, which splits an equation as a policy says; where it fails, a call is split."""

    def split(saveable: Any, unknown: list[bool], instantiated: list[bool], eqn: Any) -> Any:
        def called() -> Any:
            call = eqn.replace(primitive=_closed_call_p, params=_of_call(**eqn.params))
            return _split_closed_call(saveable, list(unknown), list(instantiated), call)

        return guard.attempt(lambda: rule(saveable, unknown, instantiated, eqn), called)

    return split


def _of_call(*, jaxpr: Any, **_: Any) -> dict[str, Any]:
    return {"call_jaxpr": jaxpr}
