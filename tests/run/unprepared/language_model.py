"""A language model of Flax nnx, trained with Optax."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

VOCABULARY, WIDTH, LENGTH = 32, 16, 8


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))
        return x + self.down(nnx.gelu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.block = Block(rngs)

    def __call__(self, tokens):
        return self.embed.attend(self.block(self.embed(tokens)))


def loss(model, tokens):
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, tokens):
    value, gradient = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, gradient)
    return value


if __name__ == "__main__":
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    tokens = jax.random.randint(jax.random.key(1), (4, LENGTH), 0, VOCABULARY)
    losses = [float(train_step(model, optimizer, tokens)) for _ in range(3)]
    print("falls" if losses[-1] < losses[0] else "does not fall")
