"""State that every step replaces, kept once instead of twice: `donate="matched"` and `"auto"`.

jax#926: a chain of convolutions takes four buffers of its input's size where two would do. One is
the argument, which stays the caller's, and one the result, which cannot be where the argument is.

    x = chain(x)                                        # 4 buffers, 2 if x is donated
    params, state = step(params, state, batch)          # 2 copies of the state, 1 if donated

`donate="matched"` donates every array that a result can be written over: the caller must not use
it again. `donate="auto"` does so where the caller provably cannot.

    cd examples; python donation.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jaxpr_opt

Step = Callable[..., Any]


def chain(x: jax.Array) -> jax.Array:
    """Ten convolutions, one after the other."""
    kernel = jnp.ones((3, 3, 1, 1), x.dtype)
    layout = ("NHWC", "HWIO", "NHWC")
    for _ in range(10):
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
    return x


def step(params: list[Any], state: dict[str, Any], batch: Any) -> tuple[list[Any], dict[str, Any]]:
    """One step of Adam on a few layers; the state comes back beside the parameters."""
    x, y = batch

    def loss(params: list[Any]) -> jax.Array:
        out = x
        for weight in params:
            out = jnp.tanh(out @ weight)
        return jnp.mean((out - y) ** 2)

    def moved(weight: Any, mean: Any, square: Any) -> Any:
        return weight - 1e-3 * mean / (jnp.sqrt(square) + 1e-8)

    gradient = jax.grad(loss)(params)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], gradient)
    params = jax.tree.map(moved, params, mean, square)
    return params, {"mean": mean, "square": square, "count": state["count"] + 1}


def arguments(width: int = 256, depth: int = 4, rows: int = 8) -> tuple[Any, Any, Any]:
    """What `step` is called with first: arrays that nothing else refers to."""
    keys = jax.random.split(jax.random.key(0), depth + 1)
    params = [jax.random.normal(k, (width, width)) / width**0.5 for k in keys[:depth]]
    state = {
        "mean": jax.tree.map(jnp.zeros_like, params),
        "square": jax.tree.map(jnp.zeros_like, params),
        "count": jnp.int32(0),
    }
    batch = jax.random.normal(keys[depth], (2, rows, width))
    return params, state, (batch[0], batch[1])


def copies(step: Step, count: int = 5) -> float:
    """Run the loop that is written everywhere: how many copies of the state live at most, between
    its lines.
    """
    params, state, batch = arguments()
    size, most = sum(leaf.nbytes for leaf in jax.tree.leaves((params, state))), 0
    others = alive() - size
    for _ in range(count):
        params, state, most = watched(step(params, state, batch), most)
    return (most - others) / size


def watched(made: tuple[Any, Any], most: int) -> tuple[Any, Any, int]:
    """The result of a step, and the bytes of arrays while what it replaces still has its names."""
    return *made, max(most, alive())


def alive() -> int:
    """Bytes of the arrays of this process."""
    return sum(array.nbytes for array in jax.live_arrays())


def buffers(fun: Any, x: jax.Array) -> float:
    """What a compiled function takes, arguments and results too, in sizes of its argument."""
    memory = fun.lower(x).compile().memory_analysis()
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes
    taken += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    return float(taken / x.nbytes)


def main() -> None:
    """Print the figures of the comments above."""
    x = jnp.ones((64, 32, 32, 1))
    matched = jaxpr_opt.optimize(chain, donate="matched")
    print(f"chain: {buffers(jax.jit(chain), x):.2f} buffers", end="")
    print(f", donate='matched' {buffers(matched, x):.2f}")
    steps: dict[str, Step] = {
        "jax.jit": jax.jit(step),
        "donate='matched'": jaxpr_opt.optimize(step, donate="matched"),
        "donate='auto'": jaxpr_opt.optimize(step, donate="auto"),
    }
    for name, each in steps.items():
        print(f"step, {name}: {copies(each):.2f} copies of the state at most")


if __name__ == "__main__":
    main()
