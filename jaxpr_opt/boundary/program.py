"""The boundary between an optimised program and JAX's transformations.

`optimize` wraps what it made in one equation, ``optimized[program]``, so that `grad`, `vmap` and
the others still see a function they can transform, and what they make of it is optimised again:

=============  =====================================================================================
evaluated      the *final* phase runs when the equation is lowered: nothing differentiates any more
``jvp``        ``optimized`` of the forward-mode program; no residuals are kept
``vmap``       ``optimized`` of the vectorised program
``vjp``        forward and backward are traced as one program, ``(primals, cotangents) -> (outputs,
               cotangents in)``, optimised as one, and split where they meet.  Forward is
               ``optimized``; the tangent is ``optimized_linear``, the linear map known by its
               transpose, which is ``optimized`` again
``linearize``  JAX's own forward and tangent programs, as two ``optimized``
transpose      ``optimized`` of the transposed program
=============  =====================================================================================

A pipeline that has nothing to say about a gradient leaves JAX's own: forward and backward as JAX
makes them.  So does a backward program that is not linear in the cotangents of several outputs,
which a rule of the user's may make: for some of them it cannot be told from that for all.

`jax.checkpoint` and loops inside it differentiate by forward mode and split the result by what is
known.  A forward-mode program therefore remembers what it is the forward mode of (`ForwardMode`):
asked to split itself where all primals are known it goes back there and answers as ``vjp`` would.

An ``optimized_linear`` is only ever transposed in JAX as it is today.  Should something evaluate
it, it is the transpose of its transpose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jaxpr_opt import settings
from jaxpr_opt.analysis.values.linearity import has_transpose, is_linear
from jaxpr_opt.boundary import accumulation, checking
from jaxpr_opt.boundary.checking import UNCHECKED, History, Snapshots
from jaxpr_opt.boundary.constant_residuals import made_again
from jaxpr_opt.boundary.loops import with_reverse_mode
from jaxpr_opt.bridge import compat, compat_ad, compat_repeats, guard
from jaxpr_opt.bridge.compat_ad import Mask
from jaxpr_opt.bridge.interpreter_stack import uncollected, with_large_frame
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.engine.split import Split
from jaxpr_opt.frames import frame_text, raised_at
from jaxpr_opt.ir.graph import Phase
from jaxpr_opt.ir.importer import import_jaxpr

P = ParamSpec("P")
T = TypeVar("T")

optimized_p = Primitive("optimized")
optimized_linear_p = Primitive("optimized_linear")


def _remembered(method: Callable[P, T]) -> Callable[P, T]:
    """Cache a method on its instance, so that the results live as long as it does."""

    @functools.wraps(method)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        self, *rest = args
        memo: dict[Any, Any] = self._memo  # type: ignore[attr-defined]
        key = (method.__name__, *rest, compat_ad.context_key())
        if key not in memo:
            with uncollected():
                memo[key] = with_large_frame(method)(*args, **kwargs)
        return memo[key]  # type: ignore[no-any-return]

    return cached


class ForwardMode(NamedTuple):
    """What a forward-mode program is the forward mode of."""

    base: Program
    nonzero: Mask
    outputs: tuple[int, ...]
    """Which outputs of the whole are left: those of `base`, then the nonzero tangents."""


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


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A closed jaxpr and the pipeline it belongs to; the parameter of ``optimized``."""

    jaxpr: ClosedJaxpr
    pipeline: Pipeline
    name: str
    forward_mode: ForwardMode | None = None
    history: History = UNCHECKED
    """In check mode, what must compute the same (see `jaxpr_opt.boundary.checking`)."""
    changed: bool = False
    """Whether passes made it what it is: then tidying up what batching makes of it is worth it."""
    has_residuals: bool = False
    """Whether a backward program reads some outputs: their batch axes stay where they are."""
    is_backward: bool = False
    """Whether it is the second half of a gradient: it shares memory with the first."""
    source: ClosedJaxpr | None = None
    """What it was before passes, where they changed it and it is remembered."""
    _memo: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def optimized(
        cls,
        jaxpr: ClosedJaxpr,
        pipeline: Pipeline,
        name: str,
        forward_mode: ForwardMode | None = None,
        history: History = UNCHECKED,
        *,
        phase: Phase = "differentiable",
        keeps_cleanup: bool = False,
    ) -> Program:
        """A program after the differentiable phase of its pipeline."""
        result = pipeline.run(jaxpr, phase, keeps_cleanup=keeps_cleanup)
        if settings.current().check and not compat_ad.has_side_effects(jaxpr):
            history = (history or checking.begin(jaxpr)).followed_by(result.snapshots)
        changed = result.jaxpr is not jaxpr
        source = jaxpr if changed else None
        return cls(result.jaxpr, pipeline, name, forward_mode, history, changed, source=source)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: Any) -> list[Any]:
        """Bind ``optimized``, but for outputs that are inputs, or are another output."""
        needed, sources = self._without_copies()
        made: Sequence[Any] = ()
        if needed.jaxpr.out_avals or needed.jaxpr.effects:
            made = optimized_p.bind(*args, jaxpr=needed.jaxpr, program=needed)
        return [args[i] if kind == "input" else made[i] for kind, i in sources]

    @_remembered
    def _without_copies(self) -> tuple[Program, tuple[tuple[str, int], ...]]:
        inputs, first = compat_ad.forwarded(self.jaxpr), compat_ad.repeated(self.jaxpr)
        used = [inputs[i] is None and first[i] == i for i in range(len(first))]
        position = {i: k for k, i in enumerate(i for i, keep in enumerate(used) if keep)}
        sources = tuple(
            ("output", position[j]) if i is None else ("input", i)
            for i, j in zip(inputs, first, strict=True)
        )
        return self.select(tuple(used)), sources

    def select(self, used: Mask) -> Program:
        """The same program with fewer outputs, nothing else removed."""
        if all(used):
            return self
        mode = self.forward_mode
        if mode is not None:
            left = tuple(i for i, keep in zip(mode.outputs, used, strict=True) if keep)
            mode = mode._replace(outputs=left)
        keep = [i for i, is_used in enumerate(used[: self.history.outputs]) if is_used]
        history = self.history.mapped(lambda f: lambda *args: _at(f(*args), keep), len(keep))
        jaxpr = compat_ad.select_outputs(self.jaxpr, used)
        source = self.source and compat_ad.select_outputs(self.source, used)
        self.pipeline.mark_part_optimized(self.jaxpr, jaxpr)
        return replace(
            self, jaxpr=jaxpr, source=source, forward_mode=mode, history=history, _memo={}
        )

    @_remembered
    def needed(self, used: Mask) -> tuple[Program, Mask]:
        """The program without what the used outputs do not need, and the inputs left.

        One that remembers what it is the forward mode of, or is checked, keeps its inputs.
        """
        selected = self.select(used)
        if self.history or (selected.forward_mode is not None and selected.tangents_left()):
            return selected, (True,) * len(self.jaxpr.in_avals)
        jaxpr, inputs = compat_ad.dce(self.jaxpr, used)
        if jaxpr is self.jaxpr:
            return self, inputs
        self.pipeline.mark_part_optimized(self.jaxpr, jaxpr)
        left = replace(
            self, jaxpr=jaxpr, source=None, forward_mode=None, history=UNCHECKED, _memo={}
        )
        return left, inputs

    @_remembered
    def transposable(self, moving: Mask) -> Program:
        """The program that JAX can transpose in these inputs: what it was before passes, where they
        wrote zeros instead of selecting them, at places of which some may meet.
        """
        if self.source is None or "scatter" not in compat.primitive_names(self.jaxpr):
            return self
        graph = import_jaxpr(self.jaxpr, pipeline=self.pipeline)
        if has_transpose(graph, compress(graph.inputs, moving)):
            return self
        return replace(self, jaxpr=self.source, source=None, changed=False, _memo={})

    def tangents_left(self) -> Mask:
        """Which outputs of a forward-mode program are tangents; empty if none is left."""
        assert self.forward_mode is not None
        count = len(self.forward_mode.base.jaxpr.out_avals)
        mask = tuple(i >= count for i in self.forward_mode.outputs)
        return mask if any(mask) else ()

    def _lineage(self) -> History:
        """What derivatives of this program are checked against; with residuals it begins here."""
        whole = self.history.outputs == len(self.jaxpr.out_avals) and not self.history.guard
        return checking.begin(self.jaxpr) if self.history and not whole else self.history

    # ------------------------------------------------------------ transformations

    @_remembered
    def jvp(self, nonzero: Mask) -> tuple[Program, Mask]:
        """The forward-mode program, and which output tangents are not symbolically zero."""
        jaxpr, nonzero_out = compat_ad.jvp(self.jaxpr, nonzero)
        history = self._lineage().mapped(
            lambda f: checking.jvp(f, nonzero, nonzero_out), len(jaxpr.out_avals)
        )
        mode = ForwardMode(self, nonzero, tuple(range(len(jaxpr.out_avals))))
        return Program.optimized(
            jaxpr, self.pipeline, f"jvp({self.name})", mode, history
        ), nonzero_out

    @_remembered
    def batched(self, axis: Any, dims: tuple[Any, ...]) -> tuple[Program, tuple[Any, ...]]:
        """The vectorised program, and the batch dimensions of its outputs."""
        # With arguments that have it elsewhere, `jax.vmap` likely wants results that have, too.
        first = not self.has_residuals and all(dim in {None, 0} for dim in dims)
        jaxpr, dims_out = compat_repeats.batch(self.jaxpr, axis, dims, first=first)
        history = self.history.mapped(
            lambda f: checking.vmap(f, axis, dims, dims_out), self.history.outputs
        )
        name = f"vmap({self.name})"
        made = Program.optimized(
            jaxpr, self.pipeline, name, None, history, keeps_cleanup=self.changed
        )
        reads, is_backward = self.has_residuals, self.is_backward
        made = replace(made, has_residuals=reads, is_backward=is_backward, _memo={})
        return made, dims_out

    @_remembered
    def batched_by_device(
        self, axis: Any, dims: tuple[Any, ...]
    ) -> tuple[Callable[..., list[Any]], tuple[Any, ...]]:
        """The vectorised program for explicit axes of a mesh, as a function: each device runs its
        rows, and types inside say nothing of the mesh.
        """
        made, dims_out = self.batched(compat_ad.rows_of_device(axis), dims)
        return compat_ad.by_device(made, axis, dims, dims_out), dims_out

    @_remembered
    def transposed(self, linear: Mask, nonzero: Mask) -> tuple[Program, Mask]:
        """`(other inputs, nonzero cotangents) -> nonzero cotangents of the linear inputs`.

        Also says for which linear inputs.
        """
        whole = self.transposable(linear)
        if whole is not self:
            return whole.transposed(linear, nonzero)
        jaxpr, nonzero_in = self._backward(linear, nonzero)
        made = Program.optimized(jaxpr, self.pipeline, f"transpose({self.name})")
        return replace(made, is_backward=True, _memo={}), nonzero_in

    @_remembered
    def _backward(self, linear: Mask, nonzero: Mask) -> tuple[ClosedJaxpr, Mask]:
        return compat_ad.transpose(self.jaxpr, linear, nonzero)

    @_remembered
    def onto(self, added: Mask) -> Program:
        """`(inputs, bases) -> outputs`, the marked ones added to their bases."""
        jaxpr = accumulation.onto(self.jaxpr, added)
        self.pipeline.mark_part_optimized(self.jaxpr, jaxpr)
        return Program(jaxpr, self.pipeline, self.name, changed=self.changed)

    @_remembered
    def differentiated(self) -> Program:
        """The program as reverse mode is to see it."""
        made = Program.optimized(
            self.jaxpr, self.pipeline, self.name, None, self.history, phase="differentiated"
        )
        return made if made.changed else self

    def linearized(self, nonzero: Mask, is_vjp: bool) -> Halves:
        """The program taken apart, after what is to be done before."""
        return (self.differentiated() if is_vjp else self).halves(nonzero, is_vjp)

    @_remembered
    def halves(self, nonzero: Mask, is_vjp: bool) -> Halves:
        """The program taken apart; optimised as a whole where its tangent will be transposed."""
        jaxpr = with_reverse_mode(self.jaxpr, self.pipeline) if is_vjp else self.jaxpr
        plain = compat_repeats.linearize(jaxpr, nonzero, is_vjp=is_vjp)
        plain = made_again(plain, len(jaxpr.out_avals))
        tangent = Program(plain.tangent, self.pipeline, f"tangent({self.name})")
        if is_vjp and any(plain.nonzero_out):
            halves = self._joint(plain, tangent, nonzero)
            if halves is not None:
                return halves
            tangent = replace(tangent, pipeline=self.pipeline.unbudgeted)
        forward = Program(plain.forward, tangent.pipeline, self.name, None, self.history)
        forward = replace(forward, has_residuals=True)
        return Halves(forward, plain.residuals, tangent, plain.nonzero_out)

    def _joint(self, plain: compat_ad.Linearized, tangent: Program, nonzero: Mask) -> Halves | None:
        """Forward and backward optimised as one and split; None if no pass had anything to do."""
        num_inputs, num_outputs = len(self.jaxpr.in_avals), len(self.jaxpr.out_avals)
        num_residuals = len(plain.residuals)
        moving = tuple(i >= num_residuals for i in range(len(plain.tangent.in_avals)))
        try:
            back, nonzero_in = tangent._backward(moving, (True,) * sum(plain.nonzero_out))
            if sum(plain.nonzero_out) > 1 and not _is_linear(plain, back):
                return None  # `LinearMap.restricted` could not leave out a cotangent
            split = self.pipeline.run_joined(
                Split(plain.forward, back, plain.residuals), num_outputs, always=bool(self.history)
            )
        except Exception as error:  # an optimiser must not take the user's gradient down with it
            if guard.is_of_symbols(error):
                return None
            if settings.current().strict:
                raise
            if _has_transpose(plain):
                left = f"the gradient of {self.name} was left unchanged: {error}"
                guard.failed(error, left, again=True)
            return None
        if split is None:
            return None
        backward, residuals = split.backward, split.residuals
        history = UNCHECKED
        if self.history:  # the backward half is checked against the primals, which must reach it
            residuals = (*residuals, *(("input", i) for i in range(num_inputs)))
            backward = _with_unused_inputs(backward, len(split.residuals), self.jaxpr.in_avals)
            joint, _ = _joint_program(plain, num_inputs, num_outputs)
            snapshots = self.pipeline.run(joint, "differentiable").snapshots
            history = self._backward_history(plain, nonzero, nonzero_in, snapshots)
            history = history.guarded(split.forward, split.residuals, split.backward)
        pipeline, name = self.pipeline.unbudgeted, f"vjp({self.name})"
        linear = LinearMap(
            Program(backward, pipeline, name, None, history, changed=True, is_backward=True),
            len(residuals),
            tuple(
                a.to_tangent_aval()
                for a, nz in zip(self.jaxpr.in_avals, nonzero, strict=True)
                if nz
            ),
            tuple(
                a.to_tangent_aval()
                for a, nz in zip(self.jaxpr.out_avals, plain.nonzero_out, strict=True)
                if nz
            ),
            nonzero_in,
        )
        spent = self.pipeline.unbudgeted
        forward = Program(split.forward, spent, self.name, None, self.history, True, True)
        return Halves(forward, residuals, linear, plain.nonzero_out)

    def _backward_history(
        self, plain: compat_ad.Linearized, nonzero: Mask, nonzero_in: Mask, snapshots: Snapshots
    ) -> History:
        """What `(inputs, nonzero cotangents) -> nonzero cotangents in` must compute."""
        num_outputs, count = len(self.jaxpr.out_avals), sum(nonzero_in)
        derived = self._lineage().mapped(
            lambda f: checking.vjp(f, nonzero, plain.nonzero_out, nonzero_in), count
        )
        joint = UNCHECKED.followed_by(snapshots).mapped(
            lambda f: lambda *args: f(*args)[num_outputs:], count
        )
        return History((*derived.steps, *joint.steps), count)

    @_remembered
    def lowered(self) -> Program:
        """The program in the primitives XLA knows, once nothing can ask for another rule."""
        jaxpr = compat.lowered(self.jaxpr)
        made = Program(jaxpr, self.pipeline, self.name, None, self.history, self.changed)
        return replace(made, is_backward=self.is_backward, _memo={})

    @_remembered
    def compiled(self) -> Callable[..., Sequence[Any]]:
        """For evaluation outside of any trace: through `jax.jit` and its cache.

        Where that gave a NaN, `jax_debug_nans` calls the function without `jax.jit`, to find the
        equation at fault.
        """

        def run(*args: Any) -> Sequence[Any]:
            if not compat.is_staging():
                return _evaluated(self.jaxpr, args)
            return optimized_p.bind(*args, jaxpr=self.jaxpr, program=self)  # type: ignore[no-any-return]

        run.__name__ = self.name
        return jax.jit(run)

    @_remembered
    def final(
        self, divided: bool | None = None, donated: frozenset[int] = frozenset()
    ) -> ClosedJaxpr | Callable[..., Sequence[Any]]:
        """What to compile: the program after the final phase."""
        every = (True,) * len(self.jaxpr.out_avals)
        jaxpr, _ = compat_ad.dce(self.jaxpr, every, keep_inputs=True)  # `select` left what is dead
        if jaxpr is not self.jaxpr:
            self.pipeline.mark_part_optimized(self.jaxpr, jaxpr)
        result = self.pipeline.run(
            jaxpr,
            "final",
            divided=divided,
            donated=donated,
            name=self.name,
            is_backward=self.is_backward,
        )
        if not settings.current().check:
            return result.jaxpr
        if compat_ad.has_side_effects(self.jaxpr):
            checking.warn_unchecked(self.name)
            return result.jaxpr
        history = (self.history or checking.begin(self.jaxpr)).followed_by(result.snapshots)
        return checking.checked(self.name, history, result.jaxpr)


def _evaluated(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> Sequence[Any]:
    """The results, equation by equation; an error says which line of the user's made it."""
    try:
        return compat.evaluate(jaxpr, args)
    except FloatingPointError as error:
        frame = raised_at(error)
        if frame is not None and not hasattr(error, "__notes__"):
            error.add_note(f"in an equation from {frame_text(frame)}")
        raise


def _at(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    return [values[i] for i in positions]


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


def _with_unused_inputs(jaxpr: ClosedJaxpr, at: int, avals: Sequence[Any]) -> ClosedJaxpr:
    """The same program with further inputs at a position, unused."""
    run, count = jaxpr_as_fun(jaxpr), len(avals)
    every = [*jaxpr.in_avals[:at], *avals, *jaxpr.in_avals[at:]]
    return compat.trace(lambda *args: run(*args[:at], *args[at + count :]), every)


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap:
    """`(residuals, tangents) -> tangents`, known by its transpose; of ``optimized_linear``."""

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

    @_remembered
    def restricted(self, used: Mask) -> tuple[LinearMap, Mask]:
        """The map to some of its outputs only, and the operands that is a map of.

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

    @_remembered
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
