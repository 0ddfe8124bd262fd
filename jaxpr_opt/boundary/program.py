"""The boundary between an optimised program and JAX's transformations.

`optimize` wraps what it made in one equation, ``optimized[program]``, so that `grad`, `vmap` and
the others still see a function they can transform, and what they make of it is optimised again:

=============  =====================================================================================
evaluated      the *final* phase runs when the equation is lowered: nothing differentiates any more
``jvp``        ``optimized`` of the forward-mode program; no residuals are kept
``vmap``       ``optimized`` of the vectorised program
``vjp``        forward and backward, optimised as one program and split where they meet
               (`jaxpr_opt.boundary.gradients`)
``linearize``  JAX's own forward and tangent programs, as two ``optimized``
transpose      ``optimized`` of the transposed program
=============  =====================================================================================

`jax.checkpoint` and loops inside it differentiate by forward mode and split the result by what is
known.  A forward-mode program therefore remembers what it is the forward mode of (`ForwardMode`):
asked to split itself where all primals are known it goes back there and answers as ``vjp`` would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, Primitive

from jaxpr_opt import settings
from jaxpr_opt.analysis.values.linearity import has_transpose
from jaxpr_opt.boundary import accumulation, checking
from jaxpr_opt.boundary.checking import UNCHECKED, History
from jaxpr_opt.bridge import compat, compat_ad, compat_repeats
from jaxpr_opt.bridge.compat_ad import Mask
from jaxpr_opt.bridge.interpreter_stack import uncollected, with_large_frame
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.frames import frame_text, raised_at
from jaxpr_opt.ir.graph import Phase
from jaxpr_opt.ir.importer import import_jaxpr

P = ParamSpec("P")
T = TypeVar("T")

optimized_p = Primitive("optimized")


def memoised(method: Callable[P, T]) -> Callable[P, T]:
    """Cache a method, or a function, on its first argument: results live as long as that does."""
    run = with_large_frame(method)

    @functools.wraps(method)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        self, *rest = args
        memo: dict[Any, Any] = self._memo  # type: ignore[attr-defined]
        key = (method, *rest, *kwargs.items(), compat_ad.context_key())
        if key not in memo:
            with uncollected():
                memo[key] = run(*args, **kwargs)
        return memo[key]  # type: ignore[no-any-return]

    return cached


class ForwardMode(NamedTuple):
    """What a forward-mode program is the forward mode of."""

    base: Program
    nonzero: Mask
    outputs: tuple[int, ...]
    """Which outputs of the whole are left: those of `base`, then the nonzero tangents."""


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
        is_backward: bool = False,
    ) -> Program:
        """A program after the differentiable phase of its pipeline."""
        result = pipeline.run(jaxpr, phase, keeps_cleanup=keeps_cleanup, is_backward=is_backward)
        if settings.current().check and not compat_ad.has_side_effects(jaxpr):
            history = (history or checking.begin(jaxpr)).followed_by(result.snapshots)
        changed = result.jaxpr is not jaxpr
        source = jaxpr if changed else None
        given = (result.jaxpr, pipeline, name, forward_mode, history, changed)
        return cls(*given, is_backward=is_backward, source=source)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __call__(self, *args: Any) -> list[Any]:
        """Bind ``optimized``, but for outputs that are inputs, or are another output."""
        needed, sources = self._without_copies()
        made: Sequence[Any] = ()
        if needed.jaxpr.out_avals or needed.jaxpr.effects:
            made = optimized_p.bind(*args, jaxpr=needed.jaxpr, program=needed)
        return [args[i] if kind == "input" else made[i] for kind, i in sources]

    @memoised
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

    @memoised
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

    @memoised
    def transposable(self, moving: Mask) -> Program:
        """The program that JAX can transpose with respect to these inputs: the one before passes,
        if they write zeros, instead of selecting them, at places of which two may be the same.
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

    def lineage(self) -> History:
        """The program against which derivatives of this one are checked; a program that also
        returns residuals begins a new history.
        """
        whole = self.history.outputs == len(self.jaxpr.out_avals) and not self.history.guard
        return checking.begin(self.jaxpr) if self.history and not whole else self.history

    # ------------------------------------------------------------ transformations

    @memoised
    def jvp(self, nonzero: Mask) -> tuple[Program, Mask]:
        """The forward-mode program, and which output tangents are not symbolically zero."""
        jaxpr, nonzero_out = compat_ad.jvp(self.jaxpr, nonzero)
        history = self.lineage().mapped(
            lambda f: checking.jvp(f, nonzero, nonzero_out), len(jaxpr.out_avals)
        )
        mode = ForwardMode(self, nonzero, tuple(range(len(jaxpr.out_avals))))
        return Program.optimized(
            jaxpr, self.pipeline, f"jvp({self.name})", mode, history
        ), nonzero_out

    @memoised
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
            jaxpr,
            self.pipeline,
            name,
            None,
            history,
            keeps_cleanup=self.changed,
            is_backward=self.is_backward,
        )
        return replace(made, has_residuals=self.has_residuals, _memo={}), dims_out

    @memoised
    def batched_by_device(
        self, axis: Any, dims: tuple[Any, ...]
    ) -> tuple[Callable[..., list[Any]], tuple[Any, ...]]:
        """The vectorised program for explicit axes of a mesh, as a function: each device runs its
        rows, and types inside say nothing of the mesh.
        """
        made, dims_out = self.batched(compat_ad.rows_of_device(axis), dims)
        return compat_ad.by_device(made, axis, dims, dims_out), dims_out

    @memoised
    def transposed(self, linear: Mask, nonzero: Mask) -> tuple[Program, Mask]:
        """`(other inputs, nonzero cotangents) -> nonzero cotangents of the linear inputs`.

        Also says for which linear inputs.
        """
        whole = self.transposable(linear)
        if whole is not self:
            return whole.transposed(linear, nonzero)
        jaxpr, nonzero_in = self.backward(linear, nonzero)
        name = f"transpose({self.name})"
        return Program.optimized(jaxpr, self.pipeline, name, is_backward=True), nonzero_in

    @memoised
    def backward(self, linear: Mask, nonzero: Mask) -> tuple[ClosedJaxpr, Mask]:
        """`transposed` before passes, as a jaxpr."""
        return compat_ad.transpose(self.jaxpr, linear, nonzero)

    @memoised
    def onto(self, added: Mask) -> Program:
        """`(inputs, bases) -> outputs`, the marked ones added to their bases."""
        jaxpr = accumulation.onto(self.jaxpr, added)
        self.pipeline.mark_part_optimized(self.jaxpr, jaxpr)
        return Program(jaxpr, self.pipeline, self.name, changed=self.changed)

    @memoised
    def lowered(self) -> Program:
        """The program in the primitives XLA knows, once nothing can ask for another rule."""
        jaxpr = compat.lowered(self.jaxpr)
        made = Program(jaxpr, self.pipeline, self.name, None, self.history, self.changed)
        return replace(made, is_backward=self.is_backward, _memo={})

    @memoised
    def compiled(self) -> Callable[..., Sequence[Any]]:
        """The program to call outside of any trace, through `jax.jit` and its cache.

        Where that gave a NaN, `jax_debug_nans` calls the function without `jax.jit`, to find the
        equation at fault.
        """

        def run(*args: Any) -> Sequence[Any]:
            if not compat.is_staging():
                return _evaluated(self.jaxpr, args)
            return optimized_p.bind(*args, jaxpr=self.jaxpr, program=self)  # type: ignore[no-any-return]

        run.__name__ = self.name
        return jax.jit(run)

    @memoised
    def final(
        self,
        divided: bool | None = None,
        donated: frozenset[int] = frozenset(),
        *,
        exported: bool = False,
    ) -> ClosedJaxpr | Callable[..., Sequence[Any]]:
        """The program to compile: this one after the final phase."""
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
            checking.warn_unchecked(self.name, "has effects, which must not run twice")
            return result.jaxpr
        if exported:
            checking.warn_unchecked(self.name, "is exported, and a check cannot be")
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
