"""The textual form of a graph: what tests compare, diffs align and errors quote.

::

    fn (w:f32[3], xs:f32[8,3]) {
      b:f32[3] = broadcast_in_dim 0.0
      c:f32[3], ys:f32[8,3] = scan[8] carry(c1=b) xs(x=xs) {
        s:f32[3] = sin w
        m:f32[3] = mul x s
        a:f32[3] = add c1 m
        yield carry(a) ys(s)
      }
      return c, ys
    }

Types stand at definitions only, parameters only where they say something (`text_params`).
A value is called what the source called it, or after what computes it: `s`, `s1`, ... for `sin`.
Names are numbered region by region and letter by letter, so that an edit does not rename the rest;
as in Python, a region may use a name again, but never that of a value it reads.  The text is the
same on every supported JAX wherever the program is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.ir.graph import (
    Call,
    Cond,
    Constant,
    Graph,
    Op,
    Region,
    Remat,
    Scan,
    Value,
    While,
)
from jaxpr_opt.ir.text_params import parameters

INLINE_ELEMENTS = 4
"""Vectors of at most so many elements are written out."""


QUOTED = 12
"""Lines shown on either side of the op that an error is about."""


class Line(NamedTuple):
    """One line of a program: the op it opens, continues or closes; None for the function itself."""

    depth: int
    text: str
    op: Op | None


def to_text(graph: Graph) -> str:
    """The program as text; see the module's docstring."""
    return "\n".join("  " * line.depth + line.text for line in lines(graph, Names(graph)))


def quote(graph: Graph, op: Op | None, note: str) -> str:
    """The program around an op, marked, with `note` beneath: the body of an error message."""
    program = list(lines(graph, Names(graph)))
    at = next((i for i, line in enumerate(program) if line.op is op), 0)
    shown: list[str] = []
    for index, line in enumerate(program):
        if abs(index - at) <= QUOTED:
            mark = ">>> " if index == at else "    "
            shown.append(f"{mark}{'  ' * line.depth}{line.text}")
        if index == at:
            shown.append(f"    {'  ' * line.depth}^ {note}")
    return "\n".join(shown)


def lines(graph: Graph, names: Names) -> Iterator[Line]:
    """The program line by line.  Works on broken graphs too, so that `verify` can show them."""
    yield Line(0, graph_opening(graph, names), None)
    yield from _region_lines(graph.body, names, 1)
    yield Line(0, "}", None)


def _region_lines(region: Region, names: Names, depth: int) -> Iterator[Line]:
    for op in region.ops:
        yield from op_lines(op, names, depth)


def op_lines(op: Op, names: Names, depth: int) -> Iterator[Line]:
    """An op and everything inside it."""
    yield Line(depth, opening(op, names), op)
    for intro, region in sections(op):
        if intro:
            yield Line(depth, intro, op)
        yield from _region_lines(region, names, depth + 1)
    if op.regions:
        yield Line(depth, "}", op)


def graph_opening(graph: Graph, names: Names) -> str:
    """`fn (x:f32[3] becomes y) {`"""
    becomes = {a.input: a.output for a in graph.donated.aliases} if graph.donated else {}
    inputs = [
        names.definition(value)
        + (f" becomes {names[graph.outputs[becomes[i]]]}" if i in becomes else "")
        for i, value in enumerate(graph.inputs)
    ]
    return f"fn ({', '.join(inputs)}) {{"


def opening(op: Op, names: Names) -> str:
    """The line that begins an op; for one with regions it ends in `{`."""
    if op.is_terminator:
        return _terminator(op, names)
    results = ", ".join(map(names.definition, op.results))
    text = f"{results} = " if results else ""
    reads = [names[v] for v in op.operands]
    match op:
        case Scan():
            bound, n = _bound(names, op.body, op), op.num_carries
            text += f"scan{parameters(op)}{_role('carry', bound[:n])}{_role('xs', bound[n:])}"
        case While():
            text += f"while{parameters(op)}" + _role("carry", _bound(names, op.body, op))
        case Cond():
            text += f"cond {reads[0]}" if len(op.branches) == 2 else f"switch {reads[0]} case 0"
        case Remat():
            text += f"remat{parameters(op)}"
        case Call():
            text += f"call {op.name}{parameters(op)} ({', '.join(_bound(names, op.body, op))})"
        case _:
            text += " ".join([op.name + parameters(op), *reads])
    return text + (" {" if op.regions else "")


def sections(op: Op) -> list[tuple[str, Region]]:
    """The regions of an op in reading order, each with the line between it and the one before.

    A two-branch cond reads as an `if`: the branch taken when the predicate holds comes first.
    """
    match op:
        case Cond() if len(op.branches) == 2:
            return [("", op.branches[1]), ("} else {", op.branches[0])]
        case Cond():
            return [
                (f"}} case {index} {{" if index else "", branch)
                for index, branch in enumerate(op.branches)
            ]
        case While():
            return [("", op.predicate), ("} do {", op.body)]
        case _:
            return [("", region) for region in op.regions]


def _terminator(op: Op, names: Names) -> str:
    reads = [names[v] for v in op.operands]
    match owner := op.region.owner if op.region is not None else None:
        case Graph():
            return " ".join(filter(None, ["return", ", ".join(reads)]))
        case Scan():
            n = owner.num_carries
            return "yield" + _role("carry", reads[:n]) + _role("ys", reads[n:])
        case While() if op.region is owner.body:
            return "yield" + _role("carry", reads)
        case _:
            return " ".join(filter(None, ["yield", ", ".join(reads)]))


def _role(role: str, items: Iterable[str]) -> str:
    inside = ", ".join(items)
    return f" {role}({inside})" if inside else ""


def _bound(names: Names, region: Region, op: Op) -> list[str]:
    pairs = zip(region.params, op.operands, strict=False)  # a broken graph is printed too
    return [f"{names[inner]}={names[outer]}" for inner, outer in pairs]


class Names:
    """The name of every value of a graph; constants are called by what they are.

    `given` are names that some values should have, `avoid` names not to be invented.
    """

    def __init__(
        self, graph: Graph, given: Mapping[Value, str] | None = None, avoid: Iterable[str] = ()
    ) -> None:
        self._names: dict[Value, str] = {}
        self._numbers: dict[str, int] = {}
        """The last number after each name in the region that is looked at."""
        self._given = given or {}
        self._avoid = frozenset(avoid) | frozenset(self._given.values())
        self._region(graph.body)

    def __getitem__(self, value: Value) -> str:
        if isinstance(value, Constant):
            return constant_text(value)
        return self._names.get(value) or f"<{value.name or 'unknown'}>"

    def definition(self, value: Value) -> str:
        """`x:f32[3]`"""
        return f"{self[value]}:{type_text(value.aval)}"

    def all(self) -> frozenset[str]:
        """Every name in use."""
        return frozenset(self._names.values())

    def _region(self, region: Region) -> None:
        """Name what a region defines, apart from what it reads, or the other region of a `while`;
        then what its regions define.
        """
        self._numbers.clear()
        alike = region.owner.regions if isinstance(region.owner, While) else (region,)
        taken = {self[value] for each in alike for value in each.captures()}
        taken.update(self._names[value] for value in region.params if value in self._names)
        for value in region.params:
            self._name(value, value.name or _hint_of_param(region, value), taken)
        ops = list(region.ops)
        for op in ops:
            for index, value in enumerate(op.results):
                self._name(value, value.name or _hint_of_result(op, index), taken)
        for op in ops:
            for inner in op.regions:
                if isinstance(op, While) and inner is op.body:
                    self._share(op)
                self._region(inner)

    def _share(self, loop: While) -> None:
        """A carry has one name in the predicate and in the body."""
        for there, here in zip(loop.predicate.params, loop.body.params, strict=False):
            self._names.setdefault(here, self._names[there])

    def _name(self, value: Value, hint: str, taken: set[str]) -> None:
        if value in self._names:
            return
        name = self._given.get(value, hint)
        while name in taken or (name in self._avoid and name != self._given.get(value)):
            number = self._numbers[hint] = self._numbers.get(hint, 0) + 1
            name = f"{hint}_{number}" if hint[-1:].isdigit() else f"{hint}{number}"
        self._names[value] = name
        taken.add(name)


def _hint_of_param(region: Region, value: Value) -> str:
    owner = region.owner
    if isinstance(owner, Scan) and value.position >= owner.num_carries:
        return "x"
    return "c" if isinstance(owner, Scan | While) else "x"


def _hint_of_result(op: Op, index: int) -> str:
    """Carries leave a loop as `c`, stacks as `ys`; others are called by their op's first letter."""
    match op:
        case Scan():
            return "c" if index < op.num_carries else "ys"
        case While():
            return "c"
        case Cond() | Remat() | Call():
            return "r"
        case _:
            return next((letter for letter in op.name if letter.isalpha()), "v")


def constant_text(constant: Constant) -> str:
    """A scalar or a short vector by value, `const:f32[3,4]` otherwise."""
    value, shape = constant.value, constant.shape
    small = len(shape) <= 1 and np.prod(shape, dtype=int) <= INLINE_ELEMENTS
    if not small or isinstance(value, jax.core.Tracer):
        return f"const:{type_text(constant.aval)}"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # keys, tokens, deleted or remote arrays
        return f"const:{type_text(constant.aval)}"
    return f"[{', '.join(map(str, array))}]" if shape else str(array[()])
