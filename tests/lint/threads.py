"""Programs as users reported them: the seeds of the project, and threads of JAX and others.

Each is the call, or the gradient, that the thread is about, at a size at which it hurts.  A comment
``# finding: CODE`` marks a line that the report has to name, and the rule.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def flags(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


# ---------------------------------------------------------------- seeds


def bounded_while(w, x, steps):
    """jax#8239: the gradient of a loop costs its bound, not the steps it takes."""

    def step(carry, _):
        go = lambda c: (jnp.tanh(c[0] @ w), c[1] + 1)
        return lax.cond(carry[1] < steps, go, lambda c: c, carry), None

    (x, _), _ = lax.scan(step, (x, 0), None, length=1024)  # finding: JXO301
    return jnp.sum(x)


def nested_while(w, x, steps):
    """The same as it was first written: a tree of scans of two."""

    def run(data, bound):
        if bound == 1:
            active, x, i = data
            x = jnp.where(active, jnp.tanh(x @ w), x)
            return i + 1 < steps, x, i + 1

        def half(data, _):
            return lax.cond(data[0], lambda d: run(d, bound // 2), lambda d: d, data), None

        return lax.scan(half, data, None, length=2)[0]  # finding: JXO301

    return jnp.sum(run((steps > 0, x, 0), 64)[1])


def carried_slices(xs):
    """jax#15906: what a loop carries is read and written at the step's index."""

    def body(carry, _):
        i, state, ys = carry
        state = jnp.sin(state + xs[i])
        ys = lax.dynamic_update_index_in_dim(ys, state, i, axis=0)  # finding: JXO201
        return (i + 1, state, ys), None

    init = 0, jnp.zeros(xs.shape[1:]), jnp.zeros(xs.shape)
    (_, _, ys), _ = lax.scan(body, init, None, length=xs.shape[0])
    return jnp.sum(ys)


def one_element(table, xs):
    """Zygote#323: one element of a large array is touched, all of it is in the gradient."""

    def step(state, x):
        first = table[0]  # finding: JXO203
        return jnp.tanh(state * first + x), None

    return lax.scan(step, jnp.zeros(()), xs)[0]


def convolutions(x):  # finding: JXO501
    """jax#926: an array of images is replaced, in four times the memory it takes."""
    for _ in range(10):
        kernel = jnp.ones((3, 3, 1, 1))
        layout = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
    return x


# ---------------------------------------------------------------- threads


def table_of_matrices(p0, p1):
    """jax#10197: a stack of matrices is carried, the last two are read."""
    n = p0.shape[0]
    table = jnp.concatenate([p0[None], p1[None], jnp.zeros([n - 2, n, n])])

    def body(table, i):
        x = table[i - 1] @ table[i - 2]
        x /= x.sum(1, keepdims=True)
        return table.at[i].set(x), None  # finding: JXO201

    return lax.scan(body, table, jnp.arange(2, n))[0][-1, 0, 0]


def update_in_a_vmapped_while(xs, stops):
    """jax#13522: every row is written up to a place of its own."""

    def fill(xs, stop):
        def step(carry):
            i, xs = carry
            value = jnp.sin(i * 0.1)
            return i + 1, xs.at[i].set(value)  # finding: JXO202

        return lax.while_loop(lambda carry: carry[0] < stop, step, (0, xs))[1]

    return jax.vmap(fill)(xs, stops)


def update_in_a_vmapped_cond(xs, starts, buffers):
    """jax#8192: the same with a branch in each step."""

    def fill(x, start, buffer):
        def step(buffer, i):
            def write(buffer):
                value = jnp.sin(x + i)
                return buffer.at[i].set(value)  # finding: JXO202

            return lax.cond(i >= start, write, lambda b: b, buffer), None

        return lax.scan(step, buffer, jnp.arange(buffer.size))[0]

    return jax.vmap(fill)(xs, starts, buffers)


def masked_update(xs):
    """jax#13522: an update that is spelled as a `where`."""

    def step(carry, i):
        state, ys = carry
        state = jnp.sin(state + xs[i])
        mine = jnp.arange(xs.size) == i
        ys = jnp.where(mine, state, ys)  # finding: JXO202
        return (state, ys), None

    return lax.scan(step, (jnp.zeros(()), jnp.zeros_like(xs)), jnp.arange(xs.size))[0][1]


def pops(values, places):
    """jax#17845: elements are taken out, and what follows moves up."""

    def pop(values, i):
        taken = values[i]
        tail = lax.dynamic_slice(values, (i + 1,), (1000,))
        values = lax.dynamic_update_slice(values, tail, (i,))  # finding: JXO201
        return values, taken

    return lax.scan(pop, values, places)


def inserts(state, rows, columns, values):
    """jax#17640: elements are put in, what follows moves on, and the gradient takes 100 times as
    long."""

    def insert(state, where):
        row, column, value = where
        tail = lax.dynamic_slice(state, (row, column), (1, 500))
        state = lax.dynamic_update_slice(state, tail, (row, column + 1))  # finding: JXO201
        return state.at[row, column].set(value), None

    return jnp.sum(lax.scan(insert, state, (rows, columns, values))[0] ** 2)


def embeddings(table, ids):
    """jax#851, jax#15906: rows of a table are read in an inner loop."""

    def sentence(state, ids):
        def word(state, i):
            row = table[i]  # finding: JXO204
            return jnp.tanh(state + row), None

        return lax.scan(word, state, ids)[0], None

    return jnp.sum(lax.scan(sentence, jnp.zeros(table.shape[1:]), ids)[0])


def vmapped_branches(params, states, active):
    """jax#8409: `cond` under `vmap`, with weights in a branch."""

    def one(state, active):
        def step(state, active):
            new = lambda s: jnp.tanh(s @ params)
            return lax.cond(active, new, lambda s: s, state), None  # finding: JXO303

        return lax.scan(step, state, active)[0]

    return jnp.sum(jax.vmap(one)(states, active))


def newton(x):
    """mujoco#2259, brax#290, jax#2129: a solver's loop on the way of a gradient."""

    def step(carry):
        y, i = carry
        return y - (y * y - x) / (2 * y), i + 1

    y, _ = lax.while_loop(lambda carry: carry[1] < 8, step, (x, 0))  # finding: JXO302
    return jnp.sum(y)


def power(x, n):
    """The same with bounds that are arguments."""
    return lax.fori_loop(0, n, lambda _, y: y * x, x)  # finding: JXO302


def misnamed_policy(weights, x):
    """maxtext#4990: what is offloaded is byte for byte what it was before, as nothing has the
    name."""

    def layer(x, weight):
        return checkpoint_name(jnp.tanh(x @ weight), "mlpwi"), None

    policy = jax.checkpoint_policies.save_only_these_names("decoder_layer_input")
    x, _ = lax.scan(jax.checkpoint(layer, policy=policy), x, weights)  # finding: JXO401
    return jnp.sum(x)


def decoding(params, tokens):
    """jax#15906: an array that is filled row by row, and read whole by each step."""

    def step(carry, t):
        x, cache = carry
        cache = lax.dynamic_update_slice(cache, (x + tokens[t])[None], (t, 0))  # finding: JXO104
        scores = jnp.where(jnp.arange(cache.shape[0]) <= t, cache @ (x @ params), -1e9)
        return (jnp.tanh(jax.nn.softmax(scores) @ cache), cache), None

    init = jnp.zeros(tokens.shape[1]), jnp.zeros_like(tokens)
    return jnp.sum(lax.scan(step, init, jnp.arange(tokens.shape[0]))[0][0])


def many_scalars(rates, xs):
    """jax#40150: nodes by name, a scalar each."""

    def step(nodes, x):
        return {name: node + rates[0] * jnp.tanh(x - node) for name, node in nodes.items()}, None

    init = {f"node{i}": jnp.zeros(()) for i in range(40)}
    nodes, _ = lax.scan(step, init, xs)  # finding: JXO304
    return sum(nodes.values())


WEIGHTS = f32(256, 256)
PROGRAMS = [
    (jax.grad(bounded_while, (0, 1)), (WEIGHTS, f32(32, 256), i32())),
    (jax.grad(nested_while, (0, 1)), (WEIGHTS, f32(32, 256), i32())),
    (jax.grad(carried_slices), (f32(1000, 10, 5),)),
    (jax.grad(one_element), (f32(100_000), f32(1000))),
    (jax.grad(table_of_matrices), (f32(64, 64), f32(64, 64))),
    (update_in_a_vmapped_while, (f32(10, 30_000), i32(10))),
    (update_in_a_vmapped_cond, (f32(10), i32(10), f32(10, 30_000))),
    (masked_update, (f32(30_000),)),
    (pops, (f32(30_000), i32(3000))),
    (jax.grad(inserts), (f32(100, 1000), i32(1000), i32(1000), f32(1000))),
    (jax.grad(embeddings), (f32(4096, 16), i32(64, 16))),
    (jax.grad(vmapped_branches), (WEIGHTS, f32(32, 256), flags(32, 64))),
    (jax.grad(newton), (f32(),)),
    (jax.value_and_grad(power), (f32(), i32())),
    (jax.grad(misnamed_policy), (f32(8, 256, 256), f32(64, 256))),
    (jax.grad(decoding), (f32(64, 64), f32(512, 64))),
]
"""Those that the default rules report, with the types of their arguments."""
