"""Compile two programs: the seconds that takes, and the bytes that XLA sets aside."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
from jax.extend.core import jaxpr_as_fun

from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.reports.figures import Figure, seconds_text
from jaxpr_opt.sizes import bytes_text


class Compiled(NamedTuple):
    """The figures of one compiled program; bytes are None where the backend does not tell."""

    seconds: float
    temp_bytes: int | None


def compiled(before: Graph, after: Graph) -> list[Figure]:
    """Rows for the summary table; lowering is part of compiling, optimising is not."""
    old, new = measure(before), measure(after)
    return [
        Figure("compile_seconds", "time to compile", old.seconds, new.seconds, seconds_text),
        Figure("temp_bytes", "temporaries, compiled", old.temp_bytes, new.temp_bytes, bytes_text),
    ]


def measure(graph: Graph) -> Compiled:
    """Compile a program for the default device; nothing runs and nothing comes from a cache."""
    program = export(graph)
    traced = jax.jit(jaxpr_as_fun(program)).trace(*program.in_avals)
    started = time.perf_counter()
    executable = traced.lower().compile()
    seconds = time.perf_counter() - started
    memory = executable.memory_analysis()
    return Compiled(seconds, None if memory is None else int(memory.temp_size_in_bytes))
