"""Where equations come from: the lines of the user's program, in JAX's source info."""

from __future__ import annotations

import functools
import linecache
from itertools import islice
from typing import Any

from jax._src import source_info_util as _source_info

from jaxpr_opt.bridge.compat import debug_info, inner_jaxprs, open_jaxpr
from jaxpr_opt.frames import Frame, is_installed, is_machinery

EXPRESSION = 40
"""Characters of an expression that are quoted."""


def user_frame(info: Any) -> Frame | None:
    """`(file, line, function)` of the user's code an equation was traced from; None where JAX
    knows none.

    Of the code that called into libraries, if there is any: nobody edits an installed file.
    """
    return None if info is None or info.traceback is None else _user_frame(info.traceback)


@functools.lru_cache(maxsize=1024)
def _user_frame(traceback: Any) -> Frame | None:
    innermost: Frame | None = None
    for each in _source_info.user_frames(traceback):
        if is_machinery(each.file_name):
            continue
        frame = (each.file_name, each.start_line, each.function_name)
        if not is_installed(each.file_name):
            return frame
        innermost = innermost or frame
    return innermost


def user_expression(info: Any) -> str:
    """The expression at `user_frame`, as `jnp.sin(x)`; empty where the source is not there."""
    if info is None or info.traceback is None or _user_frame(info.traceback) is None:
        return ""
    return _user_expression(info.traceback)


@functools.lru_cache(maxsize=1024)
def _user_expression(traceback: Any) -> str:
    frame = _user_frame(traceback)
    for code, at in zip(*traceback.raw_frames(), strict=True):
        place: tuple[Any, ...] = next(islice(code.co_positions(), at // 2, None), (None,) * 4)
        first, last, start, end = place
        if frame is None or (code.co_filename, first) != frame[:2] or None in place:
            continue
        lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
        if lines:
            lines[-1] = lines[-1][:end]  # before the start: they may be one line
            lines[0] = lines[0][start:]
        words = " ".join(b" ".join(lines).decode(errors="replace").split())
        words = words.replace("( ", "(").replace(" )", ")")
        return words if len(words) <= EXPRESSION else f"{words[: EXPRESSION - 1]}…"
    return ""


def nest_source(outer: Any, inner: Any, callee: Any) -> Any:
    """Source info of an equation inlined from a call: the call's name stack goes in front.

    `callee` is the library's function that is called, if it is one (see `library_function`).  JAX
    traces it once and for all; so if no code of the user runs in it, this call is where the
    equation comes from: what it has on record is the line of the first such call, if any.
    """
    if outer is None or inner is None:
        return inner
    is_theirs = callee is None or _calls_back(inner.traceback, callee)
    traceback = (inner if is_theirs and user_frame(inner) is not None else outer).traceback
    return inner.replace(traceback=traceback, name_stack=outer.name_stack + inner.name_stack)


def transposes(info: Any) -> int:
    """How many times JAX has transposed to make an equation: its name stack says
    ``transpose(...)``.
    """
    stack = () if info is None else info.name_stack.stack
    return sum(
        isinstance(each, _source_info.Transform) and each.name == "transpose" for each in stack
    )


def is_recomputed(info: Any) -> bool:
    """Whether an equation of a transposed `jax.checkpoint` computes values of it again."""
    stack = () if info is None else info.name_stack.stack
    return any(getattr(each, "name", None) == "rematted_computation" for each in stack)


def library_function(jaxpr: Any) -> tuple[str, str] | None:
    """File and name of the function that a jaxpr was traced from, unless it is the user's."""
    info = debug_info(jaxpr)
    name, _, place = str(info.func_src_info or "").partition(" at ") if info else ("", "", "")
    file = place.rpartition(":")[0]
    return (file, name) if is_machinery(file) or is_installed(file) else None


def users_function(jaxpr: Any) -> Frame | None:
    """Where a function of the user begins that a jaxpr was traced from: itself, or the outermost
    that runs inside of a library's function; None if none does.
    """
    if (callee := library_function(jaxpr)) is None:
        return _own_place(jaxpr) or _inner_place(jaxpr, ("", ""))
    return _inner_place(jaxpr, callee)


def _own_place(jaxpr: Any) -> Frame | None:
    info = debug_info(jaxpr)
    name, at, place = str(info.func_src_info or "").partition(" at ") if info else ("", "", "")
    file, _, line = place.rpartition(":")
    return (file, int(line), name) if at and line.isdigit() else None


def _inner_place(jaxpr: Any, callee: tuple[str, str]) -> Frame | None:
    for eqn in open_jaxpr(jaxpr).eqns:
        frame = _users_frame_in(eqn.source_info.traceback, callee)
        if frame is not None:
            return frame
        for inner in inner_jaxprs(eqn.params):
            if (frame := _inner_place(inner, callee)) is not None:
                return frame
    return None


@functools.lru_cache(maxsize=1024)
def _users_frame_in(traceback: Any, callee: tuple[str, str]) -> Frame | None:
    """The outermost function of the user that runs inside of `callee`; None if it runs others only.

    Frames are told by their file: what wraps a function is called as that is.  Where none is of
    that file, as in the body of a loop that runs op by op, it is the innermost function.
    """
    found: list[Frame] = []
    runs_itself = False
    for code in traceback.raw_frames()[0] if traceback is not None else ():
        if code.co_filename == callee[0]:
            if found:
                return found[-1]
            runs_itself = True
        elif not is_machinery(code.co_filename) and not is_installed(code.co_filename):
            found.append((code.co_filename, code.co_firstlineno, code.co_name))
    return found[0] if found and not runs_itself else None


@functools.lru_cache(maxsize=256)
def _calls_back(traceback: Any, callee: tuple[str, str]) -> bool:
    """Whether code of the user runs inside of a library's function."""
    for code in traceback.raw_frames()[0] if traceback is not None else ():
        if (code.co_filename, code.co_name) == callee:
            return False
        if not is_machinery(code.co_filename) and not is_installed(code.co_filename):
            return True
    return False
