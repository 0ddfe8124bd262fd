"""Where jaxpr-opt takes more than plain JAX: by over 2% of temporary memory, or 5% of time.

Temporary memory is what XLA says of a compiled program: exact, and the same in every run. Times are
interleaved minima, so that a program above the limit in one run only is worth another look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from bench.harness import Row

MEMORY, TIME = 1.02, 1.05
"""How many times as much as plain JAX a program may take."""

FEW_BYTES, FEW_SECONDS = 1024, 5e-6
"""What does not count: XLA aligns every scalar that lives in a loop to 64 bytes, and a call of a
compiled program takes a microsecond or two more or less.
"""

PLAIN, OURS = "plain JAX", ("jaxpr-opt inside grad", "jaxpr-opt")

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of XLA:CPU that halve the time of compilation; buffers are assigned before."""


def temporary_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Temporary bytes of a compiled function."""
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*arguments).compile(compiler_options=QUICKLY)
    return int(compiled.memory_analysis().temp_size_in_bytes)


def is_larger(ours: int, plain: int) -> bool:
    """Whether a program takes more temporary bytes than it may."""
    return ours > MEMORY * plain + FEW_BYTES


def is_slower(ours: float, plain: float) -> bool:
    """Whether a program takes more seconds than it may."""
    return ours > TIME * plain + FEW_SECONDS


def above_plain(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each program of ours that takes more than the same program in plain JAX."""
    plain = {(row.group, row.size, row.name): row for row in rows if row.name.startswith(PLAIN)}
    for row in rows:
        base = plain.get((row.group, row.size, _in_plain_jax(row.name)))
        if base is not None and base is not row:
            yield from (
                f"{row.group}: {row.name} at {row.size}: {much}" for much in _more(row, base)
            )


def _in_plain_jax(name: str) -> str:
    """The name of the same program in plain JAX."""
    for prefix in OURS:
        if name.startswith(prefix):
            return PLAIN + name.removeprefix(prefix)
    return name


def _more(row: Row, base: Row) -> Iterator[str]:
    """What a program takes more of than it may, in words."""
    ours, plain = row.temp_bytes, base.temp_bytes
    if ours is not None and plain is not None and is_larger(ours, plain):
        yield f"{ours:,} temporary bytes, plain JAX {plain:,}"
    took, takes = row.seconds, base.seconds
    if took is not None and takes is not None and is_slower(took, takes):
        yield f"{took * 1e3:.3g} ms, plain JAX {takes * 1e3:.3g} ms"
