"""Tables, sorting, graphs and searches, as they are in the books."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal


def spanning_tree(ends: Array, weights: Array) -> Any:
    """Kruskal's, with a table of parents whose paths are halved."""

    def find(parents: Array, node: Array) -> Any:
        def halve(state: Any) -> Any:
            parents, node = state
            above = parents[parents[node]]
            return parents.at[node].set(above), above

        return lax.while_loop(lambda s: s[0][s[1]] != s[1], halve, (parents, node))

    def join(parents: Array, edge: Array) -> Any:
        parents, a = find(parents, edge[0])
        parents, b = find(parents, edge[1])
        return parents.at[a].set(b), a != b

    return lax.scan(join, jnp.arange(200), ends[jnp.argsort(weights)])


def warped(x: Array, y: Array) -> Array:
    """Dynamic time warping, by rows."""

    def row(above: Array, costs: Array) -> Any:
        def cell(left: Array, given: Any) -> Any:
            up, corner, cost = given
            value = cost + jnp.minimum(jnp.minimum(up, corner), left)
            return value, value

        corner = jnp.concatenate([jnp.array([1e9]), above[:-1]])
        return lax.scan(cell, 1e9, (above, corner, costs))[1], None

    costs = (x[:, None] - y) ** 2
    return lax.scan(row, jnp.cumsum(costs[0]), costs[1:])[0]


def forgotten(strengths: Array, seen: Array, rate: Array) -> Any:
    """What is seen is known again, and all is forgotten a little."""

    def step(strengths: Array, item: Array) -> Any:
        return strengths.at[item].set(1.0) * rate, strengths[item]

    return lax.scan(step, strengths, seen)


def driven(curve: Array, x: Array, pushes: Array) -> Any:
    """Bodies on springs whose characteristic curve is a table, which a step reads between knots."""
    knots = jnp.arange(len(curve)) - len(curve) / 2

    def step(state: Any, push: Any) -> Any:
        x, v = state
        v = v + 0.1 * (push - jnp.interp(x, knots, curve) - 0.2 * v)
        x = x + 0.1 * v
        return (x, v), jnp.sum(x**2)

    return lax.scan(step, (x, jnp.zeros_like(x)), pushes)


def common_subsequence(x: Array, y: Array) -> Array:
    """Its length, by a table that is filled cell by cell."""
    n, m = len(x), len(y)

    def cell(k: Array, table: Array) -> Array:
        i, j = k // m + 1, k % m + 1
        longer = jnp.maximum(table[i - 1, j], table[i, j - 1])
        return table.at[i, j].set(jnp.where(x[i - 1] == y[j - 1], table[i - 1, j - 1] + 1, longer))

    return lax.fori_loop(0, n * m, cell, jnp.zeros((n + 1, m + 1), jnp.int32))[n, m]


def knapsack(values: Array, weights: Array) -> Array:
    """Item by item, over all capacities."""
    capacities = jnp.arange(500)

    def item(best: Array, given: Any) -> Any:
        value, weight = given
        with_it = jnp.where(capacities >= weight, best[capacities - weight] + value, -jnp.inf)
        return jnp.maximum(best, with_it), None

    return lax.scan(item, jnp.zeros(500), (values, weights))[0]


def bubble_sort(x: Array) -> Array:
    """Passes over neighbours, which are swapped in place."""
    n = len(x)

    def swap(j: Array, x: Array) -> Array:
        a, b = x[j], x[j + 1]
        return x.at[j].set(jnp.minimum(a, b)).at[j + 1].set(jnp.maximum(a, b))

    return lax.fori_loop(0, n, lambda _, x: lax.fori_loop(0, n - 1, swap, x), x)


def insertion_sort(x: Array) -> Array:
    """By a while loop that moves each element down."""

    def insert(i: Array, x: Array) -> Array:
        def swap(state: Any) -> Any:
            x, j = state
            a, b = x[j - 1], x[j]
            return x.at[j - 1].set(b).at[j].set(a), j - 1

        return lax.while_loop(lambda s: (s[1] > 0) & (s[0][s[1] - 1] > s[0][s[1]]), swap, (x, i))[0]

    return lax.fori_loop(1, len(x), insert, x)


def prefix_sums(x: Array) -> Array:
    """In place."""
    return lax.fori_loop(1, len(x), lambda i, x: x.at[i].add(x[i - 1]), x)


def sieve(limits: Array) -> Array:
    """Of Eratosthenes."""
    numbers = jnp.arange(1000)

    def strike(i: Array, primes: Array) -> Array:
        multiples = (numbers % i == 0) & (numbers > i)
        return jnp.where(primes[i] & multiples, False, primes)

    return lax.fori_loop(2, 32, strike, numbers > 1)[limits]


def shortest_paths(lengths: Array) -> Array:
    """Floyd and Warshall's."""

    def over(k: Array, d: Array) -> Array:
        return jnp.minimum(d, d[:, k][:, None] + d[k])

    return lax.fori_loop(0, len(lengths), over, lengths)


def relaxed_edges(lengths: Array, ends: Array) -> Array:
    """Bellman and Ford's: edge by edge."""

    def edge(distance: Array, given: Any) -> Any:
        (a, b), length = given
        return distance.at[b].min(distance[a] + length), None

    start = jnp.full(100, 1e9).at[0].set(0)
    scan = lambda _, d: lax.scan(edge, d, (ends, lengths))[0]  # noqa: E731
    return lax.fori_loop(0, 5, scan, start)


def lowered(lengths: Array, ends: Array) -> Array:
    """Distances that a stream of edges lowers; they start with a number whose type is weak."""

    def edge(distance: Array, given: Any) -> Any:
        (a, b), length = given
        new = distance[a] + length
        return jnp.where(new < distance[b], distance.at[b].set(new), distance), new

    distance, tried = lax.scan(edge, jnp.full(2000, 1e3).at[0].set(0), (ends, lengths))
    return jnp.concatenate([distance, tried])


def evaluated(ops: Array, numbers: Array, depth: int = 256) -> Array:
    """Programs of a machine with a stack, one a row: it adds, multiplies or pushes."""

    def one(ops: Array, numbers: Array) -> Array:
        def step(state: Any, given: Any) -> Any:
            stack, top = state
            op, number = given
            a, b = stack[top - 1], stack[top - 2]

            def replace(value: Array) -> Any:
                return stack.at[top - 2].set(value), jnp.maximum(top - 1, 2)

            branches = [
                lambda: replace(a + b),
                lambda: replace(jnp.tanh(a * b)),
                lambda: (stack.at[top].set(number), top + 1),
            ]
            stack, top = lax.switch(op, branches)
            return (stack, top), stack[top - 1]

        return lax.scan(step, (jnp.zeros(depth), 2), (ops, numbers))[1]

    return jax.vmap(one)(ops, numbers)


def ranked(links: Array) -> Array:
    """Pages by a power iteration that stops."""

    def step(state: Any) -> Any:
        x, _ = state
        y = 0.15 / len(x) + 0.85 * (links @ x)
        return y, jnp.max(jnp.abs(y - x))

    start = jnp.full(len(links), 1 / len(links)), 1.0
    return lax.while_loop(lambda s: s[1] > 1e-6, step, start)[0]


def strongest(a: Array) -> Array:
    """The greatest eigenvalue, by a power iteration that a mask of floats stops."""

    def step(state: Any, _: Any) -> Any:
        x, active = state
        y = a @ x
        change = y / jnp.sqrt(jnp.sum(y * y)) - x
        is_far = jnp.sum(change * change) > 1e-6
        return (x + active * change, active * is_far.astype(x.dtype)), None

    start = jnp.full(len(a), len(a) ** -0.5), jnp.float32(1)
    x = lax.scan(step, start, None, length=400)[0][0]
    return x @ a @ x


def histogram(values: Array, bins: Array) -> Array:
    """Counted one by one."""
    return lax.fori_loop(0, len(values), lambda i, h: h.at[bins[i]].add(values[i]), jnp.zeros(32))


def eliminated(a: Array) -> Array:
    """Gauss' elimination without pivots, a column at a time."""

    def column(k: Array, a: Array) -> Array:
        factor = jnp.where(jnp.arange(len(a)) > k, a[:, k] / a[k, k], 0)
        return a - factor[:, None] * a[k]

    return lax.fori_loop(0, len(a) - 1, column, a)


def swapped(x: Array, key: Array) -> Array:
    """A shuffle by swaps."""

    def swap(i: Array, x: Array) -> Array:
        j = jax.random.randint(jax.random.fold_in(jax.random.key(key), i), (), 0, len(x))
        return x.at[i].set(x[j]).at[j].set(x[i])

    return lax.fori_loop(0, len(x), swap, x)


def reservoir(rows: Array, at: Array) -> Array:
    """A sample of as many rows as fit: row `i` takes the place `at[i]`, if there is one."""
    size = 200

    def step(kept: Array, x: Any) -> Any:
        i, row, place = x
        later = jnp.where(place < size, kept.at[place].set(row), kept)
        return jnp.where(i < size, kept.at[i].set(row), later), None

    start = jnp.zeros((size, rows.shape[1]))
    return lax.scan(step, start, (jnp.arange(len(rows)), rows, at))[0]


def calculator(literals: Array, ops: Array) -> Array:
    """Reverse Polish notation, on a stack."""

    def push(stack: Array, top: Array, x: Array) -> Any:
        return stack.at[top].set(x), top + 1

    def added(stack: Array, top: Array, _: Array) -> Any:
        return stack.at[top - 2].set(stack[top - 1] + stack[top - 2]), top - 1

    def multiplied(stack: Array, top: Array, _: Array) -> Any:
        return stack.at[top - 2].set(stack[top - 1] * stack[top - 2]), top - 1

    def step(state: Any, x: Any) -> Any:
        stack, top = state
        literal, op = x
        number = jnp.where(top < 2, 0, op)
        stack, top = lax.switch(number, [push, added, multiplied], stack, top, literal)
        return (stack, top), stack[top - 1]

    return lax.scan(step, (jnp.zeros(len(literals)), 0), (literals, ops))[1]


def greedy(values: Array, places: Array) -> Array:
    """A policy for all states, of which each step asks one, and values that learn."""

    def step(values: Array, place: Array) -> Any:
        action = jnp.argmax(values * jnp.float32(0.5), axis=1)[place]
        return values.at[place, action].add(-0.1), action

    return lax.scan(step, values, places)[1]


def hashed_corners(tables: Array, weights: Array, places: Array, wanted: Array) -> Array:
    """Tables of several resolutions, read at hashes of the corners around each place, and trained
    by the gradient (instant neural graphics primitives).
    """
    sizes = 2.0 ** jnp.arange(3, 3 + len(tables))

    def features(table: Array, size: Array, place: Array) -> Array:
        corner = jnp.floor(place * size)
        part, (i, j) = place * size - corner, corner.astype(jnp.uint32)
        total = jnp.zeros(table.shape[1])
        for di, dj in ((0, 0), (0, 1), (1, 0), (1, 1)):
            share = jnp.abs(1 - di - part[0]) * jnp.abs(1 - dj - part[1])
            row = ((i + di) ^ ((j + dj) * jnp.uint32(2654435761))) % len(table)
            total = total + table[row] * share
        return total

    def loss(tables: Array, places: Array, wanted: Array) -> Array:
        each = jax.vmap(features, (0, 0, None))
        found = jax.vmap(lambda place: each(tables, sizes, place).reshape(-1))(places)
        return jnp.mean((found @ weights - wanted) ** 2)

    def step(tables: Array, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(tables, *batch)
        return tables - 0.1 * gradient, value

    return lax.scan(step, tables, (places, wanted))[0]


def followed(grids: Array, weights: Array, place: Array, pushes: Array) -> Array:
    """A path through grids of several levels: each step reads four corners of each level."""

    def step(place: Array, push: Array) -> Any:
        found = []
        for level in range(len(grids)):
            grid, where = grids[level], place * 2.0 ** (level + 3)
            rows = (jnp.abs(jnp.floor(where)).astype(jnp.int32) + jnp.arange(4) * 577) % len(grid)
            found.append((where - jnp.floor(where)) * jnp.mean(grid[rows], axis=0))
        place = place + 0.01 * (jnp.tanh(jnp.concatenate(found) @ weights) + push)
        return place, place

    return lax.scan(step, place, pushes)[1]


def rivers(rates: Array, jumps: Array, rain: Array) -> Array:
    """Reaches in topological order, each of which flows into one further down, day by day."""
    below = jnp.minimum(jnp.arange(len(jumps)) + 1 + jumps, len(jumps))

    def day(stored: Array, rain: Array) -> Any:
        def reach(flow: Array, given: Any) -> Any:
            i, rate, stored, rain = given
            water = stored + flow[i] + rain
            out = rate * water
            return flow.at[below[i]].add(out), water - out

        given = (jnp.arange(len(rates)), jax.nn.sigmoid(rates), stored, rain)
        flow, stored = lax.scan(reach, jnp.zeros(len(rates) + 1), given)
        return stored, flow[-1]

    return lax.scan(day, jnp.zeros(len(rates)), rain)[1]


def learned(values: Array, states: Array, rewards: Array) -> Any:
    """Values and counts of states, read and written by masks, as where no array is indexed."""

    def step(table: Any, given: Any) -> Any:
        (values, counts), (state, reward) = table, given
        here = jnp.arange(len(values)) == state
        counts = counts + jax.nn.one_hot(state, len(values))
        old, count = (jnp.sum(jnp.where(here, each, 0.0)) for each in (values, counts))
        error = reward - old
        return (values + jnp.where(here, error / count, 0.0), counts), error

    return lax.scan(step, (values, jnp.zeros(len(values))), (states, rewards))


def codebooks(books: Array, xs: Array) -> Array:
    """Frames that are quantised in stages, each of which may be left out."""

    def frame(h: Array, x: Array) -> Any:
        def stage(rest: Array, given: Any) -> Any:
            book, used = given

            def look_up(rest: Array) -> Array:
                distances = jnp.sum(book**2, axis=1) - 2 * book @ rest
                return rest - jnp.tanh(book[jnp.argmin(lax.stop_gradient(distances))])

            return lax.cond(used, look_up, lambda rest: rest, rest), None

        h, _ = lax.scan(stage, jnp.tanh(x + h), (books, jnp.arange(len(books)) != 2))
        return h, h

    return lax.scan(frame, jnp.zeros(xs.shape[1]), xs)[1]


def grouped(values: Array, boards: Array) -> Array:
    """Sums of the numbers of each group of stones on a board, as Go counts what is free."""

    def move(total: Array, board: Array) -> Any:
        group = lambda x: jnp.sum(jnp.where(board == x, values, 0.0))  # noqa: E731
        found = jax.vmap(group)(jnp.arange(len(values)))
        return total + found[board[0]], found

    return lax.scan(move, jnp.zeros(()), boards)[1]


def turned_over(board: Array, moves: Array) -> Array:
    """Lines of stones that are turned over if the last of them fits, as in Othello."""

    def move(board: Array, place: Array) -> Any:
        def direction(i: Array, turned: Array) -> Array:
            away = jnp.array([1, -1, 8, -8, 7, -7, 9, -9])[i]
            line = jnp.roll(jnp.arange(64) == place, away) & (board < 0)
            for _ in range(5):
                line |= jnp.roll(line, away) & (board < 0)
            ends = jnp.any(jnp.roll(line, away) & (board > 0))
            return lax.cond(ends, lambda: turned | line, lambda: turned)

        turned = lax.fori_loop(0, 8, direction, jnp.zeros(64, bool))
        return -jnp.where(turned, 1, board), jnp.sum(turned)

    return lax.scan(move, board, moves)[1]


def endogenous_grid(incomes: Array, chances: Array, rate: Array) -> Any:
    """What to consume of savings, found backwards: each step looks its last answers up."""
    savings = jnp.linspace(0.0, 16.0, 50)

    def step(given: Any, _: None) -> Any:
        answer = jax.vmap(jnp.interp, (1, 1, 1), 1)
        then = answer(rate * savings[:, None] + incomes, *given)
        consumed = (0.99 * rate * (then**-1.5) @ chances.T) ** (-1 / 1.5)
        consumed = jnp.where(savings[:, None] > 0, consumed, 0.0)
        return (savings[:, None] + consumed, consumed), None

    first = jnp.broadcast_to(savings[:, None] + 0.1, (50, len(incomes)))
    return lax.scan(step, (first, first), None, length=30)[0]


def neighbours(rows: Array, values: Array, queries: Array) -> Array:
    """A mean over the nearest rows, weighted by their distances, all of which are sorted."""
    distances = ((queries[:, None] - rows) ** 2).sum(-1)
    nearest = jnp.argsort(distances, axis=1)[:, :8]
    weights = 1 / (0.1 + jnp.take_along_axis(distances, nearest, axis=1))
    return (weights * values[nearest]).sum(1) / weights.sum(1)


def leverages(rows: Array, weights: Array) -> Array:
    """Of the rows of a regression with weights: the diagonal of its hat matrix."""
    weighted = rows.T @ jnp.diag(jax.nn.softplus(weights)) @ rows
    return jnp.diag(rows @ jnp.linalg.inv(weighted + jnp.eye(rows.shape[1])) @ rows.T)


def labelled(weights: Array, rows: Array, labels: Array) -> Array:
    """The scores of the labels alone, of a product for all."""
    return jnp.take_along_axis(rows @ weights, labels[:, None], axis=1)[:, 0]


PROGRAMS: dict[str, Entry] = {
    "leverages": entry(leverages, normal(400, 16), normal(400)),
    "labelled": entry(labelled, normal(32, 1000), normal(200, 32), below(1000, 200)),
    "greedy": forward(greedy, normal(200, 16), below(200, 100)),
    "spanning tree": forward(spanning_tree, below(200, 800, 2), normal(800)),
    "neighbours": entry(neighbours, normal(300, 3), normal(300), normal(20, 3, seed=1)),
    "warped": entry(warped, normal(40), normal(40, seed=1)),
    "forgotten": entry(forgotten, normal(2000), below(2000, 300), abs(normal())),
    "driven": entry(driven, normal(4096), normal(8), normal(200)),
    "common subsequence": forward(common_subsequence, below(4, 40), below(4, 50, seed=1)),
    "knapsack": entry(knapsack, normal(40), below(60, 40) + 1),
    "bubble sort": entry(bubble_sort, normal(400)),
    "insertion sort": forward(insertion_sort, normal(100)),
    "prefix sums": entry(prefix_sums, normal(1000)),
    "sieve": forward(sieve, below(1000, 10)),
    "shortest paths": entry(shortest_paths, abs(normal(40, 40))),
    "relaxed edges": entry(relaxed_edges, abs(normal(400)), below(100, 400, 2)),
    "lowered": entry(lowered, abs(normal(500)), below(2000, 500, 2)),
    "evaluated": forward(evaluated, below(3, 32, 100), normal(32, 100)),
    "evaluated on a low stack": forward(
        partial(evaluated, depth=8), below(3, 32, 100), normal(32, 100)
    ),
    "ranked": forward(ranked, abs(normal(64, 64)) / 64),
    "strongest": entry(strongest, abs(normal(64, 64)) / 64),
    "histogram": entry(histogram, normal(500), below(32, 500)),
    "eliminated by columns": entry(eliminated, normal(32, 32) + 10 * normal(1, 1)),
    "hashed corners": forward(
        hashed_corners, normal(4, 4096, 2), normal(8), abs(normal(20, 64, 2)), normal(20, 64)
    ),
    "followed": entry(followed, normal(4, 4096, 2), normal(8), normal(), normal(200)),
    "rivers": entry(rivers, normal(100), below(5, 100), normal(30, 100)),
    "swapped": entry(swapped, normal(200), 0),
    "reservoir": entry(reservoir, normal(1000, 16), below(1000, 1000)),
    "learned": entry(learned, normal(1000), below(1000, 200), normal(200)),
    "calculator": entry(calculator, normal(500), below(3, 500)),
    "codebooks": entry(codebooks, normal(4, 256, 16), normal(40, 16)),
    "grouped": entry(grouped, normal(81), below(81, 40, 81)),
    "turned over": forward(turned_over, below(3, 64) - 1, below(64, 30)),
    "endogenous grid": entry(
        endogenous_grid, abs(normal(7)) + 0.5, abs(normal(7, 7)) / 7, abs(normal()) + 1
    ),
}
