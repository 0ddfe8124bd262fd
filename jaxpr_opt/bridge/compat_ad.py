"""JAX's private parts that the differentiation boundary needs (see `jaxpr_opt.boundary.program`).

Two kinds of things: transformations of closed jaxprs, each with one result type on every version of
JAX, and `register`, which puts a primitive's rules into JAX's tables and hides that their
signatures differ.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax._src import checkify as _checkify
from jax._src import config as _config
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import source_info_util as _source_info
from jax._src import tree_util as _tree
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _pe
from jax._src.sharding_impls import UnspecifiedValue as _Unspecified
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.sharding import PartitionSpec

from jaxpr_opt.bridge import compat, compat_devices, compat_guard, compat_lowering, guard
from jaxpr_opt.bridge.interpreter_stack import uncollected, with_large_frame

try:
    from jax.experimental import jet as _jet
except ImportError:  # it is experimental
    _jet = None  # type: ignore[assignment]

_UndefinedPrimal: Any = _ad.UndefinedPrimal
_GradAccum, _RefAccum = _ad.GradAccum, _ad.RefAccum

_WITH_RULES = {"custom_lin", "call_hi_primitive_linearized", "optimized_linear"}
"""What stands for a `custom_vjp`, and for a program that may have one in it."""

Mask = tuple[bool, ...]
Refs = Mapping[int, Any]
"""For the positions of some operands, the mutable arrays that their cotangents are added to."""
NO_REFS: Refs = {}


# ------------------------------------------------------------- closed jaxprs in, closed jaxprs out


def hoist_constants(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr with its constants as first inputs, and the constants: they may be tracers."""
    constants = list(jaxpr.consts)
    if not constants:
        return jaxpr, []
    if compat.JAXPRS_ARE_CLOSED:
        closed: Any = jaxpr
        return closed.with_consts(()), constants
    return ClosedJaxpr(_pe.convert_constvars_jaxpr(jaxpr.jaxpr), ()), constants


def bind_constants(jaxpr: ClosedJaxpr, constants: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr with its first inputs as constants, beside its own."""
    if not constants:
        return jaxpr
    jaxpr, own = hoist_constants(jaxpr)
    constants = [*own, *constants]
    if compat.JAXPRS_ARE_CLOSED:
        closed: Any = jaxpr
        return closed.with_consts(constants)  # type: ignore[no-any-return]
    inner = _pe.convert_invars_to_constvars(jaxpr.jaxpr, len(constants))
    return ClosedJaxpr(inner, constants)


def hoist_unknown(
    jaxpr: ClosedJaxpr, is_known: Callable[[Any], bool]
) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr with those of its constants that are not known as first inputs, and these."""
    jaxpr, constants = hoist_constants(jaxpr)
    known = {i: constant for i, constant in enumerate(constants) if is_known(constant)}
    bound = bind_constants(_inputs_first(jaxpr, known), [*known.values()])
    return bound, [constant for i, constant in enumerate(constants) if i not in known]


def uses_references(jaxpr: ClosedJaxpr) -> bool:
    """Whether the program makes, reads or writes mutable arrays."""
    opened = compat.open_jaxpr(jaxpr)
    touched = any(compat.is_ref(v.aval) for v in (*opened.constvars, *opened.invars))
    return touched or any(isinstance(e, _core.InternalMutableArrayEffect) for e in jaxpr.effects)


def has_side_effects(jaxpr: ClosedJaxpr) -> bool:
    """Whether it matters how often the program runs."""
    return are_side_effects(jaxpr.effects)


def are_side_effects(effects: Iterable[Any]) -> bool:
    """Whether it matters how often what has them runs; using a named axis does not."""
    return any(not isinstance(e, _core.NamedAxisEffect) for e in effects)


def forwarded(jaxpr: ClosedJaxpr) -> list[int | None]:
    """For every output, the input it is, if it is one."""
    opened = compat.open_jaxpr(jaxpr)
    position = {v: i for i, v in enumerate(opened.invars)}
    return [None if compat.is_literal(v) else position.get(v) for v in opened.outvars]


def repeated(jaxpr: ClosedJaxpr) -> list[int]:
    """For every output, the first output that is the same value."""
    first: dict[Any, int] = {}
    return [
        i if compat.is_literal(v) else first.setdefault(v, i)
        for i, v in enumerate(compat.open_jaxpr(jaxpr).outvars)
    ]


def select_outputs(jaxpr: ClosedJaxpr, used: Sequence[bool]) -> ClosedJaxpr:
    """The same program with fewer outputs; nothing else is removed."""
    return jaxpr if all(used) else _pe.prune_closed_jaxpr_outputs(jaxpr, tuple(used))


def dce(
    jaxpr: ClosedJaxpr, used_outputs: Sequence[bool], keep_inputs: bool | Sequence[bool] = False
) -> tuple[ClosedJaxpr, Mask]:
    """Without what the used outputs do not need, and which inputs are left; the very object that
    came in when everything is needed.
    """
    out: Any
    if compat.JAXPRS_ARE_CLOSED:
        out, used = _pe.dce_jaxpr(jaxpr, tuple(used_outputs), keep_inputs)
    else:
        inner, used = _pe.dce_jaxpr(jaxpr.jaxpr, tuple(used_outputs), keep_inputs)
        out = ClosedJaxpr(inner, jaxpr.consts)
    whole = all(used) and all(used_outputs) and _same_arities(jaxpr, out)
    return jaxpr if whole else out, tuple(used)


def _same_arities(before: ClosedJaxpr, after: ClosedJaxpr) -> bool:
    """Whether of two programs each equation takes and gives as many values."""
    first, then = (compat.open_jaxpr(each).eqns for each in (before, after))
    return len(first) == len(then) and all(
        a is b or (len(a.invars), len(a.outvars)) == (len(b.invars), len(b.outvars))
        for a, b in zip(first, then, strict=True)
    )


def jvp(jaxpr: ClosedJaxpr, nonzero: Mask) -> tuple[ClosedJaxpr, Mask]:
    """``(inputs, nonzero tangents) -> (outputs, nonzero tangents)``, and which those are."""
    out, nonzero_out = _ad.jvp_jaxpr(jaxpr, nonzero, False)
    return out, tuple(nonzero_out)


def batch(
    jaxpr: ClosedJaxpr, axis: Any, dims: Sequence[Any], *, first: bool = False
) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
    """The vectorised program, and where each output has its batch dimension: `first` of all, where
    `jax.vmap` would move it, or wherever it is.
    """
    if not first:
        out, dims_out = _batching.batch_jaxpr2(jaxpr, axis, tuple(dims))
        return out, tuple(dims_out)
    wanted = [_batching.zero_if_mapped] * len(jaxpr.out_avals)
    out, mapped = _batching.batch_jaxpr_axes(jaxpr, axis, tuple(dims), wanted)
    return out, tuple(0 if is_mapped else None for is_mapped in mapped)


def rows_of_device(axis: Any) -> Any:
    """The axis of the rows that a device has of a batch over explicit axes of a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    count = math.prod(mesh.shape[name] for name in axis.explicit_mesh_axis)
    return type(axis)(axis.name, axis.size // count, None, None)


def by_device(
    run: Callable[..., Any], axis: Any, dims: Sequence[Any], dims_out: Sequence[Any]
) -> Callable[..., list[Any]]:
    """A function that each device runs for its rows of a batch over explicit axes of a mesh."""
    over = axis.explicit_mesh_axis
    specs, specs_out = (
        [PartitionSpec() if d is None else PartitionSpec(*(None,) * d, over) for d in each]
        for each in (dims, dims_out)
    )
    mapped = jax.shard_map(
        run, in_specs=tuple(specs), out_specs=specs_out, axis_names={*over}, check_vma=False
    )
    return jax.jit(mapped, inline=True)


def moved_first(aval: Any, dim: int) -> ClosedJaxpr:
    """A program that moves a batch dimension to where `batch` has it `first`."""
    with _source_info.reset_name_stack():
        return compat.trace(lambda x: [_batching.moveaxis(x, dim, 0)], [aval])


class Linearized(NamedTuple):
    """``forward: inputs -> (outputs, kept)`` and ``tangent: (residuals, tangents) -> tangents``.

    `residuals` says where each comes from: ``("input", i)`` or ``("output", j)`` of `forward`.
    """

    forward: ClosedJaxpr
    tangent: ClosedJaxpr
    residuals: tuple[tuple[str, int], ...]
    nonzero_out: Mask


def linearize(jaxpr: ClosedJaxpr, nonzero: Mask, *, is_vjp: bool) -> Linearized:
    """JAX's own linearization of a program with respect to its inputs marked nonzero."""
    jaxpr, constants = hoist_constants(jaxpr)
    nonzero = (*(False for _ in constants), *nonzero)
    forward, made, nonzero_out, forwards, tangent = _ad.linearize_jaxpr(
        jaxpr, nonzero, is_vjp=is_vjp
    )
    num_outputs = len(jaxpr.out_avals)
    structured = 0
    if not isinstance(made, int):  # since 0.11 a tree: outputs, residuals, structured residuals
        structured = len(list(made.unpack()[2]))
    kept = iter(range(num_outputs, len(forward.out_avals)))
    residuals = [("output", next(kept)) if i is None else ("input", i) for i in forwards]
    residuals += [("output", next(kept)) for _ in range(structured)]
    if structured:  # they come after the tangents
        order = list(range(len(tangent.in_avals)))
        plain = len(forwards)
        order = [
            *order[:plain],
            *order[len(order) - structured :],
            *order[plain : len(order) - structured],
        ]
        tangent = _inputs_in_order(tangent, order)
    return bind_in_halves(
        Linearized(forward, tangent, tuple(residuals), tuple(nonzero_out)), constants
    )


def bind_in_halves(halves: Linearized, constants: Sequence[Any]) -> Linearized:
    """The halves of a program of which the first inputs are to be constants."""
    if not constants:
        return halves
    forward = bind_constants(halves.forward, constants)
    tangent, residuals = _bind_constant_residuals(halves.tangent, halves.residuals, constants)
    return halves._replace(forward=forward, tangent=tangent, residuals=residuals)


def _bind_constant_residuals(
    tangent: ClosedJaxpr, residuals: Sequence[tuple[str, int]], constants: Sequence[Any]
) -> tuple[ClosedJaxpr, tuple[tuple[str, int], ...]]:
    """Residuals that are constants of the program become constants of its tangent."""
    count = len(constants)
    bound = {
        k: constants[i] for k, (kind, i) in enumerate(residuals) if kind == "input" and i < count
    }
    left = tuple(
        (kind, i - count if kind == "input" else i)
        for k, (kind, i) in enumerate(residuals)
        if k not in bound
    )
    return bind_constants(_inputs_first(tangent, bound), [*bound.values()]), left


def _inputs_first(jaxpr: ClosedJaxpr, first: Mapping[int, Any]) -> ClosedJaxpr:
    """The jaxpr with some of its inputs before all others."""
    others = (i for i in range(len(jaxpr.in_avals)) if i not in first)
    return _inputs_in_order(jaxpr, [*first, *others]) if first else jaxpr


def _inputs_in_order(jaxpr: ClosedJaxpr, order: Sequence[int]) -> ClosedJaxpr:
    """The jaxpr with its inputs in another order."""
    inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
    info = inner.debug_info
    names = info.arg_names or ()
    if len(names) == len(order):
        info = info._replace(arg_names=tuple(names[i] for i in order))
    made = inner.replace(invars=[inner.invars[i] for i in order], debug_info=info)
    return made if compat.JAXPRS_ARE_CLOSED else ClosedJaxpr(made, jaxpr.consts)


def transpose(jaxpr: ClosedJaxpr, linear: Mask, nonzero: Mask) -> tuple[ClosedJaxpr, Mask]:
    """``(other inputs, cotangents) -> nonzero cotangents of linear inputs``, and which they are."""
    needed, _ = dce(jaxpr, nonzero, keep_inputs=True)
    num_others = len(linear) - sum(linear)
    found: list[bool] = []

    def transposed(*args: Any) -> list[Any]:
        out = backward_pass(needed, linear, args[:num_others], args[num_others:])
        found[:] = [ct is not None for ct in out]
        return [ct for ct in out if ct is not None]

    others = [a for a, is_linear in zip(needed.in_avals, linear, strict=True) if not is_linear]
    return compat.trace(transposed, [*others, *cotangent_avals(needed)]), tuple(found)


def has_backward_rules(tangent: ClosedJaxpr) -> bool:
    """Whether functions of the user's make cotangents in the transpose of this program."""
    return not compat.primitive_names(tangent).isdisjoint(_WITH_RULES)


def cotangent_avals(jaxpr: ClosedJaxpr) -> list[Any]:
    """The types of its outputs' cotangents."""
    return [a.to_ct_aval() for a in jaxpr.out_avals]


def backward_pass(
    jaxpr: ClosedJaxpr, linear: Mask, others: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Cotangents of the linear inputs, None where symbolically zero, equation by equation."""
    given = iter(others)
    args = [
        _ad.ValAccum(aval.to_ct_aval()) if is_linear else next(given)
        for aval, is_linear in zip(jaxpr.in_avals, linear, strict=True)
    ]
    inner = jaxpr if compat.JAXPRS_ARE_CLOSED else jaxpr.jaxpr
    _ad.backward_pass3(inner, True, jaxpr.consts, args, cotangents)
    frozen = [x.freeze() for x, is_linear in zip(args, linear, strict=True) if is_linear]
    return [None if is_zero(ct) else ct for ct in frozen]


class Partial(NamedTuple):
    """``known: inputs -> (outputs, kept)``, ``unknown: (residuals, unknown inputs) -> ...``."""

    known: ClosedJaxpr
    unknown: ClosedJaxpr
    unknown_out: Mask
    residuals: tuple[tuple[str, int], ...]


def partial_eval(jaxpr: ClosedJaxpr, unknown: Mask) -> Partial:
    """Split a program by what depends on its unknown inputs."""
    jaxpr, constants = hoist_constants(jaxpr)
    unknown = (*(False for _ in constants), *unknown)
    known, staged, unknown_out, _, forwards = _pe.partial_eval_jaxpr_nounits_fwd(
        jaxpr, unknown, False
    )
    kept = iter(range(len(unknown_out) - sum(unknown_out), len(known.out_avals)))
    residuals = tuple(("output", next(kept)) if i is None else ("input", i) for i in forwards)
    known = bind_constants(known, constants)
    staged, residuals = _bind_constant_residuals(staged, residuals, constants)
    return Partial(known, staged, tuple(unknown_out), residuals)


# ---------------------------------------------------------------- values


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is symbolically zero; integers have no other."""
    return isinstance(tangent, _ad.Zero) or getattr(tangent, "dtype", None) == jax.dtypes.float0


def zero_tangent(aval: Any) -> Any:
    """The symbolic zero tangent of a value of this type."""
    return _ad.Zero(aval.to_tangent_aval())


def zeros(aval: Any) -> Any:
    """An array of zeros of this type."""
    return _ad.instantiate_zeros(_ad.Zero(aval))


def context_key() -> Any:
    """What tracing depends on besides arguments: meshes, axis names, precision."""
    return _config.trace_context()


# ---------------------------------------------------------------- the rules of a primitive


class Rules(NamedTuple):
    """The rules of a primitive whose parameter `key` is an object with a `jaxpr`-like body."""

    abstract: Callable[..., tuple[Sequence[Any], Any]]
    """``(**params) -> (output types, effects)``"""
    evaluate: Callable[..., Sequence[Any]]
    """``(*args, **params) -> outputs``, outside of any trace"""
    lowered: Callable[..., ClosedJaxpr | Callable[..., Sequence[Any]]]
    """``(whether arrays may be divided over devices, asks for the donated arguments, **params)
    -> what to compile``: a jaxpr, or a function to trace"""
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
        program = rules.lowered(compat_devices.are_divided(ctx), donated, **params)
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


# ---------------------------------------------------------------- the options of `jax.jit`


def jit_options(fun: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function and the options of a jitted function; None if it is not one, or has layouts."""
    if not isinstance(fun, _JITTED):
        return None
    info, inner = fun._jit_info, fun._fun
    if any(x is not None for x in (*info.in_layouts_leaves, *info.out_layouts_leaves)):
        return None
    options: dict[str, Any] = {
        "in_shardings": _specified(info.in_shardings_treedef, info.in_shardings_leaves),
        "out_shardings": _specified(info.out_shardings_treedef, info.out_shardings_leaves),
        "static_argnums": info.static_argnums or None,
        "static_argnames": info.static_argnames or None,
        "donate_argnums": info.donate_argnums or None,
        "donate_argnames": info.donate_argnames or None,
        "keep_unused": info.keep_unused or None,
        "device": info.device,
        "backend": info.backend,
        "inline": _inline(info.inline),
        "compiler_options": dict(info.compiler_options_kvs) or None,
    }
    return inner, {name: value for name, value in options.items() if value is not None}


_JITTED: Any = type(jax.jit(lambda: None))


def _specified(tree: Any, leaves: Sequence[Any]) -> Any:
    if all(isinstance(leaf, _Unspecified) for leaf in leaves):
        return None
    return _tree.tree_unflatten(tree, leaves)


def _inline(value: Any) -> Any:
    """None for the default, which is False before 0.11 and an enum's AUTO after."""
    return None if value is False or getattr(value, "value", None) == "auto" else value
