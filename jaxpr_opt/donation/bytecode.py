"""Read the bytecode of a calling function around one of its calls: what is called, which local
variables are passed, and whether any of them is read again.

CPython 3.11 to 3.13.  What is not understood here is no answer: a sentence instead of a `Site`.
"""

from __future__ import annotations

import dis
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

WATCHING = frozenset({
    "_current_frames", "_getframe", "breakpoint", "currentframe", "eval", "exec", "exc_info",
    "f_back", "f_locals", "get_objects", "get_referents", "get_referrers", "live_arrays", "locals",
    "set_trace", "settrace", "stack", "vars",
})  # fmt: skip
"""Names whose use may read variables, or find arrays, that the bytecode does not mention again."""

_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Two instructions in one, since 3.13."""
_STORES = frozenset({"STORE_FAST", "DELETE_FAST"})
_GOES_ON_ELSEWHERE = frozenset({"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"})
_ENDS = frozenset({"RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE"})
_LOADS = {"LOAD_DEREF": "local", "LOAD_FAST": "local", "LOAD_GLOBAL": "global"}


@dataclass(frozen=True, slots=True)
class Site:
    """A call as it is written."""

    callee: tuple[str, ...]
    """`local` or `global`, the name of what is called there, and the attributes after it."""
    arguments: tuple[str | None, ...]
    """For each positional argument: the variable, if it is one and never read again, "" if it is
    an expression, None if it is a variable that is still needed."""
    keywords: int
    """How many arguments are passed by name."""


class _Step(NamedTuple):
    """One instruction, or half of a pair."""

    op: str
    name: str
    """Of the local variable it is about, if any."""
    effect: int
    """On the height of the stack."""
    offset: int
    target: int | None
    """Where it may jump to."""
    arg: int
    value: object


def site(code: CodeType, offset: int) -> Site | str:
    """The call at `offset` of a function's code; a sentence if it is not clear what it does."""
    if code.co_flags & _FUNCTION != _FUNCTION:
        return "the call is not in a function: others can read its variables"
    if code.co_flags & _SUSPENDING:
        return "the call is in a generator or a coroutine: others hold its frame"
    if watching := sorted(WATCHING & set(_names(code))):
        return f"the calling function mentions {watching[0]}"
    steps = list(_steps(code))
    call = next((i for i, s in enumerate(steps) if s.offset == offset), None)
    if call is None or steps[call].op not in ("CALL", "CALL_KW"):
        return "it is not called by a plain call"
    segments, keywords = _segments(code, steps, call)
    if not segments:
        return "an argument of the call has branches or loops in it"
    callee = _callee(steps[segments[0] : segments[1]])
    if callee is None:
        return "what is called is neither a variable nor in a module"
    arguments: list[str | None] = []
    for start, end in itertools.pairwise(segments[1:]):
        name = steps[start].name if steps[start].op == "LOAD_FAST" and end == start + 1 else ""
        free = not name or _given_up(code, steps, call, start, name)
        arguments.append(name if free else None)
    return Site(callee, tuple(arguments[: len(arguments) - keywords]), keywords)


def _names(code: CodeType) -> Iterator[str]:
    """Every name of a global or an attribute in the code, and in functions defined there."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _steps(code: CodeType) -> Iterator[_Step]:
    jumps = {*dis.hasjrel, *dis.hasjabs}
    for each in dis.get_instructions(code):
        arg = each.arg or 0
        if each.opname in _PAIRS:
            for op, name in zip(_PAIRS[each.opname], each.argval, strict=True):
                yield _Step(op, name, 1 if op == "LOAD_FAST" else -1, each.offset, None, 0, None)
            continue
        op = "LOAD_FAST" if each.opname == "LOAD_FAST_CHECK" else each.opname
        name = str(each.argval) if each.opcode in dis.haslocal else ""
        effect = dis.stack_effect(each.opcode, each.arg, jump=False)
        target = each.argval if each.opcode in jumps else None
        yield _Step(op, name, effect, each.offset, target, arg, each.argval)


def _segments(code: CodeType, steps: Sequence[_Step], call: int) -> tuple[list[int], int]:
    """Where the instructions for the callee, for each argument, and for the call itself begin, and
    how many of the arguments are keywords; empty if control does not run straight through them.
    """
    end, keywords = call, 0
    if steps[call].op == "CALL_KW":  # since 3.13 the names are on the stack
        end -= 1
        names = steps[end].value
        keywords = len(names) if isinstance(names, tuple) else -1
    while steps[end - 1].op in ("PRECALL", "KW_NAMES"):
        end -= 1
        if steps[end].op == "KW_NAMES":
            keywords = len(code.co_consts[steps[end].arg])
    inside = {target for step in steps if (target := step.target) is not None}
    inside |= {handler for *_, handler in _handlers(code)}
    wanted = [-1 - i for i in range(steps[call].arg)] + [-2 - steps[call].arg]
    found: list[int] = []
    height, index = 0, end
    while len(found) < len(wanted) and index > 0:
        index -= 1
        if steps[index].target is not None:
            return [], 0
        height -= steps[index].effect
        if height == wanted[len(found)]:
            found.append(index)
    straight = len(found) == len(wanted) and keywords >= 0
    crossed = any(steps[i].offset in inside for i in range(index + 1, call + 1))
    return ([], 0) if crossed or not straight else ([*found[::-1], end], keywords)


def _callee(steps: Sequence[_Step]) -> tuple[str, ...] | None:
    """Where what is called is found: a variable, then attributes."""
    loads = [step for step in steps if step.op != "PUSH_NULL"]
    if not loads or loads[0].op not in _LOADS:
        return None
    if any(step.op not in ("LOAD_ATTR", "LOAD_METHOD") for step in loads[1:]):
        return None
    return (_LOADS[loads[0].op], *(str(step.value or step.name) for step in loads))


def _given_up(code: CodeType, steps: Sequence[_Step], call: int, load: int, name: str) -> bool:
    """Whether the variable that is loaded for a call is not read after it, nor written before."""
    if name in code.co_cellvars or name in code.co_freevars:
        return False
    if any(step.name == name and step.op in _STORES for step in steps[load:call]):
        return False
    handlers = _handlers(code)
    at = {step.offset: i for i, step in reversed(list(enumerate(steps)))}
    seen: set[int] = set()
    pending = _after(steps, call, at, handlers)
    while pending:
        index = pending.pop()
        if index in seen:
            continue
        seen.add(index)
        step = steps[index]
        if step.name == name:
            if step.op not in _STORES:
                return False
            continue
        pending += _after(steps, index, at, handlers)
    return True


def _after(
    steps: Sequence[_Step],
    index: int,
    at: dict[int, int],
    handlers: Sequence[tuple[int, int, int]],
) -> list[int]:
    """The steps that may run next, should this one raise too."""
    step = steps[index]
    following = [at[target] for first, end, target in handlers if first <= step.offset < end]
    if step.target is not None:
        following.append(at[step.target])
    if step.op not in _ENDS and step.op not in _GOES_ON_ELSEWHERE:
        following.append(index + 1)
    return following


def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """`(first offset, offset after the last, handler)` of what is in `try` and `with`."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined,unused-ignore]
    return [(entry.start, entry.end, entry.target) for entry in entries]
