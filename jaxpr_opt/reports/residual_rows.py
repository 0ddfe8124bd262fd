"""The rows of the residual report: values that the author of the program would call the same are
one row.

The layers of a model that a Python loop unrolls come from the same lines and have the same types;
they are listed once, with their number.  By the same name, line and type a value is found again in
the optimised program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.bridge.parameters import label_of
from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.saved import Kind, Saved, saved
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Constant, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.ir.traits import is_cheap
from jaxpr_opt.sizes import bytes_text

MAX_CHEAP = 4
"""Operations that make a value again: more are not called cheap."""


class Key(NamedTuple):
    """What a value is called, where it is made, and its type in one step."""

    name: str
    frame: Frame | None
    shape: str


class Need(NamedTuple):
    """An operation of the backward half, and the line that it is the transpose of."""

    op: str
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class Residual:
    """A value that a gradient keeps, or several that nothing distinguishes."""

    name: str
    """What its author calls it; the operation that makes it, where it has no name."""
    shape: str
    """Its type in one step, as `f32[8,128]`."""
    lengths: tuple[int, ...]
    """Trip counts of the loops it is kept for every step of, outermost first."""
    count: int
    """How many such values there are."""
    bytes: int
    """Of all of them, in all steps."""
    kind: Kind
    frame: Frame | None
    """Where it is made."""
    needed_by: tuple[Need, ...]
    """What reads it; nothing, if it is handed over in vain."""
    optimized_bytes: int
    """What is left of it when the program is optimised."""
    passes: tuple[str, ...]
    """What takes it off."""
    cheap: str
    """From what it could be made again by a few elementwise operations, and by which; empty if it
    could not."""

    @property
    def is_unread(self) -> bool:
        """Whether it is handed over in vain; what is known while tracing needs no reader."""
        return not self.needed_by and self.kind != "constant"

    @property
    def formula(self) -> str:
        """`256 x 4.19 MB`; empty for what is kept once."""
        times = [*self.lengths, *([self.count] if self.count > 1 else [])]
        if not times or not all(times):
            return ""
        return " x ".join([*map(str, times), bytes_text(self.bytes / math.prod(times))])

    def to_dict(self) -> dict[str, Any]:
        """The row for machines; file, line and function are null where unknown."""
        return {
            "name": self.name,
            "shape": self.shape,
            "lengths": list(self.lengths),
            "count": self.count,
            "bytes": self.bytes,
            "formula": self.formula,
            "kind": self.kind,
            **_place(self.frame),
            "needed_by": [{"op": need.op, **_place(need.frame)} for need in self.needed_by],
            "optimized_bytes": self.optimized_bytes,
            "passes": list(self.passes),
            "cheap": self.cheap or None,
        }


def _place(frame: Frame | None) -> dict[str, Any]:
    return dict(zip(("file", "line", "function"), frame or (None, None, None), strict=True))


# -- what values are called ----------------------------------------------------------------------


def key(value: Value) -> Key:
    """The key that distinguishes a value from others."""
    return Key(_called(value), frame_of(value), type_text(value.aval))


def _called(value: Value) -> str:
    op = value.op
    if op is not None and op.name == "name":  # by `checkpoint_name`
        return label_of(op)
    owner = _owner(value)
    if isinstance(owner, Scan | While) and op is None and not value.name:
        is_carry = not isinstance(owner, Scan) or owner.carry_of(value) is not None
        return "carry" if is_carry else "row"
    if isinstance(value, Constant):
        return "captured array" if value.shape else "number"
    return value.name or (op.name if op is not None else "argument")


def frame_of(value: Value) -> Frame | None:
    """The line that makes a value; that which makes the next one, for what a loop carries."""
    owner = _owner(value)
    if isinstance(owner, Scan | While) and value.op is None:
        carry = next((c for c in owner.carries if value is c.param), None)
        maker = carry.next.op if carry is not None else None
        owner = maker or owner
    return user_frame(owner) if isinstance(owner, Op) else None


def _owner(value: Value) -> Any:
    """The op that makes a value, or whose region it is a parameter of."""
    return value.owner.owner if isinstance(value.owner, Region) else value.owner


def argument_names(graph: Graph) -> dict[Value, str]:
    """The names of the arguments, as `params['w']`; cotangents have none."""
    names = getattr(graph.debug_info, "arg_names", None) or [value.name for value in graph.inputs]
    return {
        value: str(name or "argument")
        for value, name in zip(graph.inputs, names, strict=True)
        if value not in graph.cotangents
    }


# -- rows ----------------------------------------------------------------------------------------


def bytes_by_key(facts: Iterable[Saved]) -> dict[Key, int]:
    """How much is kept under every key."""
    found: dict[Key, int] = {}
    for fact in facts:
        which = key(fact.made)
        found[which] = found.get(which, 0) + fact.nbytes
    return found


@dataclass(frozen=True, slots=True)
class Optimized:
    """What optimisation does to what is kept."""

    left: Mapping[Key, int]
    """Bytes that the optimised program keeps."""
    passes: Mapping[Key, tuple[str, ...]]
    """The passes that made them fewer."""


def compared(
    before: Graph, facts: Sequence[Saved], after: Graph, passes: Mapping[Key, tuple[str, ...]]
) -> tuple[tuple[Residual, ...], tuple[Residual, ...]]:
    """The values that a program keeps, and those that only the optimised one keeps."""
    left = saved(after)
    kept = rows(facts, argument_names(before), Optimized(bytes_by_key(left), passes))
    known = {key(fact.made) for fact in facts}
    new = [f for f in left if f.kind != "argument" and key(f.made) not in known and f.nbytes]
    return tuple(kept), tuple(rows(new, argument_names(after), Optimized(bytes_by_key(new), {})))


def rows(
    facts: Sequence[Saved], arguments: Mapping[Value, str], optimized: Optimized
) -> list[Residual]:
    """The rows of what is kept, the largest first; `arguments` have the names that are shown."""
    groups: dict[tuple[Any, ...], list[Saved]] = {}
    for fact in facts:
        which = key(fact.made), arguments.get(fact.value, ""), fact.lengths, bool(fact.needed_by)
        groups.setdefault(which, []).append(fact)
    whole = bytes_by_key(facts)
    anyway = {fact.made for fact in facts} | arguments.keys()
    made = []
    for (which, argument, lengths, _), group in groups.items():
        (kind, *_), nbytes = [fact.kind for fact in group], sum(fact.nbytes for fact in group)
        needs = (Need(op.name, user_frame(op)) for f in group for op in f.needed_by)
        left = optimized.left.get(which, 0) * nbytes // max(whole[which], 1)
        row = Residual(
            name=argument or which.name,
            shape=which.shape,
            lengths=lengths,
            count=len(group),
            bytes=nbytes,
            kind=kind,
            frame=which.frame,
            needed_by=tuple(dict.fromkeys(needs)),
            optimized_bytes=nbytes if kind == "argument" else left,
            passes=optimized.passes.get(which, ()),
            cheap="" if kind != "intermediate" else _cheap(group[0].made, anyway, arguments),
        )
        made.append(row)
    return sorted(made, key=lambda row: -row.bytes)


def _cheap(value: Value, anyway: Set[Value], arguments: Mapping[Value, str]) -> str:
    """How a value is made of others that are there anyway: `exp of x`; empty if not easily."""

    def stop(each: Value) -> bool:
        return each is not value and each in anyway

    ops = backward_slice([value], stop)
    made = {result for op in ops for result in op.results}
    sources = dict.fromkeys(v for op in ops for v in op.operands if v not in made)
    known = [v for v in sources if not isinstance(v, Constant)]
    if (
        not 0 < len(ops) <= MAX_CHEAP
        or not all(map(is_cheap, ops))
        or not all(v in anyway for v in known)
    ):
        return ""
    names = ", ".join(dict.fromkeys(arguments.get(v, key(v).name) for v in known))
    return ", ".join(op.name for op in ops) + (f" of {names}" if names else "")
