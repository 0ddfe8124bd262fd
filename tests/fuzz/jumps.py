"""Gradients of what jumps, compiled: ``python -m fuzz --jumps``.

A program computes numbers, and then a maximum, an order, a place or a comparison of them, in a
loop, a branch, a checkpoint or layers.  What the backward pass computes again XLA may round
otherwise, and then it is not the maximum any more.  Values and gradients of the optimised program,
in either order, with and without a memory budget, are those of plain JAX; where plain JAX compiled
is itself not what JAX evaluates op by op, nothing is said.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import textwrap
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpr_opt
from fuzz.eager import eager
from fuzz.epoch import silenced
from jaxpr_opt import settings
from jaxpr_opt.testing import evaluate_exactly

COMPUTED = (
    "{a} * w + {b}", "{a} * {b} + w", "jnp.sin({a}) + 0.3 * {b}", "jnp.exp(-{a} * {a}) * {b}",
    "jax.nn.softmax({a}) * 4.0", "jnp.tanh({a} * {b} + w)", "jnp.cumsum({a}) * w",
    "{a} - jnp.mean({a})", "{a} / (1.0 + {b} * {b})", "m @ {a}", "jnp.flip({a}) * w + {b}",
    "jnp.dot({a}, w) * 0.1 + {b}", "jnp.log1p({a} * {a})", "jax.nn.gelu({a} * {b} + w)",
    "jnp.sqrt({a} * {a} + 1.0)", "{a} * 0.7 + jnp.roll({a}, 1) * 0.2", "{a} + {b}", "2.0 * {a}",
    "jnp.linspace(0.0, 3.0, {a}.size, dtype={a}.dtype) * {a} + {b}",
)  # fmt: skip
"""Numbers of rows `a` and `b`, of the weights `w` and a matrix `m`."""

JUMPS = (
    "jnp.max({y}) + 0.1 * {y}", "jnp.min({y}) * w", "jnp.sort({y}) * w",
    "{y}[jnp.argsort({y})] * w", "jnp.where({y} == jnp.max({y}), {y} * {y}, 0.3 * {y})",
    "{y}[jnp.argmax({y})] * w", "{y} - jnp.floor({y})", "jnp.round({y} * 4.0) * {y}",
    "jnp.sign({y}) * {y} * w", "jnp.where({y} > 0.1, {y} * {y}, w)",
    "jnp.where({y} > {z}, {y}, 0.5 * {z})", "jnp.median({y}) * w",
    "jnp.clip({y}, -0.5, 0.5) + w", "jnp.clip({y}, jnp.min({z}), jnp.max({z}))",
    "jax.nn.relu({y}) * w", "jnp.sum(lax.top_k({y}, 2)[0]) * w", "jnp.maximum({y}, {z})",
    "lax.cummax({y}) * w", "jnp.mod({y}, 1.0) * w", "jnp.interp({y}, jnp.sort({z}), w)",
    "jnp.abs({y}) * w", "jnp.ptp({y}) * {y}",
    "jnp.quantile({y}.astype(jnp.float32), 0.3).astype({y}.dtype) * w",
    "jax.nn.logsumexp({y}) + {y}",
    "jnp.where(jnp.searchsorted(jnp.sort({y}), {y}) < 2, {y} * w, {y})",
    "jnp.ceil({y}) * w + {y}", "jnp.trunc({y} * 2.0) * {y}", "jax.nn.hard_tanh({y}) * w",
    "jax.nn.leaky_relu({y}) * w", "jnp.where(({y} >= jnp.sort({y})[-2]), {y}, 0.0)",
    "jnp.max(jnp.stack([{y}, {z}, w]), 0)",
    "jnp.where(jnp.abs({y}) == jnp.max(jnp.abs({y})), {y}, {z})",
    "lax.reduce_window({y}, -jnp.inf, lax.max, (3,), (1,), 'SAME')", "one_hot({y}) * {y}",
    "between({y} * 3.0, w)", "by_pairs({y}) * w",
)  # fmt: skip
"""What jumps, or has a kink, of rows `y` and `z`."""


def one_hot(y: Any) -> Any:
    """Where the largest is."""
    return jax.nn.one_hot(jnp.argmax(y), y.size, dtype=y.dtype)


def between(t: Any, w: Any) -> Any:
    """A number of a table, by how far a place is from those that are whole."""
    low = jnp.floor(t)
    return w[jnp.clip(low.astype(int), 0, t.size - 1)] * (t - low)


def by_pairs(y: Any) -> Any:
    """The larger of two beside each other."""
    pairs = jnp.arange(y.size) // 2
    return jax.ops.segment_max(y, pairs, num_segments=y.size)[pairs]


FORMS = {
    "scan": """
        c, ys = lax.scan(step, x, xs)
    """,
    "reverse": """
        c, ys = lax.scan(step, x, xs, reverse=True)
    """,
    "checkpoint": """
        c, ys = lax.scan(jax.checkpoint(step), x, xs)
    """,
    "cond": """
        def maybe(c, r):
            return lax.cond(jnp.sum(r) > 0, lambda: step(c, r), lambda: (c * 0.5, c))

        c, ys = lax.scan(maybe, x, xs)
    """,
    "computed cond": """
        def maybe(c, r):
            y = jnp.tanh(c * w + r)
            return lax.cond(jnp.max(y) > 0.3, lambda: step(y, r), lambda: (c * 0.5, y))

        c, ys = lax.scan(maybe, x, xs)
    """,
    "nested": """
        def outer(c, _):
            return lax.scan(step, c, xs)

        c, ys = lax.scan(outer, x, None, length=3)
    """,
    "layers": """
        c, ys = x, []
        for r in xs[:8]:
            c, y = step(c, r)
            ys.append(y)
        ys = jnp.stack(ys)
    """,
    "layers in checkpoints": """
        c, ys = x, []
        for r in xs[:8]:
            c, y = jax.checkpoint(step)(c, r)
            ys.append(y)
        ys = jnp.stack(ys)
    """,
    "masked": """
        def masked(c, tr):
            new, y = step(c, tr[1])
            return jnp.where(tr[0] < 5, new, c), jnp.where(tr[0] < 5, y, 0.0)

        c, ys = lax.scan(masked, x, (jnp.arange(len(xs)), xs))
    """,
    "batch": """
        each = lambda x: lax.scan(step, x, xs)
        c, ys = jax.vmap(each)(jnp.stack([x, 0.5 * x, w]))
    """,
    "written": """
        def write(both, tr):
            c, buffer = both
            new, y = step(c, tr[1])
            return (new, buffer.at[tr[0]].set(y * jnp.max(buffer[tr[0] - 1]))), None

        (c, ys), _ = lax.scan(write, (x, jnp.ones_like(xs)), (jnp.arange(len(xs)), xs))
    """,
}
"""Where a step runs."""

PROGRAM = """
def program(x, w, xs, m):
    def step(c, r):
        {lines}
        return (0.5 * c + 0.1 * {last}).astype(c.dtype), {kept}.astype(c.dtype)

{form}
    return jnp.sum(jnp.square(c)) + jnp.sum(jnp.sin(ys))
"""

BUDGETS = (None, None, None, 0.25, 0.5, "minimal")
DTYPES = ("float32",) * 6 + ("float64", "bfloat16", "float16")
RELATIVE = {"float32": 1e-3, "float64": 1e-6, "bfloat16": 0.1, "float16": 2e-2}
"""What rounding may come to, as a part of the largest value."""


def written(rng: random.Random) -> str:
    """The source of a program."""
    names, lines = ["c", "r"], []
    for k in range(rng.randint(2, 5)):
        a, b = (rng.choice(names[-3:]) for _ in range(2))
        chosen = rng.choice(COMPUTED if k == 0 or rng.random() < 0.45 else JUMPS)
        lines.append(f"y{k} = " + chosen.format(a=a, b=b, y=a, z=b))
        names.append(f"y{k}")
    lines.append("last = " + rng.choice(JUMPS).format(y=names[-1], z=rng.choice(names)))
    form = textwrap.indent(textwrap.dedent(FORMS[rng.choice([*FORMS])]).strip("\n"), "    ")
    kept = rng.choice(names[2:])
    body = "\n        ".join(lines)
    return PROGRAM.format(lines=body, last="last", kept=kept, form=form)


def drawn(width: int, steps: int, dtype: str, kind: str, numbers: np.random.Generator) -> Any:
    """Arguments: ordinary, with many that are alike, or at the kinks of functions."""
    shapes = (width,), (width,), (steps, width), (width, width)
    made = [numbers.standard_normal(shape) for shape in shapes]
    if kind == "alike":
        made = [numbers.choice([-0.7, 0.3, 1.1], shape) for shape in shapes]
    if kind == "kinks":
        made = [numbers.choice([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0], shape) for shape in shapes]
    made[-1] = made[-1] / width
    return tuple(jnp.asarray(each, dtype) for each in made)


def differ(want: Any, got: Any, relative: float) -> str:
    """How gradients differ by more than rounding, where those of plain JAX are finite."""
    for k, (one, other) in enumerate(zip(*map(jax.tree.leaves, (want, got)), strict=True)):
        a, b = (np.asarray(each, np.float64) for each in (one, other))
        known = np.isfinite(a)
        scale = max(float(np.abs(a[known]).max(initial=0.0)), 1e-3)
        with np.errstate(invalid="ignore"):
            wrong = known & ~(np.abs(a - b) <= relative * scale)
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            return f"result {k}: {wrong.sum()} of {a.size} differ, at {at} {b[at]} is not {a[at]}"
    return ""


class Jumps:
    """Programs that jump, one after the other."""

    def __init__(self, seed: int, number: int, folder: Path) -> None:
        self.seed, self.number, self.folder = seed, number, folder
        self.rng = random.Random(f"jumps {seed}:{number}")
        self.numbers = np.random.default_rng(self.rng.getrandbits(32))
        self.counts: collections.Counter[str] = collections.Counter()

    def one(self) -> None:
        """Write a program, and compare its gradients."""
        rng = self.rng
        text, dtype = written(rng), rng.choice(DTYPES)
        width, steps = rng.choice((4, 17, 64, 512)), rng.choice((8, 16, 64))
        budget, inside, pays = rng.choice(BUDGETS), rng.random() < 0.5, rng.random() < 0.4
        kind = rng.choice(("plain", "plain", "alike", "kinks"))
        how = f"{dtype} {width} {steps} {kind}, memory={budget}, "
        how += f"{'optimize(grad(f))' if inside else 'grad(optimize(f))'}{', every rewrite' * pays}"
        with jax.enable_x64(dtype == "float64"), eager() if pays else contextlib.nullcontext():
            args = drawn(width, steps, dtype, kind, self.numbers)
            names: dict[str, Any] = {
                "jax": jax, "jnp": jnp, "lax": jax.lax,
                "one_hot": one_hot, "between": between, "by_pairs": by_pairs,
            }  # fmt: skip
            exec(text, names)
            self._compare(text, how, names["program"], args, (dtype, budget, inside))

    def _compare(self, text: str, how: str, program: Any, args: Any, options: Any) -> None:
        dtype, budget, inside = options
        gradient = lambda f: jax.value_and_grad(f, (0, 1, 2))
        try:
            want = jax.jit(gradient(program))(*args)
        except (TypeError, ValueError, NotImplementedError):
            self.counts["invalid"] += 1
            return
        self.counts["programs"] += 1
        optimize = jaxpr_opt.optimize if budget is None else jaxpr_opt.optimize(memory=budget)
        ours = optimize(gradient(program)) if inside else gradient(optimize(program))
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                got = jax.jit(ours)(*args)
        except Exception:  # noqa: BLE001 - whatever goes wrong is the find
            self._found(text, how, traceback.format_exc())
            return
        told = [str(each.message) for each in said if "jaxpr_opt" in str(each.message)]
        if unknown := [each for each in told if "memory" not in each]:
            self._found(text, how, unknown[0])
        found = differ(want, got, RELATIVE[dtype])
        if not found:
            return
        jaxpr = jax.make_jaxpr(gradient(program))(*args)
        exact = evaluate_exactly(jaxpr, *args)
        if differ(exact, want, RELATIVE[dtype]):
            self.counts["plain differs, too"] += 1
        else:
            self._found(text, how, found)

    def _found(self, text: str, how: str, found: str) -> None:
        self.counts["finds"] += 1
        name = f"found_jumps_{jax.__version__.replace('.', '_')}_{self.seed}_{self.number}"
        path = self.folder / f"{name}_{self.counts['programs']}.py"
        path.write_text(f'"""{how}\n\n{found}\n"""\n{text}')


def main(seed: int, number: int, count: int, folder: Path) -> None:
    """Try programs and write down how many."""
    folder.mkdir(parents=True, exist_ok=True)
    each = Jumps(seed, number, folder)
    started, worked = time.monotonic(), time.process_time()
    with silenced(), settings.override(strict=False):
        while each.counts["programs"] < count:
            each.one()
    done = {
        "jax": jax.__version__, "epoch": f"jumps {number}", "seconds": time.monotonic() - started,
        "cpu": time.process_time() - worked, "counts": each.counts, "kinds": {},
    }  # fmt: skip
    with (folder / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")
