"""A program as Python source: a test that does not depend on the generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

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

SCATTERS = {"scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"}


class UnprintableError(Exception):
    """A parameter is nothing that can be written down."""


def source(graph: Graph) -> str:
    """The program as a function ``program(*arguments)``."""
    return "\n".join(_Writer().function("program", graph.body, graph.inputs, "")) + "\n"


class _Writer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.fresh = (f"v{k}" for k in itertools.count())

    def name(self, value: Value) -> str:
        if isinstance(value, Constant) and value not in self.names:
            return _constant(value)
        if value not in self.names:
            self.names[value] = next(self.fresh)
        return self.names[value]

    def all(self, values: Sequence[Value]) -> str:
        return "".join(f"{self.name(v)}, " for v in values).strip()

    def function(
        self, name: str, region: Region, params: Sequence[Value], pad: str
    ) -> Iterator[str]:
        yield f"{pad}def {name}({', '.join(self.name(p) for p in params)}):"
        yield from self.region(region, pad + "    ")
        yield f"{pad}    return [{', '.join(self.outputs(region))}]"

    def region(self, region: Region, pad: str) -> Iterator[str]:
        for op in region.ops:
            if not op.is_terminator:
                yield from self.op(op, pad)

    def outputs(self, region: Region) -> list[str]:
        """What a region returns; ``kept`` is what JAX would take out of it when it is traced."""
        made = {v for op in region.ops for v in op.results}
        is_whole = isinstance(region.owner, Graph)
        return [
            self.name(v)
            if is_whole or v in made or isinstance(v, Constant)
            else f"kept({self.name(v)})"
            for v in region.outputs
        ]

    def op(self, op: Op, pad: str) -> Iterator[str]:
        match op:
            case Scan():
                yield from self.scan(op, pad)
            case While():
                yield from self.loop(op, pad)
            case Cond():
                yield from self.cond(op, pad)
            case Remat():
                yield from self.called("jax.checkpoint({})()", op, (), pad)
            case Call():
                given = ", ".join(self.name(v) for v in op.operands)
                yield from self.called(f"{{}}({given})", op, op.body.params, pad)
            case _ if op.name in {"custom_jvp_call", "custom_vjp_call"}:
                inner = import_jaxpr(op.params["call_jaxpr"], "final")
                name = next(self.fresh)
                yield from self.function(name, inner.body, inner.inputs, pad)
                given = ", ".join(self.name(v) for v in op.operands)
                yield f"{pad}{self.results(op)}{name}({given})"
            case _:
                yield f"{pad}{self.results(op)}{self.bound(op)}"

    def results(self, op: Op) -> str:
        return f"{self.all(op.results)} = " if op.results else ""

    def called(self, how: str, op: Op, params: Sequence[Value], pad: str) -> Iterator[str]:
        name = next(self.fresh)
        yield from self.function(name, op.regions[0], params, pad)
        yield f"{pad}{self.results(op)}{how.format(name)}"

    def bound(self, op: Op) -> str:
        given = ", ".join(self.name(v) for v in op.operands)
        if op.name == UNDEFINED:
            return f"[undefined({op.result.shape}, {str(op.result.dtype)!r})]"
        if op.name == "debug_callback":
            is_ordered = str(op.params["effect"]) == "OrderedDebug"
            return f"{'say' if is_ordered else 'murmur'}({given})"
        if op.name in SCATTERS:
            params = _params({k: v for k, v in op.params.items() if not k.startswith("update_")})
            return f"[lax.{op.name.replace('-', '_')}({given}, {params})]"
        params = _params(op.params)
        return f"bind({op.name!r}{', ' if given else ''}{given}{', ' if params else ''}{params})"

    def scan(self, op: Scan, pad: str) -> Iterator[str]:
        name, n = next(self.fresh), op.num_carries
        carries = ", ".join(self.name(p) for p in op.body.params[:n])
        rows = ", ".join(self.name(p) for p in op.body.params[n:])
        yield f"{pad}def {name}(carry, rows):"
        inner = pad + "    "
        yield from [f"{inner}[{carries}] = carry"] * (n > 0)
        yield from [f"{inner}[{rows}] = rows"] * (n < len(op.body.params))
        yield from self.region(op.body, inner)
        outs = self.outputs(op.body)
        yield f"{inner}return [{', '.join(outs[:n])}], [{', '.join(outs[n:])}]"
        given = [self.name(v) for v in op.operands]
        options = f"length={op.length}, reverse={op.reverse}"
        call = f"lax.scan({name}, [{', '.join(given[:n])}], [{', '.join(given[n:])}], {options})"
        results = [self.name(v) for v in op.results]
        yield f"{pad}[{', '.join(results[:n])}], [{', '.join(results[n:])}] = {call}"

    def loop(self, op: While, pad: str) -> Iterator[str]:
        names = []
        for region in (op.predicate, op.body):
            names.append(next(self.fresh))
            yield f"{pad}def {names[-1]}(carry):"
            yield f"{pad}    [{', '.join(self.name(p) for p in region.params)}] = carry"
            yield from self.region(region, pad + "    ")
            outs = ", ".join(self.outputs(region))
            yield f"{pad}    return {outs if region is op.predicate else f'[{outs}]'}"
        given = ", ".join(self.name(v) for v in op.operands)
        yield f"{pad}{self.results(op)}lax.while_loop({names[0]}, {names[1]}, [{given}])"

    def cond(self, op: Cond, pad: str) -> Iterator[str]:
        names = []
        for region in op.branches:
            names.append(next(self.fresh))
            yield from self.function(names[-1], region, (), pad)
        selector = self.name(op.selector)
        call = f"lax.switch({selector}, [{', '.join(names)}])"
        if len(names) == 2:
            call = f"lax.cond({selector}, {names[1]}, {names[0]})"
        yield f"{pad}{self.results(op)}{call}"


def _constant(value: Constant) -> str:
    if not isinstance(value.dtype, np.dtype) or value.dtype == jax.dtypes.float0:
        raise UnprintableError(str(value.aval))
    array = np.asarray(value.value, value.dtype)
    if value.aval.weak_type and array.ndim == 0:
        return f"weak({array.item()!r})"
    if array.dtype.kind not in "biufc":
        return f"number({array.astype(np.float64).tolist()!r}, {str(array.dtype)!r})"
    return f"number({array.tolist()!r}, {str(array.dtype)!r})"


def _params(params: dict[str, Any]) -> str:
    return ", ".join(f"{k}={_value(v)}" for k, v in params.items())


def _value(value: Any) -> str:
    if isinstance(value, np.dtype):
        return f"dtype({str(value)!r})"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + "".join(f"{_value(v)}, " for v in value).rstrip() + ")"
    value = value.item() if isinstance(value, np.generic) else value
    text = repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return text
    if isinstance(value, jax.lax.GatherScatterMode):
        return f"lax.GatherScatterMode.{value.name}"
    if type(value).__name__ in {"GatherDimensionNumbers", "ScatterDimensionNumbers"}:
        return f"lax.{text}"
    if type(value).__name__ in {"RoundingMethod", "Precision", "FftType"}:
        return f"lax.{type(value).__name__}.{value.name}"
    raise UnprintableError(text)
