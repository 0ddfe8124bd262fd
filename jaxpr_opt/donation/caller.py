"""Whether a caller gives up an argument: proves that nothing can read it afterwards.

An argument is given up if all of this is certain, at the moment of the call:

1. the call is a plain call in a plain function, of CPython 3.11 to 3.13 with its lock: no
   generator, module, class body, ``*args``, `functools.partial` or `map` in between;
2. the argument is a local variable that the calling function never reads again, or overwrites
   before it does, whatever raises; or it is an expression, that nothing but the call refers to;
3. it is referred to as often as these explain, and no more: no other variable, container, closure,
   default, thread, traceback, or weak reference leads to it.  The same holds for every container
   and array in it;
4. nobody watches or holds the frame: no tracer, profiler, debugger, traceback; and the function
   does not mention what may read its variables behind the bytecode's back (`locals`, `eval`);
5. no other array shares its memory, as `jax.device_put` and `addressable_shards` may make them.

Anything else, and anything unclear, is not given up.  How often objects are referred to on the way
from a call to here differs between versions of Python, and is measured on objects of our own.

What remains is code that looks into the frames of others *after* the call, as a debugger does that
is started later: it finds an array that says that it was deleted, never one with other values.
"""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import operator
import sys
import sysconfig
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import jax

from jaxpr_opt.bridge import compat
from jaxpr_opt.donation.bytecode import Site, site
from jaxpr_opt.donation.sharing import sharing_memory

log = logging.getLogger("jaxpr_opt.donation")
"""At level DEBUG, why arguments were not donated."""

_TOOLS = range(6)
"""What `sys.monitoring` has room for."""
_BETWEEN = "a wrapper is between the caller and the function"


class Counts(NamedTuple):
    """How often an object is referred to, seen from here, if nothing else refers to it."""

    frame: int
    """The frame of the caller."""
    expression: int
    """An argument that is no variable."""
    variable: int
    """An argument that is a local variable."""
    by_name: int
    """What is added to that where others are passed by name."""
    child: int
    """Something in a container, or an attribute."""
    attributes: int
    """The dictionary of an object's attributes, where there is one."""


EXPECTED = Counts(frame=4, expression=4, variable=5, by_name=1, child=3, attributes=3)
"""On CPython 3.11 to 3.13.  Elsewhere, or should a hook into the interpreter make it otherwise,
nothing is given up.
"""


def given_up(
    frame: FrameType, callee: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> frozenset[int]:
    """Which positional arguments of a call the caller gives up.

    To be called by `callee.__call__`, a Python method ``(self, *args, **kwargs)``, with its own
    arguments and the frame that called it.
    """
    held = _frame_references(frame)  # before anything else refers to it
    call = _site(frame.f_code, frame.f_lasti)
    unclear = _unclear(frame, callee, args, kwargs, call, held)
    reasons = [unclear] if unclear else []
    found: dict[int, list[Any]] = {}
    if not unclear and isinstance(call, Site):
        for i, name in enumerate(call.arguments):
            arrays: list[Any] = []
            expected = EXPECTED.variable if name else EXPECTED.expression
            expected += EXPECTED.by_name if kwargs else 0
            if name is None:
                reasons.append(f"argument {i} is read again")
            elif _references(args, i) != expected:
                reasons.append(f"argument {i} is referred to elsewhere")
            elif why := shared(args[i], arrays):
                reasons.append(f"argument {i} {why}")
            else:
                found[i] = arrays
        if found:
            together = [[*found][i] for i in sharing_memory([*found.values()])]
            reasons += [f"argument {i} may share memory" for i in together]
            found = {i: arrays for i, arrays in found.items() if i not in together}
    if reasons and log.isEnabledFor(logging.DEBUG):
        log.debug("%r: %s", callee, "; ".join(reasons))
    return frozenset(found)


def _unclear(
    frame: FrameType,
    callee: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Site | str,
    held: int,
) -> str:
    """Why nothing can be said about a call; empty if something can."""
    if not understood():
        return "this version of Python is not supported"
    if _watched() or frame.f_trace is not None:
        return "a tracer, profiler or debugger is watching"
    if isinstance(call, str):
        return call
    if len(call.arguments) != len(args) or call.keywords != len(kwargs):
        return _BETWEEN
    if held != EXPECTED.frame:
        return "the frame of the caller is referred to elsewhere"
    return "" if _callee(frame, call.callee) is callee else _BETWEEN


def _watched() -> bool:
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since 3.12
    return monitoring is not None and any(monitoring.get_tool(i) is not None for i in _TOOLS)


# -- the call ------------------------------------------------------------------------------------


_sites: dict[tuple[int, int], tuple[CodeType, Site | str]] = {}
_MAX_SITES = 1024


def _site(code: CodeType, offset: int) -> Site | str:
    """Remembered by identity: comparing code objects takes longer than all the rest."""
    known = _sites.get((id(code), offset))
    if known is None:
        if len(_sites) >= _MAX_SITES:
            _sites.clear()
        known = _sites[id(code), offset] = code, site(code, offset)
    return known[1]


def _callee(frame: FrameType, path: tuple[str, ...]) -> object:
    """The function that a call in the frame calls; None if that cannot be said without running
    code.
    """
    scope, name, *attributes = path
    found = frame.f_globals.get(name) if scope == "global" else _local(frame, name)
    for attribute in attributes:
        if not isinstance(found, ModuleType):
            return None
        found = vars(found).get(attribute)
    return found


def _local(frame: FrameType, name: str) -> object:
    """The value of a local variable.

    Until 3.12 `f_locals` is a dictionary that the frame keeps, with a reference to everything: it
    is emptied again, unless somebody else has it too.
    """
    values = frame.f_locals
    found: object = values.get(name)
    if isinstance(values, dict):
        if sys.getrefcount(values) > 3:  # by the frame, `values` and the call
            return None
        code = frame.f_code
        for each in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            values.pop(each, None)
    return found


# -- references ----------------------------------------------------------------------------------


def _references(args: Sequence[Any], i: int) -> int:
    return sys.getrefcount(args[i])


def _frame_references(frame: FrameType) -> int:
    return sys.getrefcount(frame)


def shared(value: Any, arrays: list[Any]) -> str:
    """How something else may refer to what is inside `value`, in words; empty if nothing does.

    Adds what arrays there are to `arrays`.  There may be many containers: those of one depth are
    looked at together.
    """
    if weakref.getweakrefcount(value):
        return "has weak references"
    if type(value) is compat.Array:
        arrays.append(value)
        return ""
    level = [value]
    while level:
        children = _children(level)
        if children is None:
            children = _children([*filter(_has_arrays, level)])
        if children is None:
            return "holds arrays in an unknown way"
        if any(_has_arrays(children[i]) for i in _elsewhere(children)):
            return "holds something that is referred to elsewhere"
        kinds = [*map(type, children)]
        arrays += itertools.compress(children, map(operator.is_, kinds, _EVERY))
        level = [*itertools.compress(children, map(operator.is_not, kinds, _EVERY))]
    return ""


_EVERY = itertools.repeat(compat.Array)


def _has_arrays(value: Any) -> bool:
    """Whether a caller has to give it up: numbers, None, and what is empty may be anywhere."""
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


def _elsewhere(children: list[Any]) -> list[int]:
    """The positions of those to which something else leads than their containers."""
    counts = _child_references(children)
    weak = [*map(weakref.getweakrefcount, children)]
    if not any(weak) and counts.count(EXPECTED.child) == len(counts):
        return []
    return [i for i, n in enumerate(counts) if weak[i] or n != EXPECTED.child]


def _child_references(children: list[Any]) -> list[int]:
    """Of each, in one step: there may be many."""
    return [*map(sys.getrefcount, children)]


def _children(values: list[Any]) -> list[Any] | None:
    """What is directly in some pytrees, if these are what refers to each of them; else None.

    What one of them says is in it, another may refer to: all of them are given up, or none.
    """
    children: list[Any] = []
    others: list[Any] = []
    for value in values:
        if type(value) is dict:
            children += value.values()
        elif type(value) in (list, tuple):
            children += value
        else:
            others.append(value)
    flattened = [*map(jax.tree_util.default_registry.flatten_one_level, others)]
    holders = [*itertools.compress(others, flattened)]  # the others are leaves
    made = [*itertools.chain.from_iterable(map(_FIRST, filter(None, flattened)))]
    return [*children, *made] if _are_held(made, holders) else None


_FIRST = operator.itemgetter(0)


def _are_held(children: list[Any], holders: list[Any]) -> bool:
    """Whether objects refer to each of their children themselves."""
    known = map(getattr, holders, itertools.repeat("__dict__"), itertools.repeat(None))
    attributes = [*filter(None, known)]  # an object has them for good once somebody has asked
    if not {EXPECTED.attributes}.issuperset(map(sys.getrefcount, attributes)):
        return False
    held = gc.get_referents(*holders, *attributes)
    return set(map(id, held)).issuperset(map(id, children))


def understood() -> bool:
    """Whether references are counted here as `EXPECTED` says."""
    return _counts() == EXPECTED


@functools.cache
def _counts() -> Counts | None:
    """How often objects of our own are referred to, cold and warm; None where that varies."""
    if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    probe = _Probe()
    found: set[Counts] = set()
    for _ in range(64):
        value = object()
        frame, variable = probe(value)
        expression = probe(object())[1]
        by_name = probe(object(), name=None)[1] - expression
        attributes = _Probe(child=object()).__dict__
        child = _child_references(list(attributes.values()))[0]
        found.add(
            Counts(frame, expression, variable, by_name, child, sys.getrefcount(attributes) + 1)
        )
    return found.pop() if len(found) == 1 else None


class _Probe:
    """Called as a function that donates is, it counts."""

    def __init__(self, child: object = None) -> None:
        self.child = child

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return _measured(sys._getframe(1), self, args, kwargs)  # noqa: SLF001


def _measured(
    frame: FrameType, callee: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int]:
    """Has the parameters of `given_up`, and counts as it does."""
    del callee, kwargs
    return _frame_references(frame), _references(args, 0)
