"""Recurrent networks, filters, and what decodes words one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal

WORDS, WIDTH, LENGTH = 64, 32, 48
HEADS = normal(3, 2, WIDTH, WIDTH)
"""Queries, keys and values of two layers."""
ENDED = np.where(np.arange(40) == 9, 1, np.where(np.arange(40) < 9, 2 + below(14, 2, 8, 40), 0))
"""Characters that end, padded."""


def attended(heads: Array, x: Array, caches: Array, t: Array) -> tuple[Array, Array]:
    """A step of attention over caches of earlier steps, layer by layer."""
    for layer in range(2):
        query, key, value = (x @ each[layer] for each in heads)
        caches = caches.at[0, layer, :, t].set(key).at[1, layer, :, t].set(value)
        scores = jnp.einsum("bd,btd->bt", query, caches[0, layer])
        scores = jnp.where(jnp.arange(LENGTH) <= t, scores, -jnp.inf)
        x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), caches[1, layer])
    return x, caches


def sampling(heads: Array, table: Array, seed: Array) -> Any:
    """With a cache; hoist-invariant-residuals kept the weights of each layer by themselves."""

    def step(t: Array, state: Any) -> Any:
        tokens, caches = state
        x, caches = attended(heads, table[tokens[:, t]], caches, t)
        key = jax.random.fold_in(jax.random.key(seed), t)
        token = jax.random.categorical(key, x @ table.T)
        return tokens.at[:, t + 1].set(token), caches

    caches = jnp.zeros((2, 2, 4, LENGTH, WIDTH))
    return lax.fori_loop(0, LENGTH - 1, step, (jnp.zeros((4, LENGTH), jnp.int32), caches))


def beam_search(heads: Array, table: Array) -> Any:
    """The same, of the best of four beams."""

    def step(t: Array, state: Any) -> Any:
        tokens, scores, caches = state
        x, caches = attended(heads, table[tokens[:, t]], caches, t)
        total = scores[:, None] + jax.nn.log_softmax(x @ table.T)
        scores, best = lax.top_k(total.reshape(-1), 4)
        beams, token = best // WORDS, best % WORDS
        return tokens[beams].at[:, t + 1].set(token), scores, caches[:, :, beams]

    caches = jnp.zeros((2, 2, 4, LENGTH, WIDTH))
    start = jnp.zeros((4, LENGTH), jnp.int32), jnp.arange(4.0), caches
    return lax.fori_loop(0, LENGTH - 1, step, start)


def scanned_layers(heads: Array, xs: Array) -> Array:
    """A decoder as `flax.linen.scan` makes it: each layer has a cache and an index of its own."""

    def step(caches: Any, x: Array) -> Any:
        def layer(x: Array, inputs: Any) -> Any:
            (query, key, value), (keys, values, t) = inputs
            keys = lax.dynamic_update_slice(keys, (x @ key)[:, None], (0, t, 0))
            values = lax.dynamic_update_slice(values, (x @ value)[:, None], (0, t, 0))
            scores = jnp.einsum("bd,btd->bt", x @ query, keys)
            scores = jnp.where(jnp.arange(LENGTH) <= t, scores, -jnp.inf)
            x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values)
            return x, (keys, values, t + 1)

        x, caches = lax.scan(layer, x, (heads, caches))
        return caches, x

    empty = jnp.zeros((2, 4, LENGTH, WIDTH))
    return lax.scan(step, (empty, empty, jnp.zeros(2, jnp.int32)), xs)[1]


def recurrent(weights: Array, xs: Array) -> Array:
    """An LSTM."""

    def cell(state: Any, x: Array) -> Any:
        h, c = state
        i, f, g, o = jnp.split(jnp.concatenate([x, h], 1) @ weights, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((xs.shape[1], weights.shape[1] // 4))
    return lax.scan(cell, (start, start), xs)[1]


def deep_recurrent(weights: Array, xs: Array) -> Array:
    """Layers above each other in each step, their weights in one array."""

    def step(states: Any, x: Array) -> Any:
        new = []
        for layer, h in enumerate(states):
            x = jnp.tanh(x @ weights[layer] + h)
            new.append(x)
        return tuple(new), x

    return lax.scan(step, (jnp.zeros_like(xs[0]),) * len(weights), xs)[1]


def clockwork(weights: Array, xs: Array) -> Array:
    """A fast state, and a slow one that changes in every eighth step."""

    def step(state: Any, given: Any) -> Any:
        (fast, slow), (t, x) = state, given
        change = lambda: jnp.tanh(slow @ weights[0] + fast @ weights[1])  # noqa: E731
        slow = lax.cond(t % 8 == 0, change, lambda: slow)
        fast = jnp.tanh(fast @ weights[2] + slow @ weights[3] + x)
        return (fast, slow), fast

    zeros = jnp.zeros_like(xs[0])
    return lax.scan(step, (zeros, zeros), (jnp.arange(len(xs)), xs))[1]


def gated(weights: Array, xs: Array, lengths: Array) -> Array:
    """A gated unit over sequences of several lengths, their ends masked."""

    def cell(h: Array, given: Any) -> Any:
        t, x = given
        z, r = jnp.split(jax.nn.sigmoid(x @ weights[:, :64] + h @ weights[:, 64:128]), 2, 1)
        new = (1 - z) * h + z * jnp.tanh(x @ weights[:, 128:] + r * h)
        return jnp.where((t < lengths)[:, None], new, h), None

    start = jnp.zeros((xs.shape[1], 32))
    return lax.scan(cell, start, (jnp.arange(len(xs)), xs))[0]


def hidden_states(transitions: Array, emissions: Array, seen: Array) -> Array:
    """The likelihood of a sequence."""

    def step(state: Array, word: Array) -> Any:
        state = jax.nn.logsumexp(state[:, None] + transitions, axis=0) + emissions[:, word]
        return state, None

    return lax.scan(step, jnp.zeros(len(transitions)), seen)[0]


def viterbi(transitions: Array, emissions: Array, seen: Array) -> Array:
    """The likeliest states, walked back."""

    def step(state: Array, word: Array) -> Any:
        scores = state[:, None] + transitions
        return jnp.max(scores, 0) + emissions[:, word], jnp.argmax(scores, 0)

    last, back = lax.scan(step, jnp.zeros(len(transitions)), seen)

    def walk(state: Array, row: Array) -> Any:
        return row[state], state

    return lax.scan(walk, jnp.argmax(last), back, reverse=True)[1]


def aligned(scores: Array, labels: Array) -> Array:
    """The likelihood of labels with blanks between them, however they are aligned (CTC)."""
    scores = jax.nn.log_softmax(scores)
    marks = jnp.zeros(2 * len(labels) + 1, jnp.int32).at[1::2].set(labels)
    skips = jnp.concatenate([jnp.zeros(2, bool), (marks[2:] != marks[:-2]) & (marks[2:] != 0)])
    never = jnp.full(2, -1e30)
    start = jnp.full((len(scores), len(marks)), -1e30).at[0, :2].set(scores[0, marks[:2]])

    def step(t: Array, table: Array) -> Array:
        row = table[t - 1]
        after = jnp.concatenate([never[:1], row[:-1]])
        skipped = jnp.where(skips, jnp.concatenate([never, row[:-2]]), -1e30)
        ways = jax.nn.logsumexp(jnp.stack([row, after, skipped]), axis=0)
        return table.at[t].set(ways + scores[t, marks])

    table = lax.fori_loop(1, len(scores), step, start)
    return jnp.logaddexp(table[-1, -1], table[-1, -2])


def kalman(dynamics: Array, seen: Array) -> Any:
    """A filter of a linear system."""
    eye = jnp.eye(len(dynamics))

    def step(state: Any, z: Array) -> Any:
        x, p = state
        x, p = dynamics @ x, dynamics @ p @ dynamics.T + 0.1 * eye
        gain = jnp.linalg.solve(p + eye, p).T
        return (x + gain @ (z - x), p - gain @ p), x

    return lax.scan(step, (jnp.zeros(len(dynamics)), eye), seen)[1]


def delayed(x: Array, gain: Array) -> Array:
    """An echo by a ring buffer."""

    def step(state: Any, x: Array) -> Any:
        ring, at = state
        y = x + gain * ring[at]
        return (ring.at[at].set(y), (at + 1) % 64), y

    return lax.scan(step, (jnp.zeros((64, 4)), 0), x)[1]


def filtered(xs: Array, taps: Array) -> Array:
    """An infinite impulse response: some last outputs are shifted on."""

    def step(last: Array, x: Array) -> Any:
        y = x + jnp.dot(taps, last)
        return jnp.concatenate([y[None], last[:-1]]), y

    return lax.scan(step, jnp.zeros(len(taps)), xs)[1]


def autoregressive(xs: Array, taps: Array) -> Array:
    """The same, read from the output itself."""

    def step(t: Array, ys: Array) -> Array:
        return ys.at[t].set(xs[t] + jnp.dot(taps, lax.dynamic_slice(ys, (t - 8,), (8,))))

    return lax.fori_loop(8, len(xs), step, jnp.zeros_like(xs))


def running_mean(xs: Array) -> Any:
    """Welford's mean and variance, of which all are kept."""

    def step(state: Any, x: Array) -> Any:
        n, mean, m2 = state
        n = n + 1
        delta = x - mean
        mean = mean + delta / n
        m2 = m2 + delta * (x - mean)
        return (n, mean, m2), (mean, m2 / n)

    zeros = jnp.zeros(xs.shape[1:])
    return lax.scan(step, (0.0, zeros, zeros), xs)[1]


def classified(weights: Any, xs: Array) -> Array:
    """A recurrent layer that returns the outputs of all steps, batch first; the last one counts."""
    w, head = weights

    def step(h: Array, x: Array) -> Any:
        h = jnp.tanh(h @ w + x)
        return h, jnp.tanh(h @ head)

    outputs = lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]
    return jnp.swapaxes(outputs, 0, 1)[:, -1]


def answered(weights: Any, questions: Array, answers: Array, lengths: Array) -> Array:
    """How well a network tells answers to questions, of characters; the first one, 1, ends both."""

    def cell(w: Array, state: Any, x: Array) -> Any:
        c, h = state
        i, g, f, o = jnp.split(jnp.concatenate([x, h], 1) @ w, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return c, jax.nn.sigmoid(o) * jnp.tanh(c)

    def read(carry: Any, x: Array) -> Any:
        state, is_over = carry
        new = cell(weights["read"], state, x)
        state = jax.tree.map(lambda a, b: jnp.where(is_over[:, None], a, b), state, new)
        return (state, is_over | (x[:, 1] > 0)), None

    def tell(state: Any, x: Array) -> Any:
        state = cell(weights["tell"], state, x)
        return state, jax.nn.log_softmax(state[1] @ weights["out"])

    characters = weights["out"].shape[1]
    asked, told = (jnp.swapaxes(jax.nn.one_hot(x, characters), 0, 1) for x in (questions, answers))
    zeros = jnp.zeros((len(questions), len(weights["out"])))
    (state, _), _ = lax.scan(read, ((zeros, zeros), jnp.zeros(len(questions), bool)), asked)
    _, logits = lax.scan(tell, state, told[:-1])
    mask = jnp.arange(len(told) - 1)[:, None] < lengths - 1
    return -jnp.sum(jnp.where(mask, jnp.sum(logits * told[1:], 2), 0.0)) / len(questions)


def aligned_locally(scores: Array, lengths: Array, gap: Array) -> Array:
    """How well two proteins fit, smoothly; rows of scores are diagonals, padded after lengths."""
    n, m = scores.shape
    i, j = jnp.indices((n, m))
    is_inside = (i < lengths[0]) & (j < lengths[1])
    nothing = jnp.full((n + m - 1, n), -1e9)
    diagonals = nothing.at[i + j, i].set(jnp.where(is_inside, scores, -1e9))

    def step(before: Any, score: Array) -> Any:
        far, near = before
        moved = [jnp.pad(x[:-1], (1, 0), constant_values=-1e9) for x in (far, near)]
        ways = jnp.stack([moved[0] + score, moved[1] + gap, near + gap, score])
        fit = jnp.maximum(jax.nn.logsumexp(ways, axis=0), -1e9)
        return (near, fit), fit

    _, fits = lax.scan(step, (nothing[0], nothing[0]), diagonals)
    return jax.nn.logsumexp(jnp.where(is_inside, fits[i + j, i], -1e9))


def translated(weights: Any, source: Array, targets: Array) -> Array:
    """A decoder with additive attention: its state beside each position of the source."""

    def step(state: Array, target: Array) -> Any:
        beside = jnp.repeat(state[:, None], source.shape[1], axis=1)
        score = jnp.tanh(jnp.concatenate([beside, source], -1) @ weights["both"]) @ weights["one"]
        context = jnp.einsum("bs,bsd->bd", jax.nn.softmax(score), source)
        state = jnp.tanh(jnp.concatenate([target, context, state], -1) @ weights["next"])
        return state, state

    return lax.scan(step, jnp.zeros((len(source), WIDTH)), targets)[1]


def windowed(weights: Array, signal: Array) -> Array:
    """A recurrent layer over windows of several channels, each in one row."""

    def step(state: Array, start: Array) -> Any:
        window = lax.dynamic_slice(signal, (start, 0), (16, signal.shape[1]))
        state = jnp.tanh(weights @ window.reshape(-1) + state)
        return state, state

    return lax.scan(step, jnp.zeros(len(weights)), 2 * jnp.arange(100))[1]


def echoed(weights: Array, signal: Array) -> Array:
    """A layer over what a register held some steps before (next-generation reservoirs)."""

    def step(register: Array, row: Array) -> Any:
        register = jnp.roll(register, 1, axis=0).at[0].set(row)
        features = register[::4].reshape(-1)
        return register, jnp.tanh(weights @ features)

    return lax.scan(step, jnp.zeros((64, signal.shape[1])), signal)[1]


def sampled_anew(heads: dict[str, Array], words: Array, first: Array) -> Any:
    """A layer of attention that computes all words so far in each step."""
    past = jnp.tril(jnp.ones((40, 40), bool))

    def step(text: Array, at: Array) -> Any:
        x = words[text]
        scores = jnp.where(past, (x @ heads["query"]) @ (x @ heads["key"]).T, -1e9)
        x = x + jax.nn.softmax(scores) @ (x @ heads["value"])
        scores = (x @ words.T)[at]
        return text.at[at + 1].set(jnp.argmax(scores)), jnp.max(scores)

    return lax.scan(step, jnp.full(40, first), jnp.arange(39))


PROGRAMS: dict[str, Entry] = {
    "windows in one row": entry(windowed, 0.1 * normal(16, 128), normal(220, 8)),
    "heard again": entry(echoed, 0.1 * normal(8, 128), normal(200, 8)),
    "sampled anew": forward(
        sampled_anew,
        {
            name: 0.2 * normal(WIDTH, WIDTH, seed=i)
            for i, name in enumerate(("query", "key", "value"))
        },
        normal(WORDS, WIDTH),
        3,
    ),
    "sampling": forward(sampling, HEADS, normal(WORDS, WIDTH), 0),
    "beam search": forward(beam_search, HEADS, normal(WORDS, WIDTH)),
    "scanned layers": entry(
        scanned_layers, 0.1 * HEADS.swapaxes(0, 1), 0.1 * normal(LENGTH, 4, WIDTH)
    ),
    "recurrent": entry(recurrent, normal(48, 64), normal(20, 8, 32)),
    "deep recurrent": entry(deep_recurrent, 0.1 * normal(3, 64, 64), normal(100, 8, 64)),
    "clockwork": entry(clockwork, 0.2 * normal(4, 32, 32), normal(80, 8, 32)),
    "gated": entry(gated, normal(32, 160), normal(20, 8, 32), below(20, 8)),
    "hidden states": entry(hidden_states, normal(16, 16), normal(16, 8), below(8, 50)),
    "viterbi": forward(viterbi, normal(16, 16), normal(16, 8), below(8, 50)),
    "aligned": entry(aligned, normal(100, 20), below(19, 15) + 1),
    "kalman": entry(kalman, 0.2 * normal(8, 8), normal(50, 8)),
    "delayed": entry(delayed, normal(100, 4), 0.5),
    "filtered in a register": entry(filtered, normal(500), 0.1 * normal(8)),
    "autoregressive": entry(autoregressive, normal(500), 0.1 * normal(8)),
    "classified": entry(
        classified, (0.2 * normal(32, 32), normal(32, 64, seed=1)), normal(60, 8, 32)
    ),
    "answered": entry(
        answered,
        {"read": 0.2 * normal(56, 160), "tell": 0.2 * normal(56, 160), "out": normal(40, 16)},
        ENDED[0],
        ENDED[1],
        below(5, 8) + 4,
    ),
    "aligned locally": entry(aligned_locally, normal(50, 40), np.array([21, 18]), np.float32(-1)),
    "translated": entry(
        translated,
        {"both": 0.1 * normal(64, 32), "one": normal(32), "next": 0.1 * normal(96, 32)},
        normal(8, 40, WIDTH),
        normal(20, 8, WIDTH),
    ),
    "running mean": entry(running_mean, normal(200, 16)),
}
