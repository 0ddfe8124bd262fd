"""Bodies, games, samplers and solvers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal


def particles(x: Array, v: Array) -> Any:
    """Some bodies that attract each other."""

    def step(state: Any, _: None) -> Any:
        x, v = state
        apart = x[None] - x[:, None]
        v = v + 0.01 * (apart / (jnp.sum(apart**2, -1, keepdims=True) + 0.1) ** 1.5).sum(1)
        return (x + 0.01 * v, v), None

    return lax.scan(step, (x, v), None, length=20)[0]


def fields(state: Array) -> Array:
    """Waves and what damps them, in one array; a step writes row after row."""

    def step(state: Array, _: None) -> Any:
        state = state.at[0].set(state[0] + 0.01 * jnp.roll(state[1], 1) * state[2])
        state = state.at[1].set(state[1] - 0.01 * jnp.roll(state[0], -1) * state[2])
        return state.at[2].set(state[2] + 0.001 * state[1]), None

    return lax.scan(step, state, None, length=50)[0]


def ages(rates: Array, survival: Array) -> Array:
    """A table of who lives each year: a step writes the newborn apart from those who grow older."""

    def step(year: Any, table: Array) -> Array:
        table = table.at[year, 1:].set(table[year - 1, :-1] * survival)
        return table.at[year, 0].set(rates[year] * jnp.sum(table[year - 1, 5:10]))

    first = jnp.zeros((len(rates), len(survival) + 1)).at[0].set(1.0)
    return lax.fori_loop(1, len(rates), step, first)


def games(policy: Array, states: Array) -> Array:
    """Rewards until each is over; exit-loop-early filled in those of the rest afterwards."""

    def play(state: Array) -> Array:
        def step(given: Any, _: None) -> Any:
            state, is_over = given
            state = jnp.where(is_over, state, state + 0.1 * jnp.tanh(policy @ state))
            is_over = is_over | (jnp.abs(state[0]) > 2)
            return (state, is_over), jnp.where(is_over, 0.0, 1 - state[1] ** 2)

        return jnp.sum(lax.scan(step, (state, False), None, length=100)[1])

    return jax.vmap(play)(states)


def guarded_steps(policy: Array, states: Array) -> Array:
    """The same with a `cond`, whose branch multiplies by the weights."""

    def play(state: Array) -> Array:
        def step(state: Array, _: None) -> Any:
            is_over = jnp.abs(state[0]) > 2
            onward = lambda s: s + 0.1 * jnp.tanh(policy @ s)  # noqa: E731
            return lax.cond(is_over, lambda s: s, onward, state), None

        return lax.scan(step, state, None, length=100)[0]

    return jax.vmap(play)(states)


def commanded(weights: Array, states: Array, seeds: Array) -> Array:
    """Robots that follow a command, which is drawn anew now and then."""

    def follow(state: Array, seed: Array) -> Array:
        def step(carried: Any, _: None) -> Any:
            x, command, age, seed = carried
            seed, drawn = jax.random.split(seed)
            new = jnp.tanh(weights @ jax.random.normal(drawn, x.shape))
            command = jnp.where(age > 50, new, command)
            age = jnp.where(age > 50, 0, age + 1)
            return (x + 0.05 * jnp.sin(command - x), command, age, seed), None

        begun = state, state, 0, jax.random.PRNGKey(seed)
        return lax.scan(step, begun, None, length=200)[0][0]

    return jax.vmap(follow)(states, seeds)


def infected(rates: Array, people: Array) -> Array:
    """The most that are ill at any age and place, of an epidemic whose states are all returned."""

    def step(state: Array, _: None) -> Any:
        ill = jax.nn.softmax(rates[1]) @ state[2]
        flow = 0.1 * jnp.stack([rates[0, 0, 0] * ill * state[0], 0.2 * state[1], 0.1 * state[2]])
        none = jnp.zeros((1, *ill.shape))
        state = state - jnp.concatenate([flow, none]) + jnp.concatenate([none, flow])
        return state, state

    states = lax.scan(step, people, None, length=200)[1]
    return jnp.max(states[:, 2], axis=(1, 2))


def runge_kutta(weights: Array, y: Array) -> Array:
    """Of fourth order, so many steps, all kept."""
    f = lambda y: jnp.tanh(y @ weights)  # noqa: E731

    def step(y: Array, _: None) -> Any:
        a = f(y)
        b = f(y + 0.05 * a)
        c = f(y + 0.05 * b)
        d = f(y + 0.1 * c)
        y = y + 0.1 / 6 * (a + 2 * b + 2 * c + d)
        return y, y

    return lax.scan(step, y, None, length=40)[1]


def chain(x: Array, seed: Array) -> Array:
    """Metropolis' walk."""
    density = lambda x: -jnp.sum(x**2) - jnp.sum(jnp.cos(3 * x))  # noqa: E731

    def step(state: Any, key: Array) -> Any:
        x, p = state
        new = x + 0.1 * jax.random.normal(key, x.shape)
        q = density(new)
        take = jnp.log(jax.random.uniform(key)) < q - p
        x, p = jnp.where(take, new, x), jnp.where(take, q, p)
        return (x, p), x

    keys = jax.random.split(jax.random.key(seed), 50)
    return lax.scan(step, (x, density(x)), keys)[1]


def hamiltonian(x: Array, rows: Array, seed: Array) -> Array:
    """Hamiltonian Monte Carlo, as it is taught: a step computes all that it needs."""
    density = lambda x: -jnp.sum(jax.nn.softplus(rows @ x)) - jnp.sum(x**2) / 2  # noqa: E731
    force = jax.grad(density)

    def leap(_: int, state: Any) -> Any:
        x, v = state
        v = v + 0.01 * force(x)
        x = x + 0.02 * v
        return x, v + 0.01 * force(x)

    def step(x: Array, key: Array) -> Any:
        v = jax.random.normal(key, x.shape)
        new, w = lax.fori_loop(0, 8, leap, (x, v))
        gain = density(new) - jnp.sum(w**2) / 2 - density(x) + jnp.sum(v**2) / 2
        x = jnp.where(jnp.log(jax.random.uniform(key)) < gain, new, x)
        return x, x

    return lax.scan(step, x, jax.random.split(jax.random.key(seed), 20))[1]


def resampled(x: Array, seed: Array, seen: Array) -> Array:
    """A particle filter."""

    def step(x: Array, given: Any) -> Any:
        key, y = given
        x = 0.9 * x + 0.3 * jax.random.normal(key, x.shape)
        index = jax.random.categorical(key, -((x - y) ** 2), shape=x.shape)
        return x[index], x.mean()

    keys = jax.random.split(jax.random.key(seed), len(seen))
    return lax.scan(step, x, (keys, seen))[1]


def conjugate_gradients(a: Array, b: Array) -> Array:
    """So many steps."""

    def step(_: int, state: Any) -> Any:
        x, r, p = state
        ap = a @ p
        alpha = jnp.vdot(r, r) / jnp.vdot(p, ap)
        x, new = x + alpha * p, r - alpha * ap
        return x, new, new + jnp.vdot(new, new) / jnp.vdot(r, r) * p

    return lax.fori_loop(0, 10, step, (jnp.zeros_like(b), b, b))[0]


def levelled(matrix: Array, x: Array) -> Array:
    """Descent until the gradient is small, which both the predicate and the step compute."""
    gradient = lambda x: jnp.tanh(matrix @ x) @ matrix  # noqa: E731
    far = lambda x: jnp.linalg.norm(gradient(x)) > 1e-3  # noqa: E731
    return lax.while_loop(far, lambda x: x - 0.3 * gradient(x), x)


def roots(x: Array) -> Array:
    """Newton's method, row by row until each is there."""

    def solve(a: Array) -> Array:
        step = lambda y: y - (y**3 - a) / (3 * y * y + 1e-3)  # noqa: E731
        return lax.while_loop(lambda y: jnp.abs(y**3 - a) > 1e-4 * (1 + a), step, 1 + a)

    return jax.vmap(solve)(x)


def clustered(points: Array, centres: Array) -> Array:
    """k-means."""

    def step(centres: Array, _: None) -> Any:
        nearest = jnp.argmin(jnp.sum((points[:, None] - centres) ** 2, -1), 1)
        mask = jax.nn.one_hot(nearest, len(centres))
        return (mask.T @ points) / (mask.sum(0)[:, None] + 1e-6), None

    return lax.scan(step, centres, None, length=10)[0]


def mandelbrot(c: Array) -> Array:
    """Steps until each point has left."""

    def step(state: Any, _: None) -> Any:
        z, n = state
        inside = jnp.abs(z) <= 2
        return (jnp.where(inside, z * z + c, z), n + inside), None

    return lax.scan(step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)), None, length=30)[0][1]


def descended(x: Array, weights: Array) -> Array:
    """A gradient step in each of a loop's: its gradient is of second order."""
    energy = lambda x: jnp.sum(jnp.tanh(x @ weights) ** 2)  # noqa: E731
    return lax.fori_loop(0, 10, lambda _, x: x - 0.1 * jax.grad(energy)(x), x)


def queued(orders: Array, rates: Array) -> Array:
    """Servers that are taken one after the other, the earliest first."""

    def step(free: Array, given: Any) -> Any:
        arrival, length = given
        at = jnp.argmin(free)
        start = jnp.maximum(free[at], arrival)
        return free.at[at].set(start + length), start - arrival

    return lax.scan(step, jnp.zeros(16), (jnp.cumsum(orders), rates))[1]


def remembered(x: Array, weights: Array) -> Array:
    """A memory of keys that is read as a whole and written row by row."""

    def step(state: Any, t: Array) -> Any:
        h, memory = state
        h = jnp.tanh(weights @ h + memory.T @ jax.nn.softmax(memory @ h))
        return (h, memory.at[t].set(h)), None

    (h, _), _ = lax.scan(step, (x, jnp.zeros((40, len(x)))), jnp.arange(40))
    return h


def history(x: Array, weights: Array) -> Array:
    """A sum over all that has been, step by step."""

    def step(ys: Array, t: Array) -> Any:
        past = jnp.where(jnp.arange(100) < t, weights[t - jnp.arange(100)], 0)
        return ys.at[t].set(x[t] - jnp.dot(past, ys)), None

    return lax.scan(step, jnp.zeros(100), jnp.arange(100))[0]


def acted(weights: Any, seed: int) -> Array:
    """An episode of a policy that draws its actions."""
    hidden, out = weights

    def step(state: Any, _: None) -> Any:
        x, key = state
        key, of_action, of_noise = jax.random.split(key, 3)
        scores = jnp.tanh(x @ hidden) @ out
        action = jax.random.categorical(of_action, scores)
        x = jnp.tanh(x + jnp.where(action > 1, 0.1, -0.1) * jnp.roll(x, 1))
        x = x + 0.1 * jax.random.normal(of_noise, x.shape)
        return (x, key), jax.nn.log_softmax(scores)[action] * x[0]

    return lax.scan(step, (jnp.ones(4), jax.random.key(seed)), length=200)[1]


def complex_points(n: int) -> Any:
    """Of a plane."""
    return (normal(n) + 1j * normal(n, seed=1)).astype("complex64")


def positive(n: int) -> Any:
    """A matrix with positive eigenvalues."""
    a = normal(n, n)
    return a @ a.T / n + 2 * np.eye(n, dtype=np.float32)


PROGRAMS: dict[str, Entry] = {
    "particles": entry(particles, normal(16, 3), normal(16, 3)),
    "fields": entry(fields, normal(3, 2000)),
    "ages": entry(ages, 0.1 * abs(normal(60)), abs(normal(199))),
    "games": entry(games, normal(16, 16), normal(32, 16)),
    "guarded steps": entry(guarded_steps, normal(16, 16), normal(32, 16)),
    "commanded": entry(commanded, 0.1 * normal(64, 64), normal(8, 64), below(99, 8)),
    "infected": entry(infected, 0.1 * abs(normal(2, 10, 10)), abs(normal(4, 10, 20))),
    "Runge-Kutta": entry(runge_kutta, 0.2 * normal(32, 32), normal(8, 32)),
    "chain": entry(chain, normal(8), 0),
    "acted": entry(acted, (normal(4, 32), 0.1 * normal(32, 4)), 0),
    "Hamiltonian": entry(hamiltonian, 0.1 * normal(16), normal(60, 16), 0),
    "resampled": entry(resampled, normal(64), 0, normal(30)),
    "conjugate gradients": entry(conjugate_gradients, positive(32), normal(32)),
    "levelled": forward(levelled, 0.3 * positive(256), normal(256)),
    "roots": forward(roots, abs(normal(64))),
    "clustered": entry(clustered, normal(100, 4), normal(5, 4)),
    "mandelbrot": forward(mandelbrot, complex_points(256)),
    "descended": entry(descended, normal(8, 16), 0.2 * normal(16, 16)),
    "queued": entry(queued, abs(normal(200)), abs(normal(200, seed=1))),
    "remembered by keys": entry(remembered, normal(32), 0.2 * normal(32, 32)),
    "history": entry(history, normal(100), 0.1 * normal(100)),
}
