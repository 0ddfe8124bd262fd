"""Gradients of programs: forward and backward, optimised as one program, and taken apart.

Forward and backward are traced as ``(primals, cotangents) -> (outputs, cotangents in)``, optimised
as one, and split where they meet. Forward is ``optimized``; the tangent is ``optimized_linear``, a
linear map known by its transpose, which is ``optimized`` again.

A pipeline that has nothing to say about a gradient leaves JAX's own: forward and backward as JAX
makes them.  So does a backward program that is not linear in the cotangents of several outputs,
which a rule of the user's may make: what some of them contribute cannot be told apart.

An ``optimized_linear`` is only ever transposed in JAX as it is today.  Should something evaluate
it, it is the transpose of its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jaxpr_opt import settings
from jaxpr_opt.analysis.values.linearity import is_linear
from jaxpr_opt.boundary import checking
from jaxpr_opt.boundary.checking import UNCHECKED, History, Snapshots
from jaxpr_opt.boundary.constant_residuals import made_again
from jaxpr_opt.boundary.loops import with_reverse_mode
from jaxpr_opt.boundary.program import Program, memoised
from jaxpr_opt.bridge import compat, compat_ad, compat_repeats, guard
from jaxpr_opt.bridge.compat_ad import Mask
from jaxpr_opt.engine.split import Split
from jaxpr_opt.ir.importer import import_jaxpr

optimized_linear_p = Primitive("optimized_linear")


class Halves(NamedTuple):
    """A program taken apart for differentiation."""

    forward: Program
    """`inputs -> (outputs, further residuals)`"""
    residuals: tuple[tuple[str, int], ...]
    """Where each residual comes from: `("input", i)` or `("output", j)` of `forward`."""
    tangent: Program | LinearMap
    """`(residuals, nonzero tangents) -> nonzero tangents`"""
    nonzero_out: Mask

    def run_forward(self, primals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs and residuals."""
        made = self.forward(*primals)
        kept = [primals[i] if kind == "input" else made[i] for kind, i in self.residuals]
        return made[: len(self.nonzero_out)], kept


def linearized(program: Program, nonzero: Mask, is_vjp: bool) -> Halves:
    """The two halves of a program; passes that pay only where a gradient is stored run first."""
    return halves(differentiated(program) if is_vjp else program, nonzero, is_vjp)


@memoised
def differentiated(program: Program) -> Program:
    """The program after passes that pay only where a gradient is stored."""
    made = Program.optimized(
        program.jaxpr, program.pipeline, program.name, None, program.history, phase="differentiated"
    )
    return made if made.changed else program


@memoised
def halves(program: Program, nonzero: Mask, is_vjp: bool) -> Halves:
    """The two halves of a program as it is, optimised as one if the tangent will be transposed."""
    jaxpr = with_reverse_mode(program.jaxpr, program.pipeline) if is_vjp else program.jaxpr
    plain = compat_repeats.linearize(jaxpr, nonzero, is_vjp=is_vjp)
    plain = made_again(plain, len(jaxpr.out_avals))
    tangent = Program(plain.tangent, program.pipeline, f"tangent({program.name})")
    if is_vjp and any(plain.nonzero_out):
        joint = _joint(program, plain, tangent, nonzero)
        if joint is not None:
            return joint
        tangent = replace(tangent, pipeline=program.pipeline.unbudgeted)
    forward = Program(plain.forward, tangent.pipeline, program.name, None, program.history)
    forward = replace(forward, has_residuals=True)
    return Halves(forward, plain.residuals, tangent, plain.nonzero_out)


def _joint(
    program: Program, plain: compat_ad.Linearized, tangent: Program, nonzero: Mask
) -> Halves | None:
    """Forward and backward optimised as one and split; None if no pass had anything to do."""
    num_inputs, num_outputs = len(program.jaxpr.in_avals), len(program.jaxpr.out_avals)
    num_residuals = len(plain.residuals)
    moving = tuple(i >= num_residuals for i in range(len(plain.tangent.in_avals)))
    try:
        back, nonzero_in = tangent.backward(moving, (True,) * sum(plain.nonzero_out))
        if sum(plain.nonzero_out) > 1 and not _is_linear(plain, back):
            return None  # `LinearMap.restricted` could not leave out a cotangent
        split = program.pipeline.run_joined(
            Split(plain.forward, back, plain.residuals), num_outputs, always=bool(program.history)
        )
    except Exception as error:  # an optimiser must not take the user's gradient down with it
        if guard.is_of_symbols(error):
            return None
        if settings.current().strict:
            raise
        if _has_transpose(plain):
            left = f"the gradient of {program.name} was left unchanged: {error}"
            guard.failed(error, left, again=True)
        return None
    if split is None:
        return None
    ahead, backward, residuals = split.forward, split.backward, split.residuals
    history = UNCHECKED
    if program.history:  # the backward half is checked against the primals, which must reach it
        count = len(ahead.out_avals)
        ahead = _with_copies(ahead)
        residuals = (*residuals, *(("output", count + i) for i in range(num_inputs)))
        backward = _with_unused_inputs(backward, len(split.residuals), program.jaxpr.in_avals)
        joint, _ = _joint_program(plain, num_inputs, num_outputs)
        snapshots = program.pipeline.run(joint, "differentiable").snapshots
        history = _backward_history(program, plain, nonzero, nonzero_in, snapshots)
        history = history.guarded(split.forward, split.residuals, split.backward)
    pipeline, name = program.pipeline.unbudgeted, f"vjp({program.name})"
    linear = LinearMap(
        Program(backward, pipeline, name, None, history, changed=True, is_backward=True),
        len(residuals),
        tuple(
            a.to_tangent_aval() for a, nz in zip(program.jaxpr.in_avals, nonzero, strict=True) if nz
        ),
        tuple(
            a.to_tangent_aval()
            for a, nz in zip(program.jaxpr.out_avals, plain.nonzero_out, strict=True)
            if nz
        ),
        nonzero_in,
    )
    spent = program.pipeline.unbudgeted
    forward = Program(ahead, spent, program.name, None, program.history, True, True)
    return Halves(forward, residuals, linear, plain.nonzero_out)


def _backward_history(
    program: Program,
    plain: compat_ad.Linearized,
    nonzero: Mask,
    nonzero_in: Mask,
    snapshots: Snapshots,
) -> History:
    """The reference for `(inputs, nonzero cotangents) -> nonzero cotangents in`."""
    num_outputs, count = len(program.jaxpr.out_avals), sum(nonzero_in)
    derived = program.lineage().mapped(
        lambda f: checking.vjp(f, nonzero, plain.nonzero_out, nonzero_in), count
    )
    joint = UNCHECKED.followed_by(snapshots).mapped(
        lambda f: lambda *args: f(*args)[num_outputs:], count
    )
    return History((*derived.steps, *joint.steps), count)


def _joint_program(
    plain: compat_ad.Linearized, num_inputs: int, num_outputs: int
) -> tuple[ClosedJaxpr, Mask]:
    """`(inputs, cotangents) -> (outputs, nonzero cotangents in)`, and which those are."""
    num_residuals = len(plain.residuals)
    linear = tuple(i >= num_residuals for i in range(len(plain.tangent.in_avals)))
    found: list[bool] = []

    def joint(*args: Any) -> list[Any]:
        primals, cotangents = args[:num_inputs], args[num_inputs:]
        made = jaxpr_as_fun(plain.forward)(*primals)
        residuals = [primals[i] if kind == "input" else made[i] for kind, i in plain.residuals]
        back = compat_ad.backward_pass(plain.tangent, linear, residuals, cotangents)
        found[:] = [ct is not None for ct in back]
        return [*made[:num_outputs], *(ct for ct in back if ct is not None)]

    avals = [*plain.forward.in_avals, *compat_ad.cotangent_avals(plain.tangent)]
    return compat.trace(joint, avals), tuple(found)


def _is_linear(plain: compat_ad.Linearized, back: ClosedJaxpr) -> bool:
    """Whether a backward program is linear in the cotangents.

    JAX's own rules are; those of the user's (`jax.custom_vjp`) are looked at.
    """
    if not compat_ad.has_backward_rules(plain.tangent):
        return True
    graph = import_jaxpr(back)
    return is_linear(graph, graph.inputs[len(plain.residuals) :])


def _has_transpose(plain: compat_ad.Linearized) -> bool:
    """Whether JAX makes a backward program by itself: rules of the user may fail in it."""
    n, tangent = len(plain.residuals), jaxpr_as_fun(plain.tangent)

    def pulled(*args: Any) -> Any:
        residuals, tangents = args[:n], args[n:]
        pull = jax.linear_transpose(lambda *xs: list(tangent(*residuals, *xs)), *tangents)
        return pull([jnp.zeros(a.shape, a.dtype) for a in plain.tangent.out_avals])

    try:
        jax.eval_shape(pulled, *plain.tangent.in_avals)
    except Exception:  # noqa: BLE001  whatever a user's rule raises
        return False
    return True


def _with_copies(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same program that also returns its inputs, which the caller may have given up."""
    run = jaxpr_as_fun(jaxpr)
    return compat.trace(lambda *args: [*run(*args), *map(jnp.copy, args)], jaxpr.in_avals)


def _with_unused_inputs(jaxpr: ClosedJaxpr, at: int, avals: Sequence[Any]) -> ClosedJaxpr:
    """The same program with further inputs at a position, unused."""
    run, count = jaxpr_as_fun(jaxpr), len(avals)
    every = [*jaxpr.in_avals[:at], *avals, *jaxpr.in_avals[at:]]
    return compat.trace(lambda *args: run(*args[:at], *args[at + count :]), every)


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap:
    """A linear map `(residuals, tangents) -> tangents`, known by its transpose; the parameter of
    ``optimized_linear``.
    """

    transposed: Program
    """`(residuals, cotangents) -> cotangents` of the tangents marked in `nonzero_in`."""
    num_residuals: int
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    nonzero_in: Mask
    """Which tangents have any influence."""
    _memo: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"transpose(<{self.transposed.name}>)"

    def __call__(self, *args: Any) -> list[Any]:
        return list(optimized_linear_p.bind(*args, linear=self))

    def plain(self, *args: Any) -> list[Any]:
        """The map as JAX transposes its transpose."""
        n, jaxpr = self.num_residuals, self.transposed.jaxpr
        back = jax.linear_transpose(
            lambda *cts: list(jaxpr_as_fun(jaxpr)(*args[:n], *cts)), *jaxpr.in_avals[n:]
        )
        return list(back([t for t, nz in zip(args[n:], self.nonzero_in, strict=True) if nz]))

    @memoised
    def restricted(self, used: Mask) -> tuple[LinearMap, Mask]:
        """The map to some of its outputs only, and which operands that map takes.

        The transpose is linear in its cotangents, hence its own derivative; the derivative in the
        direction of the used ones alone knows which cotangents are symbolically zero, and needs
        only their part of the residuals.
        """
        if all(used):
            return self, (True,) * (self.num_residuals + len(self.in_avals))
        whole, n = self.transposed, self.num_residuals
        derivative, nonzero = compat_ad.jvp(whole.jaxpr, ((False,) * n) + used)
        cotangents = whole.jaxpr.in_avals[n:]
        run, count = jaxpr_as_fun(derivative), len(whole.jaxpr.out_avals)

        def pulled(*args: Any) -> list[Any]:
            return list(run(*args[:n], *map(compat_ad.zeros, cotangents), *args[n:])[count:])

        seeds = [a for a, keep in zip(cotangents, used, strict=True) if keep]
        jaxpr, inputs = compat_ad.dce(
            compat.trace(pulled, [*whole.jaxpr.in_avals[:n], *seeds]),
            [True] * sum(nonzero),
            keep_inputs=[bool(whole.history)] * n + [True] * len(seeds),
        )
        history = whole.history.mapped(
            lambda f: _restricted(f, n, cotangents, used, nonzero), sum(nonzero)
        )
        linear = LinearMap(
            Program.optimized(jaxpr, whole.pipeline, whole.name, None, history),
            sum(inputs[:n]),
            self.in_avals,
            tuple(a for a, keep in zip(self.out_avals, used, strict=True) if keep),
            _refined(self.nonzero_in, nonzero),
        )
        return linear, (*inputs[:n], *(True for _ in self.in_avals))

    @memoised
    def evaluated(self) -> Program:
        """The map as a program of its own: the transpose of its transpose."""
        whole, n = self.transposed, self.num_residuals
        jaxpr = whole.jaxpr
        cotangents = jaxpr.in_avals[n:]
        nonzero = (*((False,) * n), *(True for _ in cotangents))
        plain = compat_ad.linearize(jaxpr, nonzero, is_vjp=True)
        joint, nonzero_out = _joint_program(plain, len(jaxpr.in_avals), len(jaxpr.out_avals))
        run, count = jaxpr_as_fun(joint), len(jaxpr.out_avals)

        def forward(*args: Any) -> list[Any]:
            moving = [t for t, nz in zip(args[n:], self.nonzero_in, strict=True) if nz]
            moving = [t for t, nz in zip(moving, plain.nonzero_out, strict=True) if nz]
            made = iter(run(*args[:n], *map(compat_ad.zeros, cotangents), *moving)[count:])
            return [
                next(made) if nz else compat_ad.zeros(a)
                for a, nz in zip(self.out_avals, nonzero_out, strict=True)
            ]

        avals = [*jaxpr.in_avals[:n], *self.in_avals]
        return Program.optimized(
            compat.trace(forward, avals), whole.pipeline, f"transpose({whole.name})"
        )


def _refined(mask: Mask, left: Mask) -> Mask:
    """Refine a mask by another over its true entries."""
    each = iter(left)
    return tuple(on and next(each) for on in mask)


def _restricted(
    fun: checking.Function, n: int, cotangents: Sequence[Any], used: Mask, nonzero: Mask
) -> checking.Function:
    def run(*args: Any) -> list[Any]:
        given = iter(args[n:])
        full = [
            next(given) if keep else compat_ad.zeros(a)
            for a, keep in zip(cotangents, used, strict=True)
        ]
        return [ct for ct, nz in zip(fun(*args[:n], *full), nonzero, strict=True) if nz]

    return run
