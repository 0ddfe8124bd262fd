"""The rules of our primitives, put into JAX's tables.

`register` and the others hide that the signatures of rules differ between versions of JAX. A rule
that fails gives way to the plain program (see `jaxpr_opt.bridge.compat_guard`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from jax._src import checkify as _checkify
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import source_info_util as _source_info
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jaxpr_opt.bridge import compat, compat_devices, compat_guard, compat_lowering, guard
from jaxpr_opt.bridge.compat_ad import Mask, zero_tangent
from jaxpr_opt.bridge.interpreter_stack import uncollected, with_large_frame

try:
    from jax.experimental import jet as _jet
except ImportError:  # it is experimental
    _jet = None  # type: ignore[assignment]

_UndefinedPrimal: Any = _ad.UndefinedPrimal
_GradAccum, _RefAccum = _ad.GradAccum, _ad.RefAccum

Refs = Mapping[int, Any]
"""For the positions of some operands, the mutable arrays that their cotangents are added to."""
NO_REFS: Refs = {}


class Rules(NamedTuple):
    """The rules of a primitive whose parameter `key` is an object with a `jaxpr`-like body."""

    abstract: Callable[..., tuple[Sequence[Any], Any]]
    """``(**params) -> (output types, effects)``"""
    evaluate: Callable[..., Sequence[Any]]
    """``(*args, **params) -> outputs``, outside of any trace"""
    lowered: Callable[..., ClosedJaxpr | Callable[..., Sequence[Any]]]
    """``(whether arrays may be divided over devices, asks for the donated arguments, whether it is
    for `jax.export`, **params) -> what to compile``: a jaxpr, or a function to trace"""
    jvp: Callable[..., tuple[Sequence[Any], Sequence[Any]]]
    """``(primals, tangents, **params) -> (primals, tangents)``, tangents may be symbolic zeros"""
    batch: Callable[..., tuple[Sequence[Any], Sequence[Any]]]
    """``(axis, args, dims, **params) -> (outputs, dims)``"""
    transpose: Callable[..., Sequence[Any]]
    """``(cotangents, *args, **params) -> cotangents``, in JAX's convention of undefined primals"""
    dce: Callable[..., tuple[Mask, dict[str, Any]]]
    """``(used outputs, **params) -> (used inputs, new params)``; asked if something is used"""
    plain: Callable[..., Callable[..., Sequence[Any]]]
    """``(**params) -> the program as a function``: what stands for it where a rule fails"""


def register(primitive: Primitive, rules: Rules) -> None:
    """Enter the rules every primitive of ours has."""
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda *_, **params: rules.abstract(**params))
    primitive.def_impl(rules.evaluate)
    _ad.primitive_jvps[primitive] = rules.jvp
    transpose = compat_guard.guarded_transpose(rules.transpose, rules.plain)
    _ad.primitive_transposes[primitive] = transpose
    _batching.fancy_primitive_batchers[primitive] = rules.batch

    @with_large_frame
    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        donated = partial(compat_devices.donated, args)
        divided, exported = compat_devices.are_divided(ctx), compat_devices.is_exported(ctx)
        program = rules.lowered(divided, donated, exported, **params)
        with uncollected():
            if not isinstance(program, ClosedJaxpr):
                return _mlir.lower_fun(program)(ctx, *args)
            return compat_lowering.lower_inline(ctx, program, args)

    lower = compat_guard.guarded_lowering(lower, rules.plain)
    _mlir.register_lowering(primitive, lower, cacheable=False)

    def dce_rule(used_outputs: Sequence[bool], *rest: Any) -> tuple[list[bool], Any]:
        *live, eqn = rest  # since 0.11 the second argument says which refs are live
        if not any(used_outputs) and not _pe.has_effects(eqn, *live):
            return [False] * len(eqn.invars), None
        used, params = rules.dce(tuple(used_outputs), **eqn.params)
        out = eqn.replace(
            invars=[v for v, keep in zip(eqn.invars, used, strict=True) if keep],
            outvars=[v for v, keep in zip(eqn.outvars, used_outputs, strict=True) if keep],
            params=params,
            effects=rules.abstract(**params)[1],
        )
        return list(used), out

    _pe.dce_rules[primitive] = compat_guard.guarded_dce(dce_rule)
    compat_guard.guard_binding(primitive, rules.plain)


def register_accumulation(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """``rule(cotangents, *args, refs=..., **params) -> cotangents``, as `Rules.transpose`.

    It gives no cotangents that it has added to their refs itself.
    """
    plain = _ad.primitive_transposes[primitive]

    def transpose(cotangents: Sequence[Any], *args: Any, **params: Any) -> None:
        given = [_UndefinedPrimal(x.aval) if _is_accumulator(x) else x for x in args]
        refs = _distinct_refs(args)
        found = guard.attempt(
            lambda: rule(cotangents, *given, **params, refs=refs),
            lambda: plain(cotangents, *given, **params),
        )
        for accumulator, cotangent in zip(args, found, strict=True):
            if _is_accumulator(accumulator):
                accumulator.accum(cotangent)

    _ad.fancy_transposes[primitive] = transpose


def _is_accumulator(x: Any) -> bool:
    return isinstance(x, _GradAccum)


def _distinct_refs(args: Sequence[Any]) -> Refs:
    """The mutable arrays among accumulators, each once."""
    refs: dict[Any, tuple[int, Any]] = {}
    for i, x in enumerate(args):
        if isinstance(x, _RefAccum) and x.ref is not None:
            refs.setdefault(id(_core.get_referent(x.ref)), (i, x.ref))
    return dict(refs.values())


def register_expansion(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """``rule(*args, **params) -> outputs``: what JAX asks for before it compiles a program that has
    primitives XLA does not know.
    """
    primitive.to_lojax = rule  # type: ignore[method-assign]


def register_linearization(
    primitive: Primitive,
    rule: Callable[..., tuple[Sequence[Any], Mask, Sequence[Any], Callable[..., Any]]],
) -> None:
    """``rule(is_vjp, nonzero, *primals, **params) -> (outputs, nonzero_out, residuals, tangent)``.

    `tangent(residuals, nonzero tangents)` gives the nonzero output tangents.
    """

    def linearize_rule(is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        outputs, nonzero_out, residuals, tangent = rule(is_vjp, tuple(nonzero), *primals, **params)
        zero_tangents = [zero_tangent(_core.typeof(x)) for x in outputs]

        def linearized(kept: Sequence[Any], *rest: Any) -> list[Any]:
            tangents = rest[
                len(rest) - len(nonzero) :
            ]  # since 0.11 structured residuals come first
            given = [
                _ad.instantiate_zeros(t) for t, nz in zip(tangents, nonzero, strict=True) if nz
            ]
            made = iter(tangent(kept, given))
            return [
                next(made) if nz else z for nz, z in zip(nonzero_out, zero_tangents, strict=True)
            ]

        if _LINEARIZATIONS_HAVE_STRUCTURE:
            return outputs, list(nonzero_out), residuals, None, linearized
        return outputs, list(nonzero_out), residuals, linearized

    _ad.primitive_linearizations[primitive] = linearize_rule


_LINEARIZATIONS_HAVE_STRUCTURE = "structured_residuals" in _ad.LinearizeTrace.__annotations__


def register_partial_eval(
    primitive: Primitive,
    split: Callable[..., tuple[Sequence[Any], Mask, Sequence[Any], Primitive, dict[str, Any]]],
    whole: Callable[..., dict[str, Any]],
    rebuild: Callable[..., dict[str, Any]],
    replay: Callable[..., dict[str, Any] | None],
) -> None:
    """Rules for where JAX differentiates by forward mode and splitting: inside `checkpoint`.

    * ``split(unknown, known values, **params)`` runs the known half and gives ``(known outputs,
      unknown_out, residuals, primitive, params)``: the other half is the equation
      ``primitive[params](residuals, unknown inputs)``
    * ``whole(unknown_in, **params)`` gives the parameters of an equation that may be split, and its
      unknown half transposed
    * ``rebuild(number of outputs that are no residuals, **params)`` gives the parameters of an
      equation with another jaxpr, which is among them
    * ``replay(unknown_in, wanted outputs, **params)`` gives those of an equation that computes
      everything again from the inputs, or None where `rebuild` knows as much
    """

    def split_rule(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
        unknown = tuple(not t.is_known() for t in tracers)
        values = [t.pval.get_known() for t in tracers if t.is_known()]
        outputs, unknown_out, residuals, staged, staged_params = split(unknown, values, **params)
        operands = [
            *map(trace.new_instantiated_const, residuals),
            *(t for t in tracers if not t.is_known()),
        ]
        avals, effects = staged.abstract_eval(*(t.aval for t in operands), **staged_params)
        results = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(a), None) for a in avals]
        recipe = _pe.new_eqn_recipe(
            trace, operands, results, staged, staged_params, effects, _source_info.current()
        )
        for each in results:
            each.recipe = recipe
        if _effects.partial_eval_kept_effects.filter_in(effects):
            trace.effect_handles.append(_pe.EffectHandle(operands, recipe))
        made, known = iter(results), iter(outputs)
        return [next(made) if uk else next(known) for uk in unknown_out]

    def update(*args: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        *_, num_kept, _, known, staged = args
        num_known = len(known["jaxpr"].out_avals) - num_kept
        num_staged = len(staged["jaxpr"].out_avals)
        return rebuild(num_known, **known), rebuild(num_staged, **staged)

    def policy_rule(
        saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any
    ) -> Any:
        eqn = eqn.replace(params=whole(tuple(unknown), **eqn.params))
        out = _pe.closed_call_partial_eval_custom_rule(
            "jaxpr", update, saveable, list(unknown), list(instantiated), eqn
        )
        known, staged, unknown_out, instantiated_out, extra = out
        saved = len(known.outvars) - (len(unknown_out) - sum(unknown_out))
        if saved or not all(instantiated):
            return out
        params = replay(tuple(unknown), tuple(instantiated_out), **eqn.params)
        if params is None:
            return out
        staged = staged.replace(invars=list(eqn.invars), params=params)
        new = [v for v in extra if v not in eqn.invars]
        return known, staged, unknown_out, instantiated_out, new

    _pe.custom_partial_eval_rules[primitive] = split_rule
    _pe.partial_eval_jaxpr_custom_rules[primitive] = compat_guard.guarded_split(policy_rule)


def register_checkify(primitive: Primitive) -> None:
    """`checkify` sees through a program to its equations, which are then not optimised."""

    def rule(*args: Any, jaxpr: ClosedJaxpr, program: Any) -> Any:
        del program
        *context, error, enabled = args[
            : _CHECKIFY_ARGUMENTS - 1
        ]  # since 0.11 a context comes first
        return _checkify.checkify_jaxpr(
            *context, jaxpr, enabled, error, *args[_CHECKIFY_ARGUMENTS - 1 :]
        )

    _checkify.error_checks[primitive] = rule


_CHECKIFY_ARGUMENTS = list(inspect.signature(_checkify.checkify_jaxpr).parameters).index("args")


def register_taylor_mode(primitive: Primitive) -> None:
    """`jax.experimental.jet` sees through a program to its equations, which are then not
    optimised.
    """
    jet: Any = _jet

    def rule(primals: Any, series: Any, *, jaxpr: ClosedJaxpr, program: Any) -> Any:
        del program
        run = jaxpr_as_fun(jaxpr)
        return jet.jet(run, tuple(primals), tuple(series), factorial_scaled=False)

    if jet is not None:
        jet.jet_rules[primitive] = rule


def register_sparsify(primitive: Primitive) -> None:
    """`jax.experimental.sparse.sparsify` sees through a program to its equations, which are then
    not optimised.  The module takes a second to import, so this waits until it is in use.
    """
    module: Any = sys.modules.get("jax.experimental.sparse.transform")
    if module is None or primitive in module.sparse_rules_bcoo:
        return

    def rule(env: Any, *values: Any, jaxpr: ClosedJaxpr, program: Any) -> Any:
        del program
        inner = jaxpr if compat.JAXPRS_ARE_CLOSED else jaxpr.jaxpr
        return module.eval_sparse(inner, jaxpr.consts, values, env)

    module.sparse_rules_bcoo[primitive] = module.sparse_rules_bcsr[primitive] = rule
