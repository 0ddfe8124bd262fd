"""Match the ops of one graph with those of another, whatever they are called.

Ops of two regions are paired in program order, asking for less and less: the same computation on
the same inputs; the same primitive, parameters and types; the same kind of loop or branch.  Paired
ops have their regions, carries, streams, stacks and results paired in turn.  All is done twice: the
second time paired values count as the same input, so that one edit does not unsettle all that
depends on it.  What is left over and computes the same elsewhere has moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.ir.graph import Call, Carry, Cond, Constant, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.ir.text import constant_text
from jaxpr_opt.ir.text_params import parameters

T = TypeVar("T")
Keys = dict[Op | Value, Hashable]


class Alignment:
    """Pairs of ops, before to after, and of values, after to before."""

    def __init__(self, before: Graph, after: Graph, in_place: bool = False) -> None:
        self.in_place = in_place
        self.ops: dict[Op, Op] = {}
        self.values: dict[Value, Value] = {}
        ours = fingerprints(before, {})
        for _ in range(2):
            known = {theirs: ours[mine] for theirs, mine in self.values.items()}
            self._keys = ours | fingerprints(after, known)
            self.ops, self.values, self.replaced = {}, {}, dict[Value, Value]()
            self._pair_values(before.inputs, after.inputs)
            self._pair_regions(before.body, after.body)
            self._find_moved(before, after)

    def _key(self, item: Op | Value) -> Hashable:
        return constant_text(item) if isinstance(item, Constant) else self._keys[item]

    def _pair_regions(self, before: Region, after: Region) -> None:
        ours, theirs = list(before.ops)[:-1], list(after.ops)[:-1]
        for a, b in paired(ours, theirs, (self._key, _shape, _kind)):
            self._pair_ops(a, b)
        if self.in_place:
            self._pair_replaced(ours, theirs)
        self.ops[before.terminator] = after.terminator

    def _pair_replaced(self, ours: Sequence[Op], theirs: Sequence[Op]) -> None:
        """Between two pairs, ops with results of the same types stand for each other.

        They are no pairs, as they compute something else, but their results have one name.
        """
        paired_with = set(self.ops.values())
        gaps_after = _gaps(theirs, paired_with)
        for gap, other in zip(_gaps(ours, self.ops), gaps_after, strict=True):
            for a, b in paired(gap, other, (_types,)):
                self.replaced.update(zip(a.results, b.results, strict=True))
                self._pair_values(a.results, b.results)

    def _pair_ops(self, a: Op, b: Op) -> None:
        self.ops[a] = b
        match a, b:
            case Scan(), Scan():
                self._pair_carries(a.carries, b.carries)
                self._pair_values([s.param for s in a.streams], [s.param for s in b.streams])
                self._pair_values([y.result for y in a.stacks], [y.result for y in b.stacks])
            case While(), While():
                self._pair_carries(a.carries, b.carries)
                self._pair_values(a.predicate.params, b.predicate.params)
            case Call(), Call():
                self._pair_values(a.body.params, b.body.params)
                self._pair_values(a.results, b.results)
            case _:
                self._pair_values(a.results, b.results)
        for ours, theirs in zip(a.regions, b.regions, strict=True):
            self._pair_regions(ours, theirs)

    def _pair_carries(self, before: Sequence[Carry], after: Sequence[Carry]) -> None:
        by_type: Callable[[Carry], Hashable] = lambda c: type_text(c.param.aval)  # noqa: E731
        for a, b in paired(before, after, (lambda c: self._key(c.param), by_type)):
            self.values[b.param] = a.param
            self.values[b.result] = a.result

    def _pair_values(self, before: Sequence[Value], after: Sequence[Value]) -> None:
        for a, b in paired(before, after, (self._key, lambda v: type_text(v.aval))):
            self.values[b] = a

    def _find_moved(self, before: Graph, after: Graph) -> None:
        stayed = set(self.ops.values())
        gone = {self._key(op): op for op in before.walk() if op not in self.ops}
        for op in after.walk():
            origin = gone.pop(self._key(op), None) if op not in stayed else None
            if origin is not None:
                for value in origin.results:  # it is not what stands in its old place
                    self.values.pop(self.replaced.pop(value, value), None)
                self.values.update(zip(op.results, origin.results, strict=True))


def paired(
    before: Sequence[T], after: Sequence[T], levels: Sequence[Callable[[T], Hashable]]
) -> Iterator[tuple[T, T]]:
    """Pairs in order with equal keys: by the first level, then within the gaps by the next."""
    if not levels or not before or not after:
        return
    key, *rest = levels
    matcher = SequenceMatcher(None, [*map(key, before)], [*map(key, after)], autojunk=False)
    for tag, i, end, j, other_end in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(before[i:end], after[j:other_end], strict=True)
        else:
            yield from paired(before[i:end], after[j:other_end], rest)


def _gaps(ops: Sequence[Op], known: Container[Op]) -> list[list[Op]]:
    """The ops before, between and after those that are known."""
    gaps: list[list[Op]] = [[]]
    for op in ops:
        if op in known:
            gaps.append([])
        else:
            gaps[-1].append(op)
    return gaps


def _types(op: Op) -> Hashable:
    return tuple(type_text(value.aval) for value in op.results)


def _kind(op: Op) -> Hashable:
    types = () if op.regions else tuple(type_text(v.aval) for v in op.results)
    return op.name, len(op.regions), types


def _shape(op: Op) -> Hashable:
    return _kind(op), parameters(op), tuple(type_text(v.aval) for v in op.results)


def fingerprints(graph: Graph, known: Mapping[Value, Hashable]) -> Keys:
    """What every op and value computes, from the inputs down; `known` values have their own."""
    return _Fingerprints(graph, known).keys


class _Fingerprints:
    def __init__(self, graph: Graph, known: Mapping[Value, Hashable]) -> None:
        self.keys: Keys = {}
        self.known = known
        self.define("input", graph.inputs, [index for index, _ in enumerate(graph.inputs)])
        self.region(graph.body)

    def define(self, role: str, values: Sequence[Value], keys: Sequence[Hashable]) -> None:
        """The order distinguishes equal keys."""
        seen: Counter[Hashable] = Counter()
        for value, key in zip(values, keys, strict=True):
            identity = role, key, type_text(value.aval)
            self.keys[value] = self.known.get(value, hash((identity, seen[identity])))
            seen[identity] += 1

    def read(self, values: Sequence[Value]) -> tuple[Hashable, ...]:
        return tuple(constant_text(v) if isinstance(v, Constant) else self.keys[v] for v in values)

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        reads = self.read(op.operands)
        match op:
            case Scan():
                n = op.num_carries
                self.define("carry", op.body.params[:n], reads[:n])
                self.define("stream", op.body.params[n:], reads[n:])
            case While():
                self.define("carry", op.predicate.params, reads)
                self.define("carry", op.body.params, reads)
            case Call():
                self.define("argument", op.body.params, reads)
        for region in op.regions:
            self.region(region)
        outputs = [self.read(region.outputs) for region in op.regions]
        effects = [self.keys[each] for region in op.regions for each in region.ops if each.effects]
        self.keys[op] = hash((_shape(op), reads, *outputs, *effects))
        self.define("result", op.results, self.results(op, reads, outputs))

    def results(
        self, op: Op, reads: tuple[Hashable, ...], outputs: Sequence[tuple[Hashable, ...]]
    ) -> Sequence[Hashable]:
        """A loop's or branch's result is what makes it, whatever else the op computes."""
        match op:
            case Scan() | While():
                step, outer = outputs[-1], parameters(op)
                return [
                    (outer, *pair) for pair in zip(step, [*reads, *step][: len(step)], strict=True)
                ]
            case Cond():
                return [(reads, *values) for values in zip(*outputs, strict=True)]
            case _ if op.regions:
                return [(op.name, key) for key in outputs[0]]
            case _:
                return [(self.keys[op], index) for index in range(len(op.results))]
