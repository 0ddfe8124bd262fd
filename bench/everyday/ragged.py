"""Rows of a batch that end early, loops that stop at a tolerance, and tables filled in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.stats import norm

from bench.everyday.entry import Entry, below, entry, forward, normal

PARENTS = np.maximum(np.arange(64) - 1 - below(2, 64), 0)
"""Of the compartments of a branched cable; that of the first is itself."""


def kept_where(done: Array, old: Any, new: Any) -> Any:
    """A state, or the next one."""
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), old, new)


def ended(weights: Array, xs: Array, lengths: Array) -> Array:
    """Recurrent states of sequences, zeros after their ends."""

    def one(x: Array, length: Array) -> Array:
        def step(t: Array, state: Any) -> Any:
            h, out = state
            new = jnp.tanh(jnp.concatenate([x[t], h]) @ weights)
            h = jnp.where(t < length, new, h)
            return h, out.at[t].set(jnp.where(t < length, h, 0.0))

        start = jnp.zeros(64), jnp.zeros((len(x), 64))
        return lax.fori_loop(0, len(x), step, start)[1]

    return jax.vmap(one)(xs, lengths)


def unrolled(weights: Array, xs: Array, lengths: Array) -> Array:
    """The last states of sequences; four steps are asked to run as one."""

    def one(x: Array, length: Array) -> Array:
        def step(h: Array, tx: Any) -> Any:
            t, row = tx
            return jnp.where(t < length, jnp.tanh(weights @ jnp.concatenate([h, row])), h), None

        return lax.scan(step, jnp.zeros(64), (jnp.arange(len(x)), x), unroll=4)[0]

    return jax.vmap(one)(xs, lengths)


def gated(weights: Array, xs: Array, lengths: Array) -> Array:
    """The last states of padded sequences; a factor keeps those of rows that have ended."""
    mask = (jnp.arange(xs.shape[1]) < lengths[:, None]).astype(xs.dtype)

    def step(h: Array, tx: Any) -> Any:
        row, m = tx
        keep, new = jnp.split(jnp.concatenate([row, h], 1) @ weights, 2, axis=1)
        keep = jax.nn.sigmoid(keep)
        new = keep * h + (1 - keep) * jnp.tanh(new)
        return m[:, None] * new + (1 - m[:, None]) * h, None

    start = jnp.zeros((len(xs), weights.shape[1] // 2))
    return lax.scan(step, start, (jnp.swapaxes(xs, 0, 1), mask.T))[0]


def scored(table: Array, weights: Array, tokens: Array, lengths: Array) -> Array:
    """How well a network tells the next token of padded sentences, on average."""
    mask = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(table.dtype)

    def step(carry: Any, tx: Any) -> Any:
        h, total = carry
        token, after, m = tx
        h = jnp.tanh(table[token] + h @ weights)
        told = jax.nn.log_softmax(h @ table.T)
        loss = -jnp.take_along_axis(told, after[:, None], axis=1)[:, 0]
        return (h, total + jnp.sum(m * loss)), None

    rows = tokens.T, jnp.roll(tokens.T, -1, axis=0), mask.T
    start = jnp.zeros((len(tokens), table.shape[1])), 0.0
    return lax.scan(step, start, rows)[0][1] / jnp.sum(mask)


def pondered(weights: Array, xs: Array) -> Array:
    """Adaptive computation time: as many steps as the state asks for."""

    def one(x: Array) -> Array:
        def step(state: Any, _: None) -> Any:
            h, total, spent = state
            new = jnp.tanh(weights @ h + x)
            halt = 0.1 + 0.4 * jax.nn.sigmoid(jnp.sum(new))
            share = jnp.minimum(halt, 1 - spent)
            return kept_where(spent >= 1, state, (new, total + share * new, spent + share)), None

        return lax.scan(step, (x, jnp.zeros(32), 0.0), None, length=40)[0][1]

    return jax.vmap(one)(xs)


def saved(weights: Array, y: Array) -> Array:
    """Heun's method with adaptive steps, of which some are saved."""
    times = jnp.linspace(0.1, 2.0, 20)

    def slope(y: Array) -> Array:
        return jnp.tanh(weights @ y) - 0.2 * y

    def step(state: Any, _: None) -> Any:
        t, y, width, k, out = state
        h = jnp.minimum(width, times[jnp.minimum(k, 19)] - t)
        a = slope(y)
        b = slope(y + h * a)
        error = lax.stop_gradient(jnp.max(jnp.abs(h * (b - a))) / 2e-3 + 1e-6)
        hit = (error < 1) & (t + h >= times[jnp.minimum(k, 19)] - 1e-6)
        t, y = kept_where(error < 1, (t + h, y + h * (a + b) / 2), (t, y))
        width = width * jnp.clip(0.9 / jnp.sqrt(error), 0.3, 3.0)
        new = t, y, width, k + hit, jnp.where(hit, out.at[k].set(y), out)
        return kept_where(k >= 20, state, new), None

    start = 0.0, y, 0.1, 0, jnp.zeros((20, y.size))
    return lax.scan(step, start, None, length=256)[0][4]


def accepted(scale: Array, xs: Array) -> Array:
    """Samples of a truncated distribution: the first that is not rejected."""

    def one(x: Array) -> Array:
        def step(state: Any, x: Array) -> Any:
            sample, done = state
            sample = lax.cond(done, lambda: sample, lambda: scale[0] + scale[1] * x)
            return (sample, done | (sample > 0)), None

        return lax.scan(step, (0.0, jnp.bool_(False)), x)[0][0]

    return jax.vmap(one)(xs)


def implicit(weights: Array, y: Array) -> Array:
    """Implicit Euler; each step is Newton's method up to a tolerance."""

    def euler(start: Array, _: None) -> Any:
        def residual(y: Array) -> Array:
            return y - start - 0.1 * jnp.tanh(weights @ y)

        def newton(state: Any, _: None) -> Any:
            y, done = state
            r = residual(y)
            new = jnp.where(done, y, y - jnp.linalg.solve(jax.jacfwd(residual)(y), r))
            return (new, done | (jnp.sum(r**2) < 1e-10)), None

        y = lax.scan(newton, (start, jnp.bool_(False)), None, length=20)[0][0]
        return y, y

    return lax.scan(euler, y, None, length=20)[1]


def implied(view: Array, strikes: Array, prices: Array) -> Array:
    """Volatilities that give the prices of options, by Newton's method, one after the other."""

    def price(width: Array, strike: Array) -> Array:
        far = (0.5 * width**2 - jnp.log(strike)) / width
        return norm.cdf(far) - strike * norm.cdf(far - width)

    def quote(last: Array, given: Any) -> Any:
        strike, cost = given[0], given[1] * (1 + 0.01 * jnp.tanh(view * last))

        def newton(width: Array, _: None) -> Any:
            error, slope = price(width, strike) - cost, jax.grad(price)(width, strike)
            new = jnp.clip(width - error / jnp.maximum(slope, 1e-3), 0.01, 3.0)
            return jnp.where(jnp.abs(error) > 1e-5, new, width), None

        width = lax.scan(newton, jnp.float32(0.3), None, length=40)[0]
        return width, width

    return lax.scan(quote, jnp.float32(0.2), (strikes, prices))[1]


def searched(weights: Array, x: Array) -> Array:
    """Descent with a line search: each step is halved until the loss falls."""

    def loss(x: Array) -> Array:
        return jnp.sum(jnp.cosh(weights @ x)) + jnp.sum(x**4)

    def descend(_: Any, x: Array) -> Array:
        slope = jax.grad(loss)(x)
        bound = loss(x) - 0.3 * jnp.sum(slope**2) * 0.5 ** jnp.arange(30)

        def halve(k: Array, state: Any) -> Any:
            width, found = state
            found |= loss(x - width * slope) < bound[k]
            return jnp.where(found, width, width / 2), found

        width = lax.fori_loop(0, 30, halve, (1.0, jnp.bool_(False)))[0]
        return x - lax.stop_gradient(width) * slope

    return lax.fori_loop(0, 20, descend, x)


def advantages(values: Array, rewards: Array, alive: Array) -> Array:
    """Generalised advantages, from the last to the first."""
    steps = len(values)

    def step(k: Array, state: Any) -> Any:
        found, last = state
        t = steps - 1 - k
        following = jnp.where(t == steps - 1, 0.0, values[jnp.minimum(t + 1, steps - 1)])
        last = rewards[t] + 0.99 * following * alive[t] - values[t] + 0.94 * alive[t] * last
        return found.at[t].set(last), last

    return lax.fori_loop(0, steps, step, (jnp.zeros(steps), 0.0))[0]


def echoed(gain: Array, xs: Array) -> Array:
    """An echo: a ring buffer of what was heard 50 steps ago."""

    def step(ring: Array, given: Any) -> Any:
        t, x = given
        y = x + gain * ring[t % 50]
        return ring.at[t % 50].set(y), y

    return lax.scan(step, jnp.zeros(50), (jnp.arange(len(xs)), xs))[1]


def heaped(xs: Array) -> Array:
    """Binary heaps, one a row: what is pushed moves up."""

    def one(x: Array) -> Array:
        def push(i: Array, heap: Array) -> Array:
            def up(state: Any) -> Any:
                heap, c = state
                p = (c - 1) // 2
                return heap.at[p].set(heap[c]).at[c].set(heap[p]), p

            def is_less(state: Any) -> Array:
                heap, c = state
                return (c > 0) & (heap[c] < heap[jnp.maximum((c - 1) // 2, 0)])

            return lax.while_loop(is_less, up, (heap.at[i].set(x[i]), i))[0]

        return lax.fori_loop(0, len(x), push, jnp.full(len(x), jnp.inf))

    return jax.vmap(one)(xs)


def cable(diagonal: Array, weights: Array, currents: Array) -> Array:
    """Hines' method: a linear system with the shape of a tree."""
    parents, n = jnp.asarray(PARENTS), len(diagonal)

    def leaf(k: Array, state: Any) -> Any:
        d, b = state
        i = n - 1 - k
        share = weights[i] / d[i]
        p = parents[i]
        return d.at[p].add(-share * weights[i]), b.at[p].add(-share * b[i])

    d, b = lax.fori_loop(0, n - 1, leaf, (diagonal, currents))

    def branch(i: Array, x: Array) -> Array:
        return x.at[i].set((b[i] - weights[i] * x[parents[i]]) / d[i])

    return lax.fori_loop(1, n, branch, jnp.zeros(n).at[0].set(b[0] / d[0]))


def charted(scores: Array) -> Array:
    """Inside scores of all spans of a sentence, from short to long."""
    n = len(scores)
    here = jnp.arange(n)

    def spans(chart: Array, width: Array) -> Any:
        def span(i: Array) -> Any:
            j = jnp.minimum(i + width, n - 1)
            inside = (here >= i) & (here < j)
            split = chart[i] + chart[jnp.minimum(here + 1, n - 1), j]
            best = jnp.where(inside[:, None], split, -1e9)
            return jax.nn.logsumexp(best, 0) + scores[i, j], j

        new, ends = jax.vmap(span)(here)
        new = jnp.where((here + width < n)[:, None], new, chart[here, ends])
        return chart.at[here, ends].set(new), None

    chart = jnp.full(scores.shape, -1e9).at[here, here].set(scores[here, here])
    return lax.scan(spans, chart, jnp.arange(1, n))[0][0, -1]


def decoded(weights: Array, starts: Array, lengths: Array) -> Array:
    """Each row of a batch attends to what it has written into its cache, until it ends."""
    places = jnp.arange(48)

    def one(start: Array, length: Array) -> Array:
        def step(state: Any) -> Any:
            t, h, cache = state
            cache = cache.at[t].set(h @ weights[0])
            scores = jnp.where(places <= t, cache @ (h @ weights[1]), -jnp.inf)
            return t + 1, jnp.tanh(h + jax.nn.softmax(scores) @ cache), cache

        begun = 0, start, jnp.zeros((48, 32))
        return lax.while_loop(lambda state: state[0] < length, step, begun)[1]

    return jax.vmap(one)(starts, lengths)


def remembered(weights: Array, xs: Array, lengths: Array) -> Array:
    """A network that writes to a memory and reads all of it, of sequences of several lengths."""

    def one(x: Array, length: Array) -> Array:
        def step(state: Any, tx: Any) -> Any:
            t, row = tx
            h = jnp.tanh(weights[0] @ row + weights[1] @ state[0])
            slot = jnp.argmax(state[1] @ h)
            memory = state[1].at[slot].set(0.5 * state[1][slot] + h)
            read = jax.nn.softmax(memory @ h) @ memory
            new = jnp.tanh(weights[2] @ read + h), memory
            return kept_where(t >= length, state, new), None

        begun = jnp.zeros(32), jnp.zeros((48, 32))
        return lax.scan(step, begun, (jnp.arange(len(x)), x))[0][0]

    return jax.vmap(one)(xs, lengths)


def attended_until_the_end(weights: Array, x: Array, length: Array) -> Array:
    """Two layers that attend to what a `cond` has written to their caches; one sequence."""

    def live(state: Any) -> Any:
        t, x, caches = state
        for layer in range(2):
            caches = caches.at[layer, t].set(jnp.tanh(weights[layer] @ x))
            scores = jax.nn.softmax(caches[layer] @ x, where=jnp.arange(64) <= t)
            x = jnp.tanh(x + scores @ caches[layer])
        return t + 1, x, caches

    def step(state: Any, _: None) -> Any:
        state = lax.cond(state[0] < length, live, lambda state: state, state)
        return state, state[1]

    return lax.scan(step, (0, x, jnp.zeros((2, 64, 32))), None, length=64)[1]


def marched(grid: Array, origins: Array, directions: Array) -> Array:
    """Rays through a grid of densities and colours, each until it is opaque."""
    grid = jnp.asarray(grid)

    def one(origin: Array, direction: Array) -> Array:
        def step(state: Any, t: Array) -> Any:
            through, colour, goes_on = state
            cell = jnp.clip(32 * (origin + direction * t / 64), 0, 31).astype(int)
            seen = grid[cell[0], cell[1], cell[2]]
            left = jnp.exp(-0.2 * jax.nn.softplus(seen[0]))
            new = colour + through * (1 - left) * jax.nn.sigmoid(seen[1:])
            old = (through, colour)
            through, colour = kept_where(~goes_on, old, (through * left, new))
            return (through, colour, goes_on & (through > 0.05)), None

        return lax.scan(step, (1.0, jnp.zeros(3), True), jnp.arange(64))[0][1]

    return jax.vmap(one)(origins, directions)


PROGRAMS: dict[str, Entry] = {
    "ended": entry(ended, 0.1 * normal(96, 64), normal(8, 64, 32), 4 + below(12, 8)),
    "unrolled by four": entry(unrolled, 0.1 * normal(64, 96), normal(8, 62, 32), 4 + below(9, 8)),
    "gated by a factor": entry(
        gated, 0.1 * normal(96, 128), normal(16, 192, 32), 4 + below(20, 16)
    ),
    "scored": entry(
        scored, normal(50, 64), 0.1 * normal(64, 64), below(50, 16, 192), 4 + below(20, 16)
    ),
    "pondered": entry(pondered, 0.3 * normal(32, 32), normal(32, 32)),
    "saved": entry(saved, 0.3 * normal(16, 16), normal(16)),
    "accepted": entry(accepted, np.float32([0.3, 1.2]), normal(64, 50)),
    "implicit": entry(implicit, 0.3 * normal(8, 8), normal(8)),
    "implied": entry(
        implied, normal(), np.exp(0.1 * normal(200)), np.float32(0.5) * abs(normal(200)) + 0.01
    ),
    "searched": entry(searched, 0.2 * normal(32, 32), normal(32)),
    "advantages": entry(advantages, normal(500), normal(500), normal(500) > -1),
    "echoed": entry(echoed, np.float32(0.7), normal(1000)),
    "heaped": forward(heaped, normal(16, 128)),
    "cable": entry(cable, 2 + 0.1 * normal(64), 0.3 * normal(64), normal(64)),
    "charted": entry(charted, normal(16, 16, 4)),
    "decoded": forward(decoded, 0.2 * normal(2, 32, 32), normal(8, 32), 4 + below(40, 8)),
    "remembered": entry(remembered, 0.2 * normal(3, 32, 32), normal(8, 48, 32), 4 + below(40, 8)),
    "attended until the end": entry(
        attended_until_the_end, 0.2 * normal(2, 32, 32), normal(32), np.int32(50)
    ),
    "marched": entry(
        marched, normal(32, 32, 32, 4), 0.1 * np.abs(normal(128, 3)), 0.5 + 0.1 * normal(128, 3)
    ),
}
