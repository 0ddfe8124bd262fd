"""The rewriter: the only code that changes a Graph.

A pass's `rewrite` gets a `Rewriter`, and nothing else may write. Every method records an `Edit`, so
whether a pass changed anything, what, and from which source line, is measured, not reported by
hand. First-order code is written as a small `jax.lax` function that `insert` traces in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import reshape_p

from jaxpr_opt.bridge import compat, compat_source, compat_types
from jaxpr_opt.ir.aliases import Aliasing
from jaxpr_opt.ir.exporter import evaluate_ops
from jaxpr_opt.ir.facts import note_copy
from jaxpr_opt.ir.graph import (
    TERMINATOR,
    UNDEFINED,
    Carry,
    Cond,
    Constant,
    Graph,
    Op,
    Outcome,
    Region,
    Scan,
    Source,
    Stack,
    Stream,
    Use,
    Value,
    While,
)
from jaxpr_opt.ir.importer import splice
from jaxpr_opt.ir.nesting import enclosing_shard_map
from jaxpr_opt.ir.traits import is_pure


class Edit(NamedTuple):
    """One change: what was done (`insert`, `erase`, `replace`, `move`, `modify`) to which kind
    of op, from where.
    """

    action: str
    op: str
    source: Source | None

    @property
    def frame(self) -> tuple[str, int, str] | None:
        """`(file, line, function)` in the user's program."""
        return compat_source.user_frame(self.source.info) if self.source is not None else None


@dataclass(eq=False, slots=True)
class Rewriter:
    """Changes a graph: passes edit only through it.  `edits` counts all changes."""

    graph: Graph
    anchor: Op | None = None
    """What is being rewritten: new code comes from where it came from."""
    edits: list[Edit] = field(default_factory=list)
    made: list[Op] = field(default_factory=list)
    """Loops and conds put in place, for the driver to look at next."""

    def _record(self, action: str, op: Op | None) -> None:
        self.graph.facts.clear()
        self.graph.donated = None
        self.edits.append(
            Edit(action, op.name, op.source) if op is not None else Edit(action, "", None)
        )

    # -- values
    # ---------------------------------------------------------------------------------------------

    def constant(self, value: Any, like: Any) -> Constant:
        """A literal of type `like` (an aval)."""
        return Constant(like, value)

    def scalar(self, value: Any, dtype: Any) -> Constant:
        """A literal scalar."""
        return Constant(compat_types.array_aval((), np.dtype(dtype)), np.dtype(dtype).type(value))

    def array(self, numbers: np.ndarray[Any, Any]) -> Constant:
        """A literal array."""
        return Constant(compat_types.array_aval(numbers.shape, numbers.dtype), numbers)

    def replace(self, old: Value, new: Value, where: Callable[[Use], bool] | None = None) -> None:
        """Make the uses of `old` (those for which `where` holds) read `new`.

        `new` must have the type of `old`, weak type aside, and dominate those uses.
        """
        if old is new:
            return
        uses = [use for use in old.uses if where is None or where(use)]
        for use in uses:
            self.set_operand(use.op, use.position, new)
        if not new.name and not isinstance(new, Constant):
            new.name = old.name
        if uses:
            self._record("replace", old.op)

    def set_operand(self, op: Op, index: int, value: Value) -> None:
        """Make one operand of `op` read `value`."""
        if op.operands[index] is not value:
            op._set_operand(index, value)
            self._record("modify", op)

    # -- ops

    def erase(self, op: Op) -> None:
        """Remove an op nobody reads, with everything inside it."""
        assert not any(v.uses for v in op.results), f"{op!r} is still in use"
        inside = list(op.walk())
        if op.region is not None:
            op.region._remove(op)
        for each in inside:
            each._set_operands(())
            each.region = None
        self._record("erase", op)

    def erase_unread(self, op: Op) -> None:
        """Erase an op that nothing reads, and what was computed for it alone."""
        pending = [op]
        while pending:
            each = pending.pop()
            is_read = any(v.uses for v in each.results)
            if each.region is None or each.regions or is_read or not is_pure(each):
                continue
            pending += [v.op for v in each.operands if v.op is not None]
            self.erase(each)

    def move(self, op: Op, before: Op) -> None:
        """Move an op, with everything inside it, right before another."""
        assert op.region is not None and before.region is not None
        op.region._remove(op)
        before.region._insert(op, before)
        self._record("move", op)

    def place(self, op: Op, before: Op) -> Op:
        """Put a newly made op right before another."""
        assert before.region is not None and op.region is None
        before.region._insert(op, before)
        if op.regions:
            self.made.append(op)
        self._record("insert", op)
        return op

    def insert(self, fun: Callable[..., Any], *operands: Value, before: Op) -> Value:
        """Trace `fun` on the types of `operands` and put its ops before `before`; its result."""
        return self.insert_many(lambda *args: (fun(*args),), *operands, before=before)[0]

    def insert_many(
        self, fun: Callable[..., Sequence[Any]], *operands: Value, before: Op
    ) -> tuple[Value, ...]:
        """`insert` for functions of several results."""
        with self._context():
            jaxpr = compat.trace(fun, [v.aval for v in operands])
        origin = self._origin(before)
        values = splice(jaxpr, operands, before, origin.source, self.graph.phase == "final")
        self._record("insert", origin)
        return tuple(values)

    def _origin(self, before: Op) -> Op:
        """Where new code is from."""
        return before if self.anchor is None or before.source.info is not None else self.anchor

    def _context(self) -> AbstractContextManager[None]:
        """Where code next to the anchor is traced: as it was, in the `shard_map` around it, if
        any.
        """
        if self.anchor is None:
            return contextlib.nullcontext()
        around = enclosing_shard_map(self.anchor)
        if around is None:
            return compat.as_traced(self.anchor.source.ctx)
        ctx = next((c for c in (op.source.ctx for op in around.body.ops) if c is not None), None)
        if ctx is None:
            return contextlib.nullcontext()
        return compat.inside_shard_map(around.params, ctx)

    def typed(self, fun: Callable[..., Any], aval: Any, *operands: Value, before: Op) -> Value:
        """`insert`, giving the result the weak type of `aval`, so that it may stand for a value
        of that type.
        """
        weak = aval is not None and getattr(aval, "weak_type", False)
        typed = (lambda *args: compat_types.weaken(fun(*args), aval)) if weak else fun
        return self.insert(typed, *operands, before=before)

    def full(self, number: Any, aval: Any, *, before: Op) -> Value:
        """An array of this type, each element of which is this number."""
        return self.typed(lambda: lax.full(aval.shape, number, aval.dtype), aval, before=before)

    def reshape(self, array: Value, shape: Sequence[int], *, before: Op) -> Value:
        """The same elements in another shape; made without tracing, which takes ten times as long,
        and merging loops takes many.
        """
        if not compat_types.is_local(array.aval):
            return self.insert(lambda x: lax.reshape(x, shape), array, before=before)
        made = Op(
            "reshape",
            [array],
            [compat_types.reshaped(array.aval, shape)],
            primitive=reshape_p,
            params={"new_sizes": tuple(shape), "dimensions": None, "sharding": None},
            source=self._origin(before).source,
        )
        return self.place(made, before).result

    def undefined(self, aval: Any, *, before: Op) -> Value:
        """An unspecified value: whoever reads it takes what comes."""
        return self.place(Op(UNDEFINED, (), [aval], source=before.source), before).result

    def step(self, scan: Scan, *, before: Op) -> Value:
        """The number of the current step of a scan around `before`, as a stream of that scan."""
        assert scan.body.contains(before.region)
        for stream in scan.streams:
            numbers = stream.operand
            counts = numbers.op is not None and numbers.op.name == "iota"
            if counts and numbers.dtype == np.int32 and len(numbers.shape) == 1:
                return stream.param
        numbers = self.insert(lambda: lax.iota(np.int32, scan.length), before=scan)
        param = self.new_value(self.row_aval(numbers), "step")
        self.set_scan(scan, streams=[*scan.streams, Stream(numbers, param)])
        return param

    def vectorize(
        self,
        ops: Sequence[Op],
        output: Value,
        rows: Mapping[Value, Value],
        *,
        length: int,
        before: Op,
    ) -> Value:
        """Compute `output` for every row at once: `ops` mapped over the leading axis of
        `rows[v]` for each row value `v`.
        """
        used = [
            *dict.fromkeys(v for op in ops for each in op.walk() for v in each.operands),
            output,
        ]
        inside = {v for op in ops for each in op.walk() for v in each.results}
        inside |= {p for op in ops for each in op.walk() for r in each.regions for p in r.params}
        mapped = [v for v in dict.fromkeys(used) if v in rows]
        outer = [
            v
            for v in dict.fromkeys(used)
            if v not in rows and v not in inside and not isinstance(v, Constant)
        ]

        def all_rows(*args: Any) -> Any:
            shared = dict(zip(outer, args[len(mapped) :], strict=True))

            def one_row(*row: Any) -> Any:
                return evaluate_ops(ops, output, {**shared, **dict(zip(mapped, row, strict=True))})

            if not mapped:
                return jnp.broadcast_to(one_row(), (length, *output.shape))
            return jax.vmap(one_row)(*args[: len(mapped)])

        return self.insert(all_rows, *(rows[v] for v in mapped), *outer, before=before)

    def clone(
        self, ops: Iterable[Op], mapping: dict[Value, Value], before: Op
    ) -> dict[Value, Value]:
        """Copy ops before `before`, reading `mapping` for what is renamed; results are added to
        `mapping`.
        """
        for op in ops:
            copy = self.copy(op, mapping)
            assert before.region is not None
            before.region._insert(copy, before)
            self._record("insert", copy)
        return mapping

    def copy(self, op: Op, mapping: dict[Value, Value]) -> Op:
        """A detached copy of an op and its regions."""
        # What is inside a copy is known inside only: the same ops may be copied on their own, too.
        regions = [self.copy_region(region, dict(mapping)) for region in op.regions]
        made = type(op)(
            op.name,
            [mapping.get(v, v) for v in op.operands],
            [v.aval for v in op.results],
            primitive=op.primitive,
            params=op.params,
            regions=regions,
            effects=op.effects,
            source=op.source,
        )
        made.alone = op.alone
        if isinstance(op, Scan):
            assert isinstance(made, Scan)
            made.num_carries = op.num_carries
        if isinstance(op, While):
            assert isinstance(made, While)
            made.rows = op.rows
        for old, new in zip(op.results, made.results, strict=True):
            mapping[old], new.name = new, old.name
        return made

    def copy_region(self, region: Region, mapping: dict[Value, Value]) -> Region:
        made = Region([v.aval for v in region.params], [v.name for v in region.params])
        mapping.update(zip(region.params, made.params, strict=True))
        for op in region.ops:
            made._insert(self.copy(op, mapping), None)
        return made

    # -- regions
    # --------------------------------------------------------------------------------------------

    def new_region(self, params: Sequence[Value] = ()) -> Region:
        """An empty region with parameters typed and named like `params`, terminated by an empty
        yield.
        """
        region = Region([v.aval for v in params], [v.name for v in params])
        region._insert(Op(TERMINATOR, (), ()), None)
        return region

    def set_inputs(self, graph: Graph, inputs: Sequence[Value]) -> None:
        """Set the inputs of a program."""
        graph.body._set_params(inputs)
        self._record("modify", None)

    def set_outputs(self, region: Region, outputs: Sequence[Value]) -> None:
        """Set the values that a region yields."""
        region.terminator._set_operands(tuple(outputs))
        self._record("modify", region.owner if isinstance(region.owner, Op) else None)

    def inline(self, region: Region, args: Sequence[Value], before: Op) -> tuple[Value, ...]:
        """Move the ops of a region before an op of another, its parameters bound to `args`;
        returns its outputs.

        The region is left with only its terminator, so its owner must be erased or refilled
        afterwards.
        """
        for param, arg in zip(region.params, args, strict=True):
            self.replace(param, arg)
        for op in list(region.ops):
            if not op.is_terminator:
                self.move(op, before)
        return region.outputs

    # -- structured ops
    # -------------------------------------------------------------------------------------

    def set_scan(
        self,
        scan: Scan,
        *,
        carries: Sequence[Carry] | None = None,
        streams: Sequence[Stream] | None = None,
        stacks: Sequence[Stack] | None = None,
        **params: Any,
    ) -> None:
        """Give a scan other carries, streams or stacks; those not given stay.

        New parameters and results are `Value`s made by `new_value`; those left out must have no
        uses.
        """
        carries = scan.carries if carries is None else carries
        streams = scan.streams if streams is None else streams
        stacks = scan.stacks if stacks is None else stacks
        body = scan.body
        scan._set_operands((*(c.init for c in carries), *(s.operand for s in streams)))
        body.terminator._set_operands((*(c.next for c in carries), *(s.value for s in stacks)))
        body._set_params((*(c.param for c in carries), *(s.param for s in streams)))
        _set_results(scan, [*(c.result for c in carries), *(s.result for s in stacks)])
        scan.num_carries = len(carries)
        scan.params.update(params)
        self._record("modify", scan)

    def carry(self, scan: Scan, init: Value, name: str = "") -> Carry:
        """Make a scan carry one more value, the last, which its steps leave as it is."""
        param, result = (self.new_value(init.aval, name) for _ in range(2))
        self.set_scan(scan, carries=[*scan.carries, Carry(init, param, param, result)])
        return scan.carries[-1]

    def set_last_next(self, scan: Scan, value: Value) -> None:
        """Let the steps of a scan hand on a value as that of its last carry."""
        self.set_operand(scan.body.terminator, scan.num_carries - 1, value)

    def add_param(self, region: Region, param: Value) -> None:
        """Give a region one more parameter, the last; its owner is about to be replaced."""
        self.graph.facts.clear()
        region._set_params([*region.params, param])

    def detach_region(self, op: Op) -> Region:
        """Take the region out of an op that is about to be erased, leaving an empty one behind."""
        self.graph.facts.clear()
        region, left = op.regions[0], self.new_region()
        op.regions = (left,)
        left.owner, region.owner = op, None
        return region

    def stacked_aval(self, value: Value, length: int) -> Any:
        """The type of `length` rows of `value`."""
        return compat_types.stacked(value.aval, length)

    def row_aval(self, array: Value) -> Any:
        """The type of one row of `array`."""
        return compat_types.row(array.aval)

    def set_while(
        self,
        loop: While,
        carries: Sequence[Carry],
        kept: Sequence[int],
        asked: Mapping[int, Value] | None = None,
    ) -> None:
        """Keep only the carries numbered `kept`, given with their possibly new fields; `asked`: the
        new parameters of the predicate, by number.
        """
        predicate = loop.predicate
        loop._set_operands(tuple(c.init for c in carries))
        loop.body.terminator._set_operands(tuple(c.next for c in carries))
        loop.body._set_params(c.param for c in carries)
        predicate._set_params([(asked or {}).get(i, predicate.params[i]) for i in kept])
        _set_results(loop, [c.result for c in carries])
        self._record("modify", loop)

    def set_rows(self, loop: While, rows: int) -> None:
        """Let a loop be differentiated backwards: it keeps the carries of so many steps."""
        loop.rows = rows
        self._record("keep carries of", loop)

    def set_alone(self, op: Op) -> None:
        """Have XLA compile a loop as one function, or a write without the ops that read it."""
        op.alone = True
        self._record("modify", op)

    def set_cond(self, cond: Cond, outcomes: Sequence[Outcome]) -> None:
        """Give a cond other results, each with one value per branch."""
        _set_results(cond, [o.result for o in outcomes])
        for index, branch in enumerate(cond.branches):
            branch.terminator._set_operands(tuple(o.values[index] for o in outcomes))
        self._record("modify", cond)

    def set_results(
        self, op: Op, results: Sequence[Value], region: Region, outputs: Sequence[Value]
    ) -> None:
        """Give an op with one region (remat, call) other results and the values that are
        yielded for them.
        """
        _set_results(op, list(results))
        region.terminator._set_operands(tuple(outputs))
        self._record("modify", op)

    def new_value(self, aval: Any, name: str = "") -> Value:
        """A value still without owner, to be a new parameter or result of a structured op."""
        return Value(aval, None, name)

    def new_scan(
        self,
        body: Region,
        inits: Sequence[Value],
        streams: Sequence[Value],
        stack_avals: Sequence[Any],
        *,
        length: int,
        reverse: bool,
        like: Scan,
        before: Op,
    ) -> Scan:
        """A scan around `body`, whose parameters are carries then streams and whose outputs are
        nexts then stack rows.
        """
        params = {**like.params, "length": length, "reverse": reverse}
        avals = [*(p.aval for p in body.params[: len(inits)]), *stack_avals]
        scan = Scan(
            "scan",
            [*inits, *streams],
            avals,
            params=params,
            regions=[body],
            effects=like.effects & _effects(body),
            source=like.source,
        )
        scan.num_carries = len(inits)
        self.place(scan, before)
        return scan

    def new_while(
        self, predicate: Region, body: Region, inits: Sequence[Value], *, like: Op, before: Op
    ) -> While:
        loop = While(
            "while",
            inits,
            [p.aval for p in body.params],
            regions=[predicate, body],
            effects=like.effects,
            source=like.source,
        )
        self.place(loop, before)
        return loop

    def new_cond(
        self, selector: Value, branches: Sequence[Region], *, like: Op, before: Op
    ) -> Cond:
        """A cond on `selector`; branch 0 is the one taken when it is false."""
        avals = [v.aval for v in branches[-1].outputs]
        cond = Cond(
            "cond", [selector], avals, regions=branches, effects=like.effects, source=like.source
        )
        self.place(cond, before)
        return cond

    def mark_donated(self, found: Aliasing) -> None:
        """Say which inputs become which outputs; that holds until the next edit."""
        self._record("mark", self.graph.body.last)
        self.graph.donated = found


def copy_graph(graph: Graph) -> Graph:
    """A program that can be changed without changing this one."""
    mapping: dict[Value, Value] = {}
    body = Rewriter(graph).copy_region(graph.body, mapping)
    cotangents = tuple(mapping[value] for value in graph.cotangents)
    copy = replace(graph, body=body, cotangents=cotangents, facts={})
    note_copy(copy, graph)
    return copy


def adopt(graph: Graph, copy: Graph) -> None:
    """Replace a program by a changed copy of it; the copy must not be used any more."""
    graph.body, graph.cotangents = copy.body, copy.cotangents
    graph.body.owner = graph
    graph.facts.clear()


def _effects(region: Region) -> frozenset[Any]:
    return frozenset[Any]().union(*(op.effects for op in region.ops))


def _set_results(op: Op, results: list[Value]) -> None:
    kept = set(results)
    assert not any(v.uses for v in op.results if v not in kept), "a dropped result is still in use"
    op.results = tuple(results)
    for value in results:
        value.owner = op
