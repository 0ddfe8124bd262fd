"""jaxpr -> Graph.

Every equation becomes an op. `scan`, `while`, `cond`, `remat`, `jit`, `closed_call` and `shard_map`
become structured ops whose regions capture outer values; trivial `jit`s and closed calls are
inlined. A `while` for which `vmap` has left one predicate a row becomes what JAX lowers it to: it
runs while any row does, and selects. What the importer does not understand (custom derivatives,
`pallas_call`, callbacks, refs, new primitives) stays one opaque op, bound again unchanged at
export.

In the final phase nothing can differentiate any more, so custom derivative calls are inlined too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.extend.core.primitives import ne_p

from jaxpr_opt.bridge import compat, compat_source, compat_types, guard, parameters
from jaxpr_opt.bridge.guard import UnknownJaxError
from jaxpr_opt.bridge.parameters import SMALL_LOOP
from jaxpr_opt.ir.graph import (
    TERMINATOR,
    UNDEFINED,
    Call,
    Cond,
    Constant,
    Graph,
    Op,
    Phase,
    Region,
    Remat,
    Scan,
    Source,
    Value,
    While,
)

OPTIMIZED = "optimized"
"""The primitive that an optimised program is."""
INLINED = {"closed_call", "core_closed_call", "eval_jaxpr", OPTIMIZED}
INLINED_WHEN_FINAL = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def import_jaxpr(
    jaxpr: ClosedJaxpr,
    phase: Phase = "differentiable",
    name: str = "fn",
    keep: Collection[str] = (),
    pipeline: Any = None,
) -> Graph:
    """The graph of a closed jaxpr; its constants become `Constant`s.

    Calls of the primitives named in `keep` stay calls.  If `pipeline` is given, so do programs
    of `optimize` that have another pipeline: it says which passes run on them.
    """
    left: set[str] = set()
    while True:
        try:
            return _imported(jaxpr, phase, name, (keep, pipeline, left))
        except _UnreadableError as error:
            guard.unknown(str(error))
            left.add(error.kind)


class _UnreadableError(UnknownJaxError):
    """Equations of one primitive are not as they are known to be."""

    def __init__(self, kind: str, error: Exception) -> None:
        super().__init__(f"{kind}: {type(error).__name__}: {error}")
        self.kind = kind


def _imported(jaxpr: ClosedJaxpr, phase: Phase, name: str, stays: tuple[Any, ...]) -> Graph:
    if phase == "final":
        jaxpr = compat.lowered(jaxpr)
    opened = compat.open_jaxpr(jaxpr)
    info = compat.debug_info(jaxpr)
    names = [str(n) for n in (info.arg_names or ())] if info is not None else []
    region = Region([v.aval for v in opened.invars], [_short(n) for n in names])
    graph = Graph(region, name, info, phase)
    importer = _Importer(phase == "final", None, *stays)
    env = importer.bind_constants(opened)
    env.update(zip(opened.invars, region.params, strict=True))
    importer.fill(region, opened, env)
    graph.opened = importer.opened
    return graph


def splice(
    jaxpr: ClosedJaxpr, operands: Sequence[Value], before: Op, source: Source, final: bool
) -> list[Value]:
    """Insert a freshly traced jaxpr before an op, its inputs bound to `operands`; the
    rewriter's back end.
    """
    assert before.region is not None
    opened = compat.open_jaxpr(jaxpr)
    importer = _Importer(final, source, keep={OPTIMIZED})  # it was kept when it was imported
    env = importer.bind_constants(opened)
    env.update(zip(opened.invars, operands, strict=True))
    importer.equations(before.region, opened.eqns, env, Source(), before)
    return [importer.read(atom, env) for atom in opened.outvars]


def _short(name: str) -> str:
    """`params['w']` -> `params_w`: a printable hint."""
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return "_".join(part for part in cleaned.split("_") if part)


class _Importer:
    def __init__(
        self,
        final: bool,
        source: Source | None = None,
        keep: Collection[str] = (),
        pipeline: Any = None,
        left: Collection[str] = (),
    ) -> None:
        self.final = final
        self.pipeline = pipeline
        self.left = left
        self.opened = False
        self.source = source
        self.inlined = INLINED.difference(keep)

    def bind_constants(self, opened: compat.Opened) -> dict[Any, Value]:
        pairs = zip(opened.constvars, opened.consts, strict=True)
        return {var: Constant(var.aval, value) for var, value in pairs}

    def read(self, atom: Any, env: dict[Any, Value]) -> Value:
        if compat.is_literal(atom):
            return Constant(atom.aval, atom.val)
        return env[atom]

    def fill(
        self,
        region: Region,
        opened: compat.Opened,
        env: dict[Any, Value],
        outer: Source | None = None,
    ) -> None:
        """Import the equations of a jaxpr into an empty region and terminate it."""
        self.equations(region, opened.eqns, env, outer or Source(), None)
        region._insert(Op(TERMINATOR, [self.read(atom, env) for atom in opened.outvars], ()), None)

    def equations(
        self,
        region: Region,
        eqns: Sequence[Any],
        env: dict[Any, Value],
        outer: Source,
        before: Op | None,
        callee: Any = None,
    ) -> None:
        for eqn in eqns:
            operands = [self.read(atom, env) for atom in eqn.invars]
            source = self.source or self.origin(eqn, outer, callee)
            values = self.equation(region, eqn, operands, source, before)
            env.update(zip(eqn.outvars, values, strict=True))

    def origin(self, eqn: Any, outer: Source, callee: Any) -> Source:
        info = compat_source.nest_source(outer.info, eqn.source_info, callee)
        return Source(info, eqn.ctx, compat_source.transposes(info))

    def equation(
        self, region: Region, eqn: Any, operands: list[Value], source: Source, before: Op | None
    ) -> Sequence[Value]:
        """One equation: an op appended before `before`, or a body inlined there; the values of
        its results.
        """
        kind = eqn.primitive.name
        if self.is_unknown(kind, eqn):
            return self.append(
                region, self.opaque(f"unknown_{kind}", eqn, operands, source), before
            )
        try:
            return self.known(kind, region, eqn, operands, source, before)
        except (_UnreadableError, RecursionError):
            raise
        except Exception as error:
            raise _UnreadableError(kind, error) from error

    def is_unknown(self, kind: str, eqn: Any) -> bool:
        """Whether it is an equation of a primitive that JAX has changed."""
        if kind in self.left:
            return True
        said = parameters.unknown(kind, eqn.params)
        if said is not None:
            guard.unknown(said)
        return said is not None

    def known(
        self,
        kind: str,
        region: Region,
        eqn: Any,
        operands: list[Value],
        source: Source,
        before: Op | None,
    ) -> Sequence[Value]:
        """As `equation`, of a primitive whose parameters are as they should be."""
        if parameters.is_platform_choice(eqn.params):
            branch = parameters.branch_of_xla(eqn.params)
            if branch is not None and not any(compat_types.is_ref(v.aval) for v in operands):
                return self.inline(region, branch, operands[1:], source, before)
            chosen = self.opaque("platform_dependent", eqn, operands, source)
            return self.append(region, chosen, before)
        if not any(compat_types.is_ref(v.aval) for v in operands):
            body = self.inlined_body(kind, eqn.params)
            if body is not None:
                made = self.inline(region, body, operands, source, before)
                return _in_one_function(made) if kind == SMALL_LOOP else made
            undefined = self.undefined(kind, operands)
            if undefined:
                return self.append(
                    region, Op(UNDEFINED, (), [v.aval for v in eqn.outvars], source=source), before
                )
            build = getattr(self, f"_{kind}", None)
            if kind == "cond" and len(eqn.params["branches"]) == 2:
                operands[0] = self.as_predicate(region, operands[0], source, before)
            op = build(eqn, operands, source) if build is not None else None
            if op is not None:
                return self.append(region, op, before)
        return self.append(region, self.opaque(kind, eqn, operands, source), before)

    def opaque(self, name: str, eqn: Any, operands: list[Value], source: Source) -> Op:
        """An op that is bound again as it was."""
        return Op(
            name,
            operands,
            [v.aval for v in eqn.outvars],
            primitive=eqn.primitive,
            params=eqn.params,
            effects=compat.effects(eqn),
            source=source,
        )

    def append(self, region: Region, op: Op, before: Op | None) -> tuple[Value, ...]:
        region._insert(op, before)
        return op.results

    def takes_in(self, pipeline: Any) -> bool:
        return self.pipeline is None or self.pipeline.takes_in(pipeline)

    def inlined_body(self, kind: str, params: dict[str, Any]) -> Any:
        if kind == OPTIMIZED and not self.takes_in(params["program"].pipeline):
            return None
        if kind in self.inlined or kind == SMALL_LOOP:
            return params.get("call_jaxpr", params.get("jaxpr"))
        if kind == "jit" and compat.is_trivial_jit(params):
            return params["jaxpr"]
        if self.final and kind in INLINED_WHEN_FINAL:
            self.opened = True
            return params[INLINED_WHEN_FINAL[kind]]
        return None

    def inline(
        self, region: Region, jaxpr: Any, operands: list[Value], source: Source, before: Op | None
    ) -> list[Value]:
        opened = compat.open_jaxpr(jaxpr)
        env = self.bind_constants(opened)
        env.update(zip(opened.invars, operands, strict=True))
        callee = compat_source.library_function(jaxpr)
        self.equations(region, opened.eqns, env, source, before, callee)
        return [self.read(atom, env) for atom in opened.outvars]

    def undefined(self, kind: str, operands: list[Value]) -> bool:
        """JAX writes an unspecified array as a broadcast of `empty2`: the dummy residual of an
        untaken branch.
        """
        if kind == "empty2":
            return True
        maker = operands[0].op if kind in ("broadcast_in_dim", "pvary") else None
        return maker is not None and maker.name == UNDEFINED

    def closed_region(self, jaxpr: Any, bound: Sequence[Value], num_params: int) -> Region:
        """A region for `jaxpr` whose first inputs are outer values and whose last `num_params`
        are parameters.
        """
        opened = compat.open_jaxpr(jaxpr)
        split = len(opened.invars) - num_params
        region = Region([v.aval for v in opened.invars[split:]])
        env = self.bind_constants(opened)
        env.update(zip(opened.invars[:split], bound, strict=True))
        env.update(zip(opened.invars[split:], region.params, strict=True))
        self.fill(region, opened, env)
        return region

    def _scan(self, eqn: Any, operands: list[Value], source: Source) -> Op:
        params = eqn.params
        num_consts, num_carries = compat.scan_counts(params)
        body = self.closed_region(
            params["jaxpr"], operands[:num_consts], len(operands) - num_consts
        )
        kept = {
            key: params[key]
            for key in ("length", "reverse", "unroll", "_split_transpose")
            if key in params
        }
        op = Scan(
            "scan",
            operands[num_consts:],
            [v.aval for v in eqn.outvars],
            params=kept,
            regions=[body],
            effects=compat.effects(eqn),
            source=source,
        )
        op.num_carries = num_carries
        return op

    def _while(self, eqn: Any, operands: list[Value], source: Source) -> Op | None:
        params = eqn.params
        split, count = params["cond_nconsts"], params["body_nconsts"]
        inits = operands[split + count :]
        running = compat.open_jaxpr(params["cond_jaxpr"]).outvars[0].aval
        is_batched = bool(running.shape)
        if is_batched and (
            eqn.effects or not compat_types.can_select(running, [v.aval for v in inits])
        ):
            return None
        predicate = self.closed_region(params["cond_jaxpr"], operands[:split], len(inits))
        body = self.closed_region(params["body_jaxpr"], operands[split : split + count], len(inits))
        if is_batched:
            with compat.bound_under(source.info, source.ctx):
                self.keep_finished_rows(body, params["cond_jaxpr"], operands[:split], source)
                self.ask_any_row(predicate, source)
        return While(
            "while",
            inits,
            [v.aval for v in eqn.outvars],
            regions=[predicate, body],
            effects=compat.effects(eqn),
            source=source,
        )

    def ask_any_row(self, predicate: Region, source: Source) -> None:
        """A batched loop, which `lax.while_loop` would not take, runs while any row does."""
        (rows,) = predicate.outputs
        any_row = compat.trace(lambda p: [lax.reduce_or(p, range(p.ndim))], [rows.aval])
        end = predicate.terminator
        end._set_operands(tuple(splice(any_row, [rows], end, source, self.final)))

    def keep_finished_rows(
        self, body: Region, cond_jaxpr: Any, bound: Sequence[Value], source: Source
    ) -> None:
        """In a step of a batched loop, rows whose predicate is false keep their carries.

        It is how JAX lowers one: the axes of the predicate are the first of every carry.
        """

        def step(running: Any, *carries: Any) -> list[Any]:
            old, new = carries[: len(carries) // 2], carries[len(carries) // 2 :]
            return [
                lax.select_n(lax.broadcast_in_dim(running, a.shape, range(running.ndim)), a, b)
                for a, b in zip(old, new, strict=True)
            ]

        end = body.terminator
        (running,) = self.inline(body, cond_jaxpr, [*bound, *body.params], Source(), end)
        operands = [running, *body.params, *body.outputs]
        jaxpr = compat.trace(step, [v.aval for v in operands])
        end._set_operands(tuple(splice(jaxpr, operands, end, source, self.final)))

    def _cond(self, eqn: Any, operands: list[Value], source: Source) -> Op:
        selector, *captured = operands
        branches = [self.closed_region(jaxpr, captured, 0) for jaxpr in eqn.params["branches"]]
        avals = [v.aval for v in eqn.outvars]
        return Cond(
            "cond", [selector], avals, regions=branches, effects=compat.effects(eqn), source=source
        )

    def as_predicate(
        self, region: Region, selector: Value, source: Source, before: Op | None
    ) -> Value:
        """The bool behind the index of a two-branch cond: JAX converts it to an integer first."""
        producer = selector.op
        if (
            producer is not None
            and producer.name == "convert_element_type"
            and producer.operands[0].dtype == bool
        ):
            return producer.operands[0]
        zero = Constant(
            compat_types.with_weak_type(selector.aval, False), np.zeros((), selector.dtype)[()]
        )
        test = Op(
            "ne",
            (selector, zero),
            [compat_types.array_aval((), np.dtype(bool))],
            primitive=ne_p,
            source=source,
        )
        return self.append(region, test, before)[0]

    def _convert_element_type(self, eqn: Any, operands: list[Value], source: Source) -> Op:
        """A conversion. It need not say how its result is divided where its operand is divided so:
        passes convert windows of it, which have fewer axes.
        """
        op = self.opaque("convert_element_type", eqn, operands, source)
        here, there = (getattr(v.aval, "sharding", None) for v in (operands[0], op.result))
        if eqn.params.get("sharding") is not None and here == there:
            op.params = {**eqn.params, "sharding": None}
        return op

    def _checkpoint(self, eqn: Any, operands: list[Value], source: Source) -> Op:
        params = {key: value for key, value in eqn.params.items() if key != "jaxpr"}
        if isinstance(params["prevent_cse"], tuple):  # one flag an operand, and there are none now
            params["prevent_cse"] = any(params["prevent_cse"])
        body = self.closed_region(eqn.params["jaxpr"], operands, 0)
        if source.transposed:
            _tell_transposed(body, source)
        return Remat(
            "remat",
            (),
            [v.aval for v in eqn.outvars],
            primitive=eqn.primitive,
            params=params,
            regions=[body],
            effects=compat.effects(eqn),
            source=source,
        )

    _remat2 = _remat = _checkpoint

    def _called(self, eqn: Any, operands: list[Value], source: Source) -> Op:
        body = self.closed_region(eqn.params["jaxpr"], (), len(operands))
        return Call(
            eqn.primitive.name,
            operands,
            [v.aval for v in eqn.outvars],
            primitive=eqn.primitive,
            params=eqn.params,
            regions=[body],
            effects=compat.effects(eqn),
            source=source,
        )

    _jit = _shard_map = _called


def _tell_transposed(body: Region, outer: Source) -> None:
    """Let the loops in a transposed checkpoint say that they are transposed, but for those that
    compute something again: JAX says it of the checkpoint only.
    """
    for op in body.ops:
        if isinstance(op, Cond):
            for branch in op.branches:
                _tell_transposed(branch, outer)
        elif isinstance(op, Scan | Remat) and not compat_source.is_recomputed(op.source.info):
            info = compat_source.nest_source(outer.info, op.source.info, None)
            op.source = Source(info, op.source.ctx, compat_source.transposes(info))
            if isinstance(op, Remat):
                _tell_transposed(op.body, outer)


def _in_one_function(made: list[Value]) -> list[Value]:
    """The results of a loop that is compiled as one function, and what is handed back with them."""
    for loop in {value.op for value in made}:
        if isinstance(loop, Scan | While):
            loop.alone = True
    return made
