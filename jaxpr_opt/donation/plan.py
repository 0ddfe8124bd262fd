"""The donation plan of a program: which argument becomes which result, and why others do not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from jaxpr_opt.analysis.liveness.aliasing import DeviceBuffer, Offer
from jaxpr_opt.bridge import compat_source, compat_types
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.running import run_pass
from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.aliases import Alias, Aliasing
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.printing import plain
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True)
class Argument:
    """One array of the arguments, and what donation can make of it."""

    path: str
    """Where it is among the arguments, as `state['params'].w`."""
    type: str
    """As `f32[1024,4096]`."""
    nbytes: int
    result: str = ""
    """The result it becomes, as `result[0]['params'].w`; empty where it is not donated."""
    kind: str = ""
    """How well they go together; see `jaxpr_opt.analysis.liveness.lifetimes.Kind`."""
    reason: str = ""
    """Why it is not donated; empty where it is."""
    frame: Frame | None = None
    """The line that is in the way."""

    @property
    def root(self) -> str:
        """The name of the whole argument."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]

    def __str__(self) -> str:
        what = f"{self.path} {self.type}"
        if self.result:
            copied = "; something reads it later: XLA may copy it" if self.kind == "late" else ""
            return f"{what} becomes {self.result}, {bytes_text(self.nbytes)}{copied}"
        where = "" if self.frame is None else f" ({frame_text(self.frame)})"
        return f"{what}: {self.reason}{where}"

    def to_dict(self) -> dict[str, Any]:
        where = None
        if self.frame is not None:
            where = dict(zip(("file", "line", "function"), self.frame, strict=True))
        return {
            "argument": self.path,
            "type": self.type,
            "bytes": self.nbytes,
            "result": self.result or None,
            "kind": self.kind or None,
            "reason": self.reason or None,
            "where": where,
        }


@dataclass(frozen=True, slots=True)
class Donation:
    """What donation can make of the arguments of a function; `print` it, or ask for `to_dict()`."""

    name: str
    arguments: tuple[Argument, ...]
    """Those that may be donated, in order."""
    aliases: tuple[Alias, ...]
    """What is donated, by position among all arrays of the arguments and of the results."""
    unread: bool = False
    """Whether one is donated that nothing reads; `jax.jit` drops it unless asked to keep it."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which array becomes which result, by position."""
        return tuple((alias.input, alias.output) for alias in self.aliases)

    @property
    def donated(self) -> tuple[Argument, ...]:
        return tuple(each for each in self.arguments if each.result)

    @property
    def refused(self) -> tuple[Argument, ...]:
        return tuple(each for each in self.arguments if not each.result)

    @property
    def nbytes(self) -> int:
        """Bytes of results that need no buffer of their own."""
        return sum(each.nbytes for each in self.donated)

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "function": self.name,
            "bytes": self.nbytes,
            "arguments": [each.to_dict() for each in self.arguments],
        }

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self.donated)
        arrays = "1 argument" if count == 1 else f"{count} arguments"
        saved = f" of {arrays} can be donated" if count else "nothing can be donated"
        yield Text(
            f"{self.name}: {bytes_text(self.nbytes) + saved if count else saved}", style="bold"
        )
        yield from _listed(self.donated)
        if self.refused:
            yield Text("not donated", style="bold yellow")
            yield from _listed(self.refused)


def _listed(arguments: Iterable[Argument]) -> Iterator[RenderableType]:
    """Those that matter: the biggest first, and no more than fit a screen."""
    ordered = sorted(arguments, key=lambda each: -each.nbytes)
    for each in ordered[:8]:
        yield Padding(Text(str(each)), (0, 0, 0, 2))
    if rest := ordered[8:]:
        yield Padding(
            Text(f"and {len(rest)} more, {bytes_text(sum(r.nbytes for r in rest))}"),
            (0, 0, 0, 2),
        )


def donation(
    graph: Graph,
    candidates: Iterable[int] | None = None,
    shardings: Sequence[Any] = (),
    out_shardings: Sequence[Any] = (),
    kept: Collection[int] = (),
) -> Donation:
    """The arguments of a program that can be donated.

    Args:
      graph: the program.
      candidates: inputs that may be donated, by position; without it, all of them.
      shardings: of its inputs, None where unknown; empty where all are.
      out_shardings: of its outputs.
      kept: outputs that no argument may become, by position.
    """
    inputs = _buffers([v.aval for v in graph.inputs], shardings)
    outputs = _buffers([v.aval for v in graph.outputs], out_shardings)
    outputs = [None if i in kept else each for i, each in enumerate(outputs)]
    given = range(len(inputs)) if candidates is None else candidates
    found = _marked(graph, Offer(tuple(inputs), tuple(outputs), frozenset(given)))
    taken = _names(graph.debug_info, "arg_names", "argument", len(inputs))
    made = _names(graph.debug_info, "result_paths", "result", len(outputs))
    arguments: dict[int, Argument] = {}
    for alias in found.aliases:
        arguments[alias.input] = replace(
            _argument(taken, inputs, alias.input),
            result=made[alias.output],
            kind=str(alias.kind),
        )
    for refusal in found.refused:
        frame = None if refusal.op is None else compat_source.user_frame(refusal.op.source.info)
        arguments[refusal.input] = replace(
            _argument(taken, inputs, refusal.input), reason=refusal.reason, frame=frame
        )
    ordered = tuple(arguments[i] for i in sorted(arguments))
    unread = any(not graph.inputs[alias.input].uses for alias in found.aliases)
    return Donation(graph.name, ordered, found.aliases, unread)


def _marked(graph: Graph, offer: Offer) -> Aliasing:
    """The arguments that `mark-donated-buffers` marks of those that are offered."""
    marking: Any = registry.named("mark-donated-buffers")
    run_pass(replace(marking, offer=offer), graph, Journal(graph.phase, with_refusals=False))
    assert graph.donated is not None
    return graph.donated


def _names(info: Any, field: str, otherwise: str, count: int) -> list[str]:
    """The names that JAX gives to arguments or results of a program."""
    known = [str(name) for name in getattr(info, field, None) or ()]
    return known if len(known) == count else [f"{otherwise} {i}" for i in range(count)]


def _argument(names: Sequence[str], buffers: Sequence[DeviceBuffer | None], i: int) -> Argument:
    buffer = buffers[i]
    return Argument(names[i], str(buffer or "?"), 0 if buffer is None else buffer.nbytes)


def _buffers(avals: Sequence[Any], shardings: Sequence[Any]) -> list[DeviceBuffer | None]:
    known = shardings or [None] * len(avals)
    return [_buffer(aval, sharding) for aval, sharding in zip(avals, known, strict=True)]


def _buffer(aval: Any, sharding: Any) -> DeviceBuffer | None:
    """The buffer of a value of this type; None for what is no array of known size."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None or not all(isinstance(n, int) for n in shape):
        return None
    if compat_types.is_ref(aval):
        return None
    layout = getattr(sharding, "layout", None)  # of a `jax.experimental.layout.Format`
    sharding = getattr(sharding, "sharding", sharding)
    memory = getattr(getattr(aval, "memory_space", None), "name", "Any").lower()
    memory = None if memory == "any" else memory
    return DeviceBuffer(tuple(shape), dtype, sharding, memory, layout)
