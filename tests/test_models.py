"""Models of other libraries as arguments, where these are installed: `make test-libraries`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpr_opt import optimize

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

X = jnp.arange(6.0).reshape(2, 3)


def close(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    for x, y in pairs:
        if isinstance(x, jax.Array):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def loss(model, x):
    return jnp.sum(jax.vmap(model)(x) ** 2)


def test_equinox():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))  # its activation is a leaf
    gradient = eqx.filter_grad(loss)(model, X)
    close(optimize(loss)(model, X), loss(model, X))
    close(eqx.filter_grad(optimize(loss))(model, X), gradient)
    close(eqx.filter_jit(eqx.filter_grad(optimize(loss)))(model, X), gradient)
    close(optimize(eqx.filter_grad(loss))(model, X), gradient)
    step = optimize(lambda m, x: eqx.apply_updates(m, eqx.filter_grad(loss)(m, x)))
    close(step(model, X), eqx.apply_updates(model, gradient))
    close(optimize(model)(X[0]), model(X[0]))


def test_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    layer = lambda seed, *sizes: nnx.Linear(*sizes, rngs=nnx.Rngs(seed))
    model = nnx.Sequential(layer(0, 3, 4), nnx.relu, layer(1, 4, 2))
    loss = lambda m, x: jnp.sum(m(x) ** 2)
    gradient = nnx.grad(loss)(model, X)
    close(nnx.grad(optimize(loss))(model, X), gradient)
    close(nnx.jit(nnx.grad(optimize(loss)))(model, X), gradient)
    close(optimize(nnx.grad(loss))(model, X), gradient)
    close(optimize(nnx.jit(nnx.grad(loss)))(model, X), gradient)
    close(nnx.jit(optimize(loss))(model, X), loss(model, X))


def test_an_nnx_module_that_changes():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    for f in (optimize, lambda g: nnx.jit(optimize(g)), lambda g: optimize(nnx.jit(g))):
        norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=r"changes m.mean\S* and does not return it"):
            f(lambda m, x: m(x))(norm, X)
    norm, plain = (nnx.BatchNorm(3, rngs=nnx.Rngs(0)) for _ in range(2))
    out, state = optimize(lambda m, x: (m(x), nnx.state(m)))(norm, X)
    nnx.update(norm, state)
    close((out, nnx.state(norm)), (plain(X), nnx.state(plain)))


def test_linen_and_optax():
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")
    optax = pytest.importorskip("optax", reason="optax is not installed")
    model, adam = linen.Dense(2), optax.adam(0.1)
    params = model.init(jax.random.key(0), X)

    def step(model, adam, params, state, x):
        gradient = jax.grad(lambda p: jnp.sum(model.apply(p, x) ** 2))(params)
        updates, state = adam.update(gradient, state)
        return optax.apply_updates(params, updates), state

    arguments = (model, adam, params, adam.init(params), X)
    close(optimize(step)(*arguments), step(*arguments))
    close(optimize(step, static_argnums=(0, 1))(*arguments), step(*arguments))
