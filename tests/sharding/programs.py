"""Programs whose arrays are divided over 8 devices, each with its arguments where they belong."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, TIME, WIDTH, LAYERS = 8, 4, 16, 3


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


def put(x, on, *spec):
    """An array divided over a mesh."""
    return jax.device_put(np.asarray(x), NamedSharding(on, P(*spec)))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 4


# ------------------------------------------------------------------ transformers


def transformer(weights, x):
    """A loss of blocks of attention and a hidden layer, one loop over the layers."""

    def block(h, w):
        scores = jnp.einsum("btd,bsd->bts", h @ w["query"], h @ w["key"])
        h = h + jax.nn.softmax(scores) @ h @ w["out"]
        return h + jax.nn.gelu(h @ w["up"]) @ w["down"], None

    return jnp.mean(lax.scan(block, x, weights)[0] ** 2)


def weights(on, specs):
    """Stacked weights of all layers, divided as `specs` says of each."""
    shapes = dict.fromkeys(("query", "key", "out"), (LAYERS, WIDTH, WIDTH))
    shapes |= {"up": (LAYERS, WIDTH, 4 * WIDTH), "down": (LAYERS, 4 * WIDTH, WIDTH)}
    return {k: put(numbers(*n, seed=len(k)), on, None, *specs(k)) for k, n in shapes.items()}


def fsdp(on):
    """Weights and batch are divided over all devices."""
    every = ("data", "model")
    return weights(on, lambda _: (every,)), put(numbers(BATCH, TIME, WIDTH), on, every)


def tensor_parallel(on):
    """Columns of the first, rows of the second of two matrices; the batch over the other axis."""
    rows, columns = ("model",), (None, "model")
    made = weights(on, lambda k: rows if k in ("out", "down") else columns)
    return made, put(numbers(BATCH, TIME, WIDTH), on, "data")


# ------------------------------------------------------------------ loops


def ragged(w, xs, lengths):
    """Sequences of different lengths; a step changes the rows that go on."""

    def step(h, t):
        new = jnp.tanh(h @ w + xs[:, t])
        return jnp.where((t < lengths)[:, None], new, h), None

    return lax.scan(step, jnp.zeros_like(xs[:, 0]), jnp.arange(xs.shape[1]))[0]


def ragged_while(w, x, lengths):
    """Each row is a loop of its own, batched."""
    body = lambda c: (c[0] + 1, jnp.tanh(c[1] @ w))

    def row(x, n):
        step = lambda c, _: (lax.cond(c[0] < n, body, lambda c: c, c), None)
        return lax.scan(step, (0, x), length=6)[0][1]

    return jax.vmap(row)(x, lengths)


def stops(w, x):
    """A loop that stops for good."""

    def step(c, _):
        i, h = c
        return lax.cond(jnp.sum(h) < 40.0, lambda: (i + 1, jnp.tanh(h @ w) + h), lambda: c), i

    return lax.scan(step, (0, x), length=6)[0][1]


def table(rows, i, j):
    """Two rows of a table are read in each step."""

    def step(h, ij):
        return jnp.tanh(h + rows[ij[0]] * rows[ij[1]]), None

    return lax.scan(step, jnp.zeros_like(rows[0]), (i, j))[0]


def batched_table(rows, tokens, w):
    """An embedding for every token of a batch, in a recurrence."""

    def step(h, token):
        return jnp.tanh(h @ w + rows[token] * rows[(token + 1) % rows.shape[0]]), None

    return lax.scan(step, rows[tokens[:, 0]], tokens.T)[0]


def written(buffer, xs):
    """A row of a buffer is written in each step, from the row before."""

    def step(b, row):
        i, x = row
        return b.at[i].set(jnp.sin(x) + b[(i - 1) % b.shape[0]]), None

    return lax.scan(step, buffer, (jnp.arange(xs.shape[0]), xs))[0]


def updated(buffer, xs):
    """A row of a buffer is read and written in each step."""

    def step(i, b):
        row = lax.dynamic_index_in_dim(b, i, keepdims=False)
        return lax.dynamic_update_index_in_dim(b, xs[i] * 2 + jnp.sin(row), i, 0)

    return lax.fori_loop(0, xs.shape[0], step, buffer)


def cached(cache, xs):
    """Attention over a cache that every step writes a row of."""

    def step(carry, row):
        cache, h = carry
        i, x = row
        cache = lax.dynamic_update_index_in_dim(cache, x + h, i, 1)
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", h, cache))
        return (cache, jnp.einsum("bt,btd->bd", scores, cache)), None

    steps = (jnp.arange(xs.shape[0]), xs)
    return lax.scan(step, (cache, jnp.zeros_like(xs[0])), steps)[0][1]


def auto():
    """What XLA divides by itself: name -> (function, arguments)."""
    on, lengths = mesh(), np.array([3, 1, 2, 5, 0, 4, 2, 1], np.int32)
    i = (np.arange(24) * 7 % 64).astype(np.int32)
    rows, every = put(numbers(64, WIDTH), on, "data"), put(numbers(24, WIDTH), on)
    xs, w = numbers(BATCH, 6, WIDTH), numbers(WIDTH, WIDTH)
    return {
        "fsdp": (transformer, fsdp(on)),
        "tensor parallel": (transformer, tensor_parallel(on)),
        "ragged, rows": (ragged, (put(w, on), put(xs, on, "data"), put(lengths, on, "data"))),
        "ragged while": (
            ragged_while,
            (put(w, on, "model"), put(xs[:, 0], on, "data"), put(lengths, on, "data")),
        ),
        "stops": (stops, (put(w, on, "model"), put(xs[:, 0], on, "data"))),
        "table": (table, (rows, put(i, on), put(i[::-1], on))),
        "table of a batch": (
            batched_table,
            (rows, put(i.reshape(8, 3), on, "data"), put(w, on, None, "model")),
        ),
        "written": (written, (rows, every)),
        "updated": (updated, (rows, every)),
        "cached": (
            cached,
            (put(numbers(BATCH, 8, WIDTH), on, None, "data"), put(numbers(8, BATCH, WIDTH), on)),
        ),
    }


# ------------------------------------------------------------------ sharding in types


def explicit():
    """What types say the sharding of."""
    on = mesh(AxisType.Explicit)
    xs, w = numbers(BATCH, 6, WIDTH), numbers(WIDTH, WIDTH)
    lengths = np.array([3, 1, 2, 5, 0, 4, 2, 1], np.int32)

    def dense(weights, x):
        step = lambda h, w: (jnp.matmul(jnp.tanh(h @ w[0]), w[1], out_sharding=P("data")), None)
        return lax.scan(step, x, weights)[0]

    def gathered(weights, x):
        """Each layer's weights are gathered in its step."""
        step = lambda h, w: (jnp.tanh(h @ jax.sharding.reshard(w, P(None, None))), None)
        return lax.scan(step, x, weights)[0]

    stacked = numbers(LAYERS, WIDTH, WIDTH)
    return {
        "dense": (
            dense,
            (
                (put(stacked, on, None, None, "model"), put(stacked, on, None, "model")),
                put(xs[:, 0], on, "data"),
            ),
        ),
        "fsdp": (gathered, (put(stacked, on, None, "data"), put(xs[:, 0], on, "data"))),
        "ragged": (ragged, (put(w, on), put(xs, on, "data"), put(lengths, on, "data"))),
        "updated columns": (
            updated,
            (put(numbers(24, WIDTH), on, None, "data"), put(numbers(24, WIDTH), on, None, "data")),
        ),
    }


# ------------------------------------------------------------------ each device for itself


def mapped(fun, on, specs, out, axes=("data", "model"), check=True):
    return jax.shard_map(
        fun, mesh=on, in_specs=specs, out_specs=out, axis_names=set(axes), check_vma=check
    )


@jax.custom_vjp
def summed(x):
    """A sum over devices that custom rules hide."""
    return lax.psum(x, "data")


summed.defvjp(lambda x: (summed(x), None), lambda _, ct: (ct,))


def rolled(limits, c):
    """XLA rolls along the axis that is not manual by a collective in each step."""

    def step(c, t):
        return jnp.where(t < limits.max(), jnp.roll(c, 1, axis=1) * np.float32(0.5), c), None

    return lax.scan(step, c, jnp.arange(6))[0]


def hidden_sum(limits, c):
    """A sum over devices in a step that rows of a batch skip, and its gradient."""

    def loss(c):
        def row(n, c):
            def step(c, t):
                return jnp.where(t < n, jnp.sin(summed(jnp.sin(c)) * 0.1 + c), c), None

            return lax.scan(step, c, jnp.arange(6))[0]

        return jnp.sum(jax.vmap(row)(limits, c))

    return jax.grad(loss)(c)


def manual():
    """What each device does for itself, on all axes or on one."""
    on = mesh()
    limits, c = np.arange(8, dtype=np.int32), numbers(64, 512)
    lengths = np.array([3, 1, 2, 5, 0, 4, 2, 1], np.int32)
    xs, w = numbers(BATCH, 6, WIDTH), numbers(WIDTH, WIDTH)
    whole, data, tokens = P(), P("data"), (np.arange(24) * 7 % 64).astype(np.int32)
    mine = partial(mapped, on=on, specs=(data, data), out=data, check=False)
    limits, c = put(limits, on, "data"), put(c, on, "data", "model")
    return {
        "rolled": (mine(rolled, axes=("data",)), (limits, c)),
        "rolled by all": (mine(rolled), (limits, c)),
        "hidden sum": (mine(hidden_sum), (limits, put(numbers(8, 512), on, "data"))),
        "ragged": (
            mapped(ragged, on, (whole, data, data), data),
            (put(w, on), put(xs, on, "data"), put(lengths, on, "data")),
        ),
        "table": (
            mapped(batched_table, on, (whole, data, whole), data),
            (put(numbers(64, WIDTH), on), put(tokens.reshape(8, 3), on, "data"), put(w, on)),
        ),
        "written": (
            mapped(written, on, (P(None, "data"),) * 2, P(None, "data")),
            (put(numbers(24, WIDTH), on, None, "data"), put(numbers(24, WIDTH), on, None, "data")),
        ),
        "updated, partly": (
            mapped(updated, on, (P(None, "data"),) * 2, P(None, "data"), ("data",)),
            (
                put(numbers(24, WIDTH), on, "model", "data"),
                put(numbers(24, WIDTH), on, None, "data"),
            ),
        ),
    }


# ------------------------------------------------------------------ rows of a batch


def ended(w, xs, length):
    """Recurrent states of a padded sequence, zeros after its end."""

    def step(t, state):
        h, out = state
        h = jnp.where(t < length, jnp.tanh(jnp.concatenate([xs[t], h]) @ w), h)
        return h, out.at[t].set(jnp.where(t < length, h, 0.0))

    start = jnp.zeros(WIDTH), jnp.zeros((len(xs), WIDTH))
    return lax.fori_loop(0, len(xs), step, start)[1]


def ended_batch(w, xs, lengths):
    return jax.vmap(ended, (None, 0, 0))(w, xs, lengths)


def permuted(steps, ancestors):
    """A history of particles, which each step permutes."""

    def step(t, paths):
        return paths.at[t].set(steps[t])[:, ancestors[t]]

    return lax.fori_loop(0, len(steps), step, jnp.zeros_like(steps))


def batched():
    """Programs that are batched over an explicit axis."""
    on = mesh(AxisType.Explicit)
    several = lambda *arrays: tuple(put(np.stack([x] * 8), on, "data") for x in arrays)
    lengths = np.array([3, 1, 2, 5], np.int32)
    ancestors = np.random.default_rng(0).integers(0, WIDTH, (24, WIDTH)).astype(np.int32)
    return {
        "ended": (ended_batch, several(numbers(2 * WIDTH, WIDTH), numbers(4, 6, WIDTH), lengths)),
        "permuted": (permuted, several(numbers(24, WIDTH), ancestors)),
    }


KINDS = {"auto": auto, "explicit": explicit, "manual": manual, "batched": batched}
