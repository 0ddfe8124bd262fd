"""Programs as good authors write them: the rules that run by default have nothing to say."""

import jax
import jax.numpy as jnp
from jax import lax


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def cross_entropy(logits, labels):
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


# ---------------------------------------------------------------- networks


def mlp(params, images, labels):
    x = images.reshape(images.shape[0], -1)
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return cross_entropy(x @ weight + bias, labels)


def convnet(params, images, labels):
    x = images
    for kernel in params["kernels"]:
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    return cross_entropy(jnp.mean(x, (1, 2)) @ params["head"], labels)


def normalised(x):
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def masked_attention(layer, x, padding):
    """Causal, and blind to padding."""
    heads = lambda w: jnp.einsum("btd,dhk->bhtk", x, w)
    q, k, v = heads(layer["q"]), heads(layer["k"]), heads(layer["v"])
    scores = jnp.einsum("bhtk,bhsk->bhts", q, k) / k.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(causal & padding[:, None, None, :], scores, -1e9)
    return jnp.einsum("bhts,bhsk,hkd->btd", jax.nn.softmax(scores), v, layer["o"])


def block(layer, x, padding):
    x = x + masked_attention(layer, normalised(x), padding)
    return x + jax.nn.gelu(normalised(x) @ layer["up"]) @ layer["down"]


def attention_with_masks(layer, x, padding):
    return jnp.mean(masked_attention(layer, x, padding) ** 2)


def transformer(params, tokens, padding):
    """Layers in a Python loop."""
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = block(layer, x, padding)
    return cross_entropy(x[:, :-1] @ params["embedding"].T, tokens[:, 1:])


def scanned_transformer(params, tokens, padding):
    """Layers in a scan, each a checkpoint."""
    step = jax.checkpoint(lambda x, layer: (block(layer, x, padding), None))
    x, _ = lax.scan(step, params["embedding"][tokens], params["layers"])
    return cross_entropy(x[:, :-1] @ params["embedding"].T, tokens[:, 1:])


def rnn(params, xs, labels):
    """Time first, as a scan wants it."""

    def step(h, x):
        h = jnp.tanh(x @ params["input"] + h @ params["recur"] + params["bias"])
        return h, None

    h, _ = lax.scan(step, jnp.zeros((xs.shape[1], params["bias"].size)), xs)
    return cross_entropy(h @ params["head"], labels)


def coupling_flow(params, xs):
    """Log-likelihood under affine couplings."""
    volume = jnp.zeros(xs.shape[0])
    for i, (hidden, out) in enumerate(params):
        fixed, moved = jnp.split(xs if i % 2 else jnp.roll(xs, xs.shape[1] // 2, 1), 2, axis=1)
        log_scale, shift = jnp.split(jnp.tanh(fixed @ hidden) @ out, 2, axis=1)
        log_scale = jnp.tanh(log_scale)
        xs = jnp.concatenate([fixed, moved * jnp.exp(log_scale) + shift], 1)
        volume += log_scale.sum(1)
    return -jnp.mean(volume - 0.5 * jnp.sum(xs**2, 1))


# ---------------------------------------------------------------- optimisers, filters, simulations


def adam_step(params, state, images, labels):
    """Loss, gradient and Adam."""
    loss, grads = jax.value_and_grad(mlp)(params, images, labels)
    means, squares, count = state
    count = count + 1
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
    squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, grads)

    def update(p, m, s):
        return p - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(update, params, means, squares), (means, squares, count), loss


def kalman(params, observations):
    """Log-likelihood of a linear Gaussian model."""
    a, c, q, r = params["a"], params["c"], params["q"], params["r"]

    def step(carry, y):
        mean, cov = carry
        mean, cov = a @ mean, a @ cov @ a.T + q
        residual, s = y - c @ mean, c @ cov @ c.T + r
        gain = jnp.linalg.solve(s, c @ cov).T
        loglik = -0.5 * (residual @ jnp.linalg.solve(s, residual) + jnp.linalg.slogdet(s)[1])
        return (mean + gain @ residual, cov - gain @ s @ gain.T), loglik

    n = a.shape[0]
    return -jnp.sum(lax.scan(step, (jnp.zeros(n), jnp.eye(n)), observations)[1])


def runge_kutta(params, states, times):
    """A neural differential equation, four evaluations a step; states along the way are fitted."""

    def slope(y):
        return jnp.tanh(y @ params["hidden"]) @ params["out"]

    def step(y, dt):
        k1 = slope(y)
        k2 = slope(y + dt / 2 * k1)
        k3 = slope(y + dt / 2 * k2)
        k4 = slope(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    _, path = lax.scan(jax.checkpoint(step), states[0], jnp.diff(times))
    return jnp.mean((path - states[1:]) ** 2)


def pendulums(policy, angles, key):
    """A batch of controlled, noisy simulations, each written for one and vmapped."""

    def simulate(angle, key):
        def step(state, key):
            angle, speed = state
            torque = jnp.tanh(jnp.stack([jnp.sin(angle), jnp.cos(angle), speed]) @ policy).sum()
            torque = jnp.where(jnp.abs(speed) > 8, 0.0, torque) + 0.01 * jax.random.normal(key)
            speed = speed + 0.05 * (torque - jnp.sin(angle))
            return (angle + 0.05 * speed, speed), angle**2 + 0.1 * speed**2

        return lax.scan(step, (angle, 0.0), jax.random.split(key, 200))[1].mean()

    return jax.vmap(simulate)(angles, jax.random.split(key, angles.size)).mean()


# ---------------------------------------------------------------- their arguments


def layer(width=512, heads=8, *leading):
    inner = (width, heads, width // heads)
    return {
        "q": f32(*leading, *inner),
        "k": f32(*leading, *inner),
        "v": f32(*leading, *inner),
        "o": f32(*leading, heads, width // heads, width),
        "up": f32(*leading, width, 4 * width),
        "down": f32(*leading, 4 * width, width),
    }


DENSE = [(f32(784, 1024), f32(1024)), (f32(1024, 1024), f32(1024)), (f32(1024, 10), f32(10))]
IMAGES = f32(128, 28, 28), i32(128)
KERNELS = [f32(3, 3, 3, 64), f32(3, 3, 64, 128), f32(3, 3, 128, 256)]
TEXT = i32(8, 256), jax.ShapeDtypeStruct((8, 256), jnp.bool_)
EMBEDDING = f32(8192, 512)
CELL = {"input": f32(64, 256), "recur": f32(256, 256), "bias": f32(256), "head": f32(256, 10)}
FILTER = {"a": f32(16, 16), "c": f32(4, 16), "q": f32(16, 16), "r": f32(4, 4)}

PROGRAMS = [
    (jax.grad(mlp), (DENSE, *IMAGES)),
    (jax.grad(convnet), ({"kernels": KERNELS, "head": f32(256, 10)}, f32(32, 64, 64, 3), i32(32))),
    (jax.grad(attention_with_masks), (layer(), f32(8, 256, 512), TEXT[1])),
    (jax.grad(transformer), ({"embedding": EMBEDDING, "layers": [layer()] * 6}, *TEXT)),
    (jax.grad(scanned_transformer), ({"embedding": EMBEDDING, "layers": layer(512, 8, 6)}, *TEXT)),
    (jax.grad(rnn), (CELL, f32(128, 64, 64), i32(64))),
    (jax.grad(coupling_flow), ([(f32(32, 256), f32(256, 64))] * 8, f32(512, 64))),
    (adam_step, (DENSE, (DENSE, DENSE, i32()), *IMAGES)),
    (jax.grad(kalman), (FILTER, f32(1000, 4))),
    (
        jax.grad(runge_kutta),
        ({"hidden": f32(32, 256), "out": f32(256, 32)}, f32(201, 64, 32), f32(201)),
    ),
    (jax.grad(pendulums), (f32(3, 16), f32(512), jax.eval_shape(jax.random.key, 0))),
]
