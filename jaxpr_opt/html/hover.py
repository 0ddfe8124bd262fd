"""The text that a chart shows under the pointer, as data for the page's script.

::

    {"columns": [[right edge, instant, steps], ...],   edges are shares of the width
     "instants": [[op, type, place, live bytes, residual bytes, backward, [value, ...]], ...],
     "values": [[label, type, bytes, kind, place], ...]}

Instants and values are listed once, and referred to by position.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.html import peak
from jaxpr_opt.html.chart import Chart
from jaxpr_opt.html.places import key
from jaxpr_opt.insight.timeline import Instant, Live, Tick
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.reports import residual_rows
from jaxpr_opt.sizes import bytes_text


class _Table:
    """Entries that are listed once."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.positions: dict[Hashable, int] = {}

    def __call__(self, what: Hashable, *entry: Any) -> int:
        if what not in self.positions:
            self.positions[what] = len(self.entries)
            self.entries.append(entry)
        return self.positions[what]


def data(chart: Chart) -> dict[str, Any]:
    """Everything that hovering over a chart can show."""
    instants, values = _Table(), _Table()
    columns = [
        [round(each.right, 4), _instant(each.tick.instant, instants, values), _steps(each.tick)]
        for each in chart.columns
    ]
    return {"columns": columns, "instants": instants.entries, "values": values.entries}


def _instant(instant: Instant, instants: _Table, values: _Table) -> int:
    op = instant.op
    return instants(
        op,
        "return" if op.is_terminator and op.parent is None else op.name,
        ", ".join(type_text(value.aval) for value in op.results[:2])
        + (", …" if len(op.results) > 2 else ""),
        key(user_frame(op)),
        bytes_text(instant.live),
        bytes_text(instant.residual),
        instant.backward,
        [_value(live, values) for live in instant.largest],
    )


def _value(live: Live, values: _Table) -> int:
    name, frame, _ = residual_rows.key(peak.maker(live))
    type_ = type_text(live.value.aval)
    return values(live.value, name, type_, bytes_text(live.bytes), peak.kind(live), key(frame))


def _steps(tick: Tick) -> str:
    """`step 3 of 8, 1 of 2`, outermost loop first, counted from one."""
    lengths = [
        around.length if isinstance(around, Scan) else None
        for around in with_parents(tick.instant.op.parent)
        if isinstance(around, Scan | While)
    ]
    steps = [
        f"{step + 1:,}" + (f" of {length:,}" if length is not None else "")
        for step, length in zip(tick.steps, reversed(lengths), strict=True)
    ]
    return f"step {', '.join(steps)}" if steps else ""
