"""A program as a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpr_opt.bridge import compat_saving
from jaxpr_opt.bridge.compat_source import user_frame
from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import (
    UNDEFINED,
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
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.saving import values
from jaxpr_opt.saving.values import UnwritableError
from jaxpr_opt.version import __version__

KIND, VERSION = "jaxpr-opt program", 1
LARGEST = 4096
"""Bytes of a captured array that is written; larger ones become arguments."""


@dataclass(frozen=True, slots=True)
class Written:
    """A program as JSON, and what of it could not be written."""

    data: dict[str, Any]
    opaque: tuple[str, ...]
    """The primitives of ops of which only the types are known."""


def to_json(
    graph: Graph, begins: Frame | None, donated: Sequence[bool], measured: dict[str, Any]
) -> Written:
    """A program as JSON.

    Raises:
      UnwritableError: it takes or returns what a file cannot hold.
    """
    writer = _Writer()
    large = [v for v in _constants(graph) if v.nbytes > LARGEST]
    names = [each.name for each in graph.inputs] + [f"captured_{n}" for n in range(len(large))]
    for each in (*graph.inputs, *large):
        writer.number(each)
    data = {
        "kind": KIND,
        "version": VERSION,
        "jax": jax.__version__,
        "jaxpr-opt": __version__,
        "name": graph.name,
        "begins": None if begins is None else _place(begins),
        "donated": [bool(each) for each in donated] + [False] * len(large),
        "measured": measured,
        "names": names,
        "body": writer.region(graph.body, large),
        "types": [values.type_of(aval) for aval in writer.types],
        "places": list(map(_place, writer.places)),
    }
    return Written(data, tuple(writer.opaque))


def _constants(graph: Graph) -> list[Constant]:
    """Captured arrays, each once."""
    found = (v for op in graph.walk() for v in op.operands if isinstance(v, Constant))
    return list(
        {id(v.value): v for v in found if isinstance(v.value, jax.Array | np.ndarray)}.values()
    )


def _is_needed(op: Op) -> bool:
    """Whether an op must be written: JAX makes the number of a branch again from its predicate."""
    is_used = any(value.uses for value in op.results)
    return not op.is_terminator and (is_used or op.name != "convert_element_type")


def _place(frame: Frame) -> list[Any]:
    """A place, its file relative to the current folder where it is below."""
    path = Path(frame[0])
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return [path.as_posix(), *frame[1:]]


@dataclass
class _Writer:
    """What is numbered while a program is written."""

    numbers: dict[Any, int] = field(default_factory=dict)
    types: dict[Any, int] = field(default_factory=dict)
    places: dict[Frame, int] = field(default_factory=dict)
    opaque: dict[str, None] = field(default_factory=dict)

    def number(self, value: Value) -> int:
        """The number of a value, a new one the first time."""
        key = id(value.value) if isinstance(value, Constant) else value
        return self.numbers.setdefault(key, len(self.numbers))

    def type(self, aval: Any) -> int:
        """The number of a type."""
        values.type_of(aval)
        return self.types.setdefault(aval, len(self.types))

    def read(self, value: Value) -> Any:
        """An operand: a number, or a constant in full."""
        if isinstance(value, Constant) and id(value.value) not in self.numbers:
            return [self.type(value.aval), values.constant(value.value, value.aval)]
        return self.number(value)

    def region(self, region: Region, more: Sequence[Value] = ()) -> dict[str, Any]:
        """A region: its parameters, with `more`, its ops and its outputs."""
        params = [*region.params, *more]
        return {
            "params": [[self.number(each), self.type(each.aval)] for each in params],
            "ops": [self.op(each) for each in region.ops if _is_needed(each)],
            "outputs": list(map(self.read, region.outputs)),
        }

    def op(self, op: Op) -> dict[str, Any]:
        """An op; one that cannot be written is known by its types."""
        reads = list(map(self.read, op.operands))
        made: dict[str, Any] = {"op": op.name, "in": reads}
        try:
            made |= self.details(op)
        except UnwritableError:
            name = op.primitive.name if op.primitive is not None else op.name
            self.opaque[name] = None
            made |= {"op": "opaque", "name": name, "effects": bool(op.effects)}
        made["out"] = [[self.number(each), self.type(each.aval)] for each in op.results]
        if (frame := user_frame(op.source.info)) is not None:
            made["at"] = self.places.setdefault(frame, len(self.places))
        if op.source.transposes:
            made["transposes"] = op.source.transposes
        return made

    def details(self, op: Op) -> dict[str, Any]:
        """What is peculiar to a kind of op."""
        regions = [self.region(each) for each in op.regions] if type(op) in _STRUCTURED else []
        if isinstance(op, Scan):
            params = values.written(op.params, self.jaxpr)
            return {"regions": regions, "carries": op.num_carries, "params": params}
        if isinstance(op, Remat):
            params = {**op.params, "policy": None}  # which matters to what differentiates it
            reads = list(map(self.number, self.captures(op.body)))
            written = values.written(params, self.jaxpr)
            return {"regions": regions, "params": written, "captures": reads}
        if isinstance(op, While | Cond) or op.name in (UNDEFINED, "jit"):
            return {"regions": regions}
        if isinstance(op, Call) or op.primitive is None:
            raise UnwritableError(op.name)
        params = values.written(dict(op.params), self.jaxpr)
        return {"op": "first-order", "primitive": op.primitive.name, "params": params}

    def captures(self, region: Region) -> list[Value]:
        """The outer values of a region, and the captured arrays that became arguments."""
        read = (v for op in region.walk() for v in op.operands if isinstance(v, Constant))
        arguments = {id(v.value): v for v in read if id(v.value) in self.numbers}
        return [*region.captures(), *arguments.values()]

    def jaxpr(self, jaxpr: Any) -> Any:
        """A jaxpr that is a parameter, as a region that sees nothing outside."""
        return self.region(import_jaxpr(compat_saving.closed(jaxpr), "final").body)


_STRUCTURED: tuple[Callable[..., Any], ...] = (Scan, While, Cond, Remat, Call)
