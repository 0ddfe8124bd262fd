"""JAX's rules for ``optimized`` and ``optimized_linear``, and the entry point of `optimize`.

`jaxpr_opt.boundary.program` says what the rules do; here they get the form that JAX requires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun, no_effects
from jax.interpreters import ad

from jaxpr_opt import settings
from jaxpr_opt.analysis.values.constants import fetched
from jaxpr_opt.boundary import checking
from jaxpr_opt.boundary.checking import UNCHECKED
from jaxpr_opt.boundary.gradients import LinearMap, linearized, optimized_linear_p
from jaxpr_opt.boundary.program import ForwardMode, Program, optimized_p
from jaxpr_opt.bridge import compat, compat_ad, compat_rules, compat_types, dtypes, guard
from jaxpr_opt.bridge.compat_ad import Mask
from jaxpr_opt.bridge.compat_rules import NO_REFS, Refs
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.pipeline import Pipeline


def call(jaxpr: ClosedJaxpr, pipeline: Pipeline, name: str, args: Sequence[Any]) -> Sequence[Any]:
    """Run a freshly traced program, optimised; one with mutable arrays stays as it is."""

    def plain() -> list[Any]:
        return list(jaxpr_as_fun(jaxpr)(*args))

    def optimized() -> list[Any]:
        closed, constants = compat_ad.hoist_unknown(jaxpr, _is_known)
        if compat_ad.uses_references(closed) or compat.has_high_types(closed):
            return plain()
        compat_rules.register_sparsify(optimized_p)
        return Program.optimized(closed, pipeline, name)(*constants, *args)

    return guard.attempt(optimized, plain, name)


def _is_known(constant: Any) -> bool:
    """Whether passes may read a captured array: what a step does may depend on its numbers."""
    dtype = getattr(constant, "dtype", None)  # what is no array may be captured, too
    if not dtypes.is_integral(dtype) or constant.size > limits.STEPS_KNOWN:
        return False
    return fetched(constant) is not None


# ---------------------------------------------------------------- rules of ``optimized``


def _abstract(*, program: Program, **_: Any) -> tuple[Sequence[Any], Any]:
    return list(map(compat_types.typed_here, program.jaxpr.out_avals)), program.jaxpr.effects


def _evaluate(*args: Any, program: Program, **_: Any) -> Sequence[Any]:
    return program.compiled()(*args)


def _expand(*args: Any, program: Program, **_: Any) -> Sequence[Any]:
    made: Callable[..., Sequence[Any]] = guard.attempt(
        program.lowered, lambda: jaxpr_as_fun(program.jaxpr), program.name
    )
    return made(*args)


def _lowered(
    divided: bool,
    donated: Callable[[], frozenset[int]],
    exported: bool,
    *,
    program: Program,
    **_: Any,
) -> ClosedJaxpr | Callable[..., Sequence[Any]]:
    # Without a budget the answer would only optimise one program several times.
    given_up = frozenset[int]() if program.pipeline.memory is None else donated()
    return program.final(divided, given_up, exported=exported)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, **_: Any
) -> tuple[list[Any], list[Any]]:
    nonzero = tuple(not compat_ad.is_zero(t) for t in tangents)
    moved, nonzero_out = program.jvp(nonzero)
    made = moved(*primals, *(t for t, nz in zip(tangents, nonzero, strict=True) if nz))
    outputs, rest = made[: len(nonzero_out)], iter(made[len(nonzero_out) :])
    return outputs, [
        next(rest) if nz else compat_ad.zero_tangent(a)
        for nz, a in zip(nonzero_out, program.jaxpr.out_avals, strict=True)
    ]


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, program: Program, **_: Any
) -> tuple[list[Any], Sequence[Any]]:
    vectorised: Callable[..., list[Any]]
    try:
        vectorised, dims_out = program.batched(axis, tuple(dims))
    except Exception:
        if axis.explicit_mesh_axis is None or program.jaxpr.effects:
            raise
        # JAX asks of some ops how results are divided, which those of passes do not say.
        vectorised, dims_out = program.batched_by_device(axis, tuple(dims))
    return vectorised(*args), dims_out


def _transpose(
    cotangents: Sequence[Any], *args: Any, program: Program, refs: Refs = NO_REFS, **_: Any
) -> list[Any]:
    linear = tuple(ad.is_undefined_primal(x) for x in args)
    nonzero = tuple(not compat_ad.is_zero(ct) for ct in cotangents)
    transposed, nonzero_in = program.transposed(linear, nonzero)
    known = [x for x, is_linear in zip(args, linear, strict=True) if not is_linear]
    given = [ct for ct, nz in zip(cotangents, nonzero, strict=True) if nz]
    pulled = iter(nonzero_in)
    mask = [is_linear and next(pulled) for is_linear in linear]
    return _pull(transposed, [*known, *given], mask, refs)


def _pull(program: Program, operands: Sequence[Any], mask: Sequence[bool], refs: Refs) -> list[Any]:
    """The cotangents that a program computes of the marked arguments; what is to be added to a ref
    is added, and not returned.
    """
    marked = [i for i, on in enumerate(mask) if on]
    avals = dict(zip(marked, program.jaxpr.out_avals, strict=True))
    fitting = {i: ref for i, ref in refs.items() if i in avals and _fits(ref, avals[i])}
    if fitting:
        program = program.onto(tuple(i in fitting for i in marked))
        operands = [*operands, *(fitting[i][...] for i in marked if i in fitting)]
    made = dict(zip(marked, program(*operands), strict=True))
    for i, ref in fitting.items():
        ref[...] = made.pop(i)
    return [made.get(i) for i in range(len(mask))]


def _fits(ref: Any, aval: Any) -> bool:
    return compat_types.same_type(compat_types.aval_of(ref).inner_aval, aval)


def _dce(used: Mask, *, program: Program, **_: Any) -> tuple[Mask, dict[str, Any]]:
    left, inputs = program.needed(used)
    return inputs, {"jaxpr": left.jaxpr, "program": left}


def _linearize(
    is_vjp: bool, nonzero: Mask, *primals: Any, program: Program, **_: Any
) -> tuple[Sequence[Any], Mask, Sequence[Any], Callable[..., Any]]:
    halves = linearized(program, nonzero, is_vjp)
    outputs, residuals = halves.run_forward(primals)
    return (
        outputs,
        halves.nonzero_out,
        residuals,
        lambda kept, tangents: halves.tangent(*kept, *tangents),
    )


def _split(
    unknown: Mask, values: Sequence[Any], *, program: Program, **_: Any
) -> tuple[Sequence[Any], Mask, Sequence[Any], Primitive, dict[str, Any]]:
    """Run what is known now; see `compat_rules.register_partial_eval`."""
    mode = program.forward_mode
    if mode is not None and _only_tangents(unknown, mode):
        return _split_forward_mode(values, program, mode)
    program = program.transposable(unknown)
    parts = compat_ad.partial_eval(program.jaxpr, unknown)
    num_known = len(parts.unknown_out) - sum(parts.unknown_out)
    made = _half(parts.known, program, num_known)(*values)
    residuals = [values[i] if kind == "input" else made[i] for kind, i in parts.residuals]
    staged = Program(parts.unknown, program.pipeline, program.name, changed=program.changed)
    return (
        made[:num_known],
        parts.unknown_out,
        residuals,
        optimized_p,
        {"jaxpr": staged.jaxpr, "program": staged},
    )


def _split_forward_mode(
    primals: Sequence[Any], program: Program, mode: ForwardMode
) -> tuple[Sequence[Any], Mask, Sequence[Any], Primitive, dict[str, Any]]:
    halves = linearized(mode.base, mode.nonzero, True)
    outputs, residuals = halves.run_forward(primals)
    unknown_out = program.tangents_left()
    known = [
        outputs[i]
        for i, is_tangent in zip(mode.outputs, unknown_out, strict=True)
        if not is_tangent
    ]
    used = tuple(
        i in mode.outputs for i in range(len(outputs), len(outputs) + sum(halves.nonzero_out))
    )
    if isinstance(halves.tangent, Program):
        tangent = halves.tangent.select(used)
        return (
            known,
            unknown_out,
            residuals,
            optimized_p,
            {"jaxpr": tangent.jaxpr, "program": tangent},
        )
    linear, operands = halves.tangent.restricted(used)
    residuals = [x for x, keep in zip(residuals, operands, strict=False) if keep]
    return known, unknown_out, residuals, optimized_linear_p, {"linear": linear}


def _only_tangents(unknown: Mask, mode: ForwardMode) -> bool:
    """Whether all primals are known and no tangent is."""
    return unknown == ((False,) * len(mode.nonzero)) + ((True,) * sum(mode.nonzero))


def _half(jaxpr: ClosedJaxpr, program: Program, num_outputs: int) -> Program:
    """A part of a program; its further outputs are residuals, where dummies may change."""
    history = UNCHECKED
    if settings.current().check and not compat_ad.has_side_effects(jaxpr):
        history = replace(checking.begin(jaxpr), outputs=num_outputs)
    return Program(jaxpr, program.pipeline, program.name, None, history, program.changed, True)


def _whole(unknown: Mask, *, program: Program, **_: Any) -> dict[str, Any]:
    whole = program.transposable(unknown)
    return {"jaxpr": whole.jaxpr, "program": whole}


def _rebuild(num_outputs: int, *, jaxpr: ClosedJaxpr, program: Program) -> dict[str, Any]:
    return {"jaxpr": jaxpr, "program": _half(jaxpr, program, num_outputs)}


def _replay(unknown: Mask, wanted: Mask, *, program: Program, **_: Any) -> dict[str, Any] | None:
    mode = program.forward_mode
    if mode is None or not _only_tangents(unknown, mode):
        return None
    selected = program.select(wanted)
    return {"jaxpr": selected.jaxpr, "program": selected}


def _plain(*, jaxpr: ClosedJaxpr, **_: Any) -> Callable[..., Sequence[Any]]:
    run: Callable[..., Sequence[Any]] = jaxpr_as_fun(jaxpr)
    return run


compat_rules.register(
    optimized_p,
    compat_rules.Rules(_abstract, _evaluate, _lowered, _jvp, _batch, _transpose, _dce, _plain),
)
compat_rules.register_accumulation(optimized_p, _transpose)
compat_rules.register_expansion(optimized_p, _expand)
compat_rules.register_linearization(optimized_p, _linearize)
compat_rules.register_partial_eval(optimized_p, _split, _whole, _rebuild, _replay)
compat_rules.register_checkify(optimized_p)
compat_rules.register_taylor_mode(optimized_p)


# ---------------------------------------------------------------- rules of ``optimized_linear``


def _linear_abstract(*, linear: LinearMap) -> tuple[Sequence[Any], Any]:
    return list(map(compat_types.typed_here, linear.out_avals)), no_effects


def _linear_evaluate(*args: Any, linear: LinearMap) -> Sequence[Any]:
    return linear.evaluated()(*args)


def _linear_lowered(
    divided: bool, donated: Callable[[], frozenset[int]], exported: bool, *, linear: LinearMap
) -> Callable[..., Sequence[Any]]:
    del divided, donated, exported  # its program asks when it is lowered
    return linear.evaluated()


def _linear_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, linear: LinearMap
) -> tuple[list[Any], list[Any]]:
    program = linear.evaluated()
    return _jvp(primals, tangents, program=program)


def _linear_batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, linear: LinearMap
) -> tuple[list[Any], Sequence[Any]]:
    program = linear.evaluated()
    return _batch(axis, args, dims, program=program)


def _linear_transpose(
    cotangents: Sequence[Any], *args: Any, linear: LinearMap, refs: Refs = NO_REFS
) -> list[Any]:
    nonzero = tuple(not compat_ad.is_zero(ct) for ct in cotangents)
    if not any(nonzero):
        return [None] * len(args)
    restricted, operands = linear.restricted(nonzero)
    n = linear.num_residuals
    residuals = [x for x, keep in zip(args[:n], operands, strict=False) if keep]
    given = [ct for ct, nz in zip(cotangents, nonzero, strict=True) if nz]
    mask = [*(False for _ in range(n)), *restricted.nonzero_in]
    return _pull(restricted.transposed, [*residuals, *given], mask, refs)


def _linear_dce(used: Mask, *, linear: LinearMap) -> tuple[Mask, dict[str, Any]]:
    restricted, operands = linear.restricted(used)
    return operands, {"linear": restricted}


def _linear_plain(*, linear: LinearMap) -> Callable[..., Sequence[Any]]:
    return linear.plain


compat_rules.register(
    optimized_linear_p,
    compat_rules.Rules(
        _linear_abstract,
        _linear_evaluate,
        _linear_lowered,
        _linear_jvp,
        _linear_batch,
        _linear_transpose,
        _linear_dce,
        _linear_plain,
    ),
)
compat_rules.register_accumulation(optimized_linear_p, _linear_transpose)
