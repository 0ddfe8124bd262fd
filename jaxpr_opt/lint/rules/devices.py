"""The rule about programs that do not fit the device they are for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.figures import factor, limit_text
from jaxpr_opt.reports.frontier import Point, of_graph
from jaxpr_opt.sizes import binary_text, binary_text_above


@register
@dataclass(frozen=True, slots=True)
class DeviceMemory(Rule):
    """What: the program is estimated to take more memory than its device has.

    The device's memory is the target's `memory`. Arguments, results and temporary memory count,
    estimated from shapes.

    Why: otherwise you notice when the program is compiled for the device, or runs there. The
    finding says which budget would fit, and what that costs in time.

    Example::

        [tool.jaxpr-opt.lint.targets.step]
        function = "model.py:loss"
        args = "model.py:arguments"
        mode = "gradient"
        memory = "16 GiB"

    Instead::

        step = jaxpr_opt.optimize(step, memory="9 GiB")     # computes again what does not fit
        print(jaxpr_opt.budget(step, params, batch))        # what less memory costs

    Thread: https://github.com/jax-ml/jax/issues/2139
    """

    code = "JXO604"
    name = "device-memory"
    severity = "error"

    def check(self, subject: Subject) -> Iterator[Finding]:
        device = subject.options.memory
        if device is None:
            return
        results = sum(value.nbytes for value in dict.fromkeys(subject.graph.outputs))
        fixed = subject.input_bytes + results - subject.donated_bytes
        temporary = temporary_bytes(subject.graph)
        if fixed + temporary > device:
            yield self.finding(
                subject,
                says=f"the program takes about {binary_text(fixed + temporary)}, and its device"
                f" has {limit_text(device)}",
                reason=f"{binary_text(fixed)} are arguments and results,"
                f" {binary_text(temporary)} temporary",
                fix=_fix(subject, int(device - fixed)),
                frame=subject.place,
                bytes=fixed + temporary,
            )


def _fix(subject: Subject, room: int) -> str:
    """How to make it fit, and at what cost."""
    if room <= 0:
        return "arguments and results alone do not fit: smaller ones, or more devices"
    today, *others = of_graph(subject.graph, subject.name).points
    if today.bytes <= room:
        return f"`@jaxpr_opt.optimize`: {binary_text(today.bytes)} of temporary memory"
    fitting = [point for point in others if point.bytes <= room]
    if fitting:
        return _bought(fitting[0], today)
    least = min((today, *others), key=lambda point: point.bytes)
    return (
        f"`jaxpr_opt.optimize` gets temporary memory down to {binary_text(least.bytes)}, which is"
        f" not enough: smaller arguments, or more devices"
    )


def _bought(point: Point, today: Point) -> str:
    """A budget that fits, and its price."""
    written = binary_text_above(point.bytes)
    return f'`optimize(memory="{written}")`: {factor(point.seconds / today.seconds)}x the time'
