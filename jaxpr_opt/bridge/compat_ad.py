"""JAX's transformations of closed jaxprs, each with one type of results on every version of JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax.extend.core import ClosedJaxpr
from jax.extend.core.primitives import add_jaxvals_p
from jax.sharding import PartitionSpec

from jaxpr_opt.bridge import (
    compat,
    compat_types,
)

_WITH_RULES = {"custom_lin", "call_hi_primitive_linearized", "optimized_linear"}
"""What stands for a `custom_vjp`, and for a program that may have one in it."""

Mask = tuple[bool, ...]


def add_cotangents(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sum of two cotangents, which tells that both are such."""
    total: jax.Array = add_jaxvals_p.bind(a, b)
    return total


def merged(mask: Sequence[bool], chosen: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """`others`, with those that the mask chooses replaced by `chosen`, in order."""
    each = iter(chosen)
    return [next(each) if on else other for on, other in zip(mask, others, strict=True)]


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
    touched = any(compat_types.is_ref(v.aval) for v in (*opened.constvars, *opened.invars))
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
    """The settings on which tracing depends besides arguments: meshes, axis names, precision."""
    return _config.trace_context()
