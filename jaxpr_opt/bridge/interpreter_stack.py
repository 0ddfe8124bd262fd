"""Run our code over whole programs in one chunk of stack, without garbage collection.

CPython keeps the frames of Python functions in chunks of 16 KB.  Where calls happen to cross the
end of a chunk, each one allocates a chunk and frees it again (python/cpython#142183).  Tracing
makes thousands of calls from one depth, and takes up to twice as long there; whether it does is
chance, as it depends on how deep the caller's own stack is.

A frame that asks for much more than it needs gets a chunk of its own, and what is left of that
chunk is room for everything that is called from it.  It is address space: what nobody touches costs
no memory.

The garbage collector would walk a program that only grows, again and again: half of the time for a
large one.  It waits until the program is made.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SLOTS = 16_384
"""Of 8 bytes: chunks are powers of two, so the frame takes half of 256 KB, and leaves the rest."""


def with_large_frame(fun: Callable[P, T]) -> Callable[P, T]:
    """The function, which from now on runs without crossing the end of a chunk at every other call:
    it has a larger frame itself, and no other, as functions that call each other are many.
    """
    assert isinstance(fun, FunctionType), "it has code of its own"
    fun.__code__ = fun.__code__.replace(co_stacksize=_SLOTS)
    return fun


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
