"""A model that is trained through its own beam search, which ends when the best hypothesis does.

The loss is the expected number of wrong letters of the hypotheses that are found (minimum risk
training: Shen and others 2016, arXiv:1512.02433), so its gradient goes through the search: a
`while_loop` whose length is unknown before it runs. `jax.grad` of it raises. Above `optimize` it
works:

    python -m examples.beam_search                     # trains it, and shows what it spells
    python -m examples.beam_search beam_search.svg     # draws that, too

By hand, the search is a `scan` over as many steps as a hypothesis may ever take.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt import optimize

Params = dict[str, jax.Array]
END = 0
LETTERS = "$abcdefgh"
WORDS = ("bead", "cage", "a", "deaf", "hedge", "babe", "facade", "ebb")
BEAMS = 6
MOST = 64


class Search(NamedTuple):
    """The hypotheses of one word, best first."""

    step: jax.Array
    """int32[]: letters so far."""
    hidden: jax.Array
    """float32[beams, width]"""
    letters: jax.Array
    """int32[beams]: the last letter of each; `END` once it has ended."""
    scores: jax.Array
    """float32[beams]: log-likelihoods."""
    wrong: jax.Array
    """float32[beams]: how many letters are wrong so far."""


def loss(params: Params, words: jax.Array, targets: jax.Array) -> jax.Array:
    """The expected number of wrong letters, of a batch of words."""
    return jnp.mean(jax.vmap(risk, (None, 0, 0))(params, words, targets))


def loss_by_hand(params: Params, words: jax.Array, targets: jax.Array, most: int) -> jax.Array:
    """The same, with a bound on the length of a hypothesis: all steps are taken, and stored."""

    def one(word: jax.Array, target: jax.Array) -> jax.Array:
        def step(search: Search, _: None) -> tuple[Search, None]:
            move = functools.partial(longer, params, target)
            return lax.cond(is_open(search), move, lambda search: search, search), None

        return expected(target, lax.scan(step, start(params, word), None, length=most)[0])

    return jnp.mean(jax.vmap(one)(words, targets))


def risk(params: Params, word: jax.Array, target: jax.Array) -> jax.Array:
    """The expected number of wrong letters of what is found for one word."""
    move = functools.partial(longer, params, target)
    return expected(target, lax.while_loop(is_open, move, start(params, word)))


def expected(target: jax.Array, search: Search) -> jax.Array:
    """Hypotheses weigh as much as they are likely; what has ended lacks the letters to come."""
    lacking = jnp.sum((target != END) & (jnp.arange(target.size) >= search.step))
    wrong = search.wrong + jnp.where(search.letters == END, lacking, 0)
    return jnp.sum(jax.nn.softmax(search.scores) * wrong)


def start(params: Params, word: jax.Array) -> Search:
    """One hypothesis without letters; the others are impossible."""
    hidden = jnp.tile(params["words"][word], (BEAMS, 1))
    scores = jnp.where(jnp.arange(BEAMS) == 0, 0.0, -1e9)
    letters = jnp.full(BEAMS, len(LETTERS))  # what every word begins with
    return Search(jnp.int32(0), hidden, letters, scores, jnp.zeros(BEAMS))


def is_open(search: Search) -> jax.Array:
    """Whether the best hypothesis has not ended: others could only become worse.

    A model that has learnt nothing yet may never end one.
    """
    return (search.letters[0] != END) & (search.step < MOST)


def longer(params: Params, target: jax.Array, search: Search) -> Search:
    """The best hypotheses, one letter longer; what has ended stays."""
    ended = (search.letters == END)[:, None]
    hidden = jnp.tanh(search.hidden @ params["recur"] + params["letters"][search.letters])
    chances = jax.nn.log_softmax(hidden @ params["out"])
    stays = jnp.where(jnp.arange(len(LETTERS)) == END, 0.0, -1e9)
    scores, chosen = lax.top_k(
        (search.scores[:, None] + jnp.where(ended, stays, chances)).ravel(), BEAMS
    )
    beam, letter = chosen // len(LETTERS), chosen % len(LETTERS)
    right = target[jnp.minimum(search.step, target.size - 1)]
    wrong = search.wrong[beam] + jnp.where(ended[beam, 0] & (right == END), 0.0, letter != right)
    return Search(search.step + 1, hidden[beam], letter, scores, wrong)


def make_params(width: int = 64, seed: int = 1) -> Params:
    """A recurrent network that begins with a vector for each word."""
    shapes = {
        "words": (len(WORDS), width),
        "letters": (len(LETTERS) + 1, width),
        "recur": (width, width),
        "out": (width, len(LETTERS)),
    }
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def arguments(width: int = 64) -> tuple[Any, ...]:
    """Parameters, words and how they are spelt, ended by zeros."""
    longest = max(map(len, WORDS)) + 1
    spelt = [[LETTERS.index(letter) for letter in word.ljust(longest, "$")] for word in WORDS]
    return make_params(width), jnp.arange(len(WORDS)), jnp.array(spelt)


def spelt(params: Params, word: int) -> str:
    """The best hypothesis for a word."""
    search, letters = start(params, jnp.int32(word)), [""] * BEAMS
    while is_open(search):
        marked = search._replace(wrong=2.0 * jnp.arange(BEAMS))  # from which each is made
        search = longer(params, jnp.zeros(1, jnp.int32), marked)
        before = [letters[int(number) // 2] for number in search.wrong]
        letters = [b + LETTERS[int(k)] for b, k in zip(before, search.letters, strict=True)]
    return letters[0].rstrip("$")


def train(steps: int) -> Iterator[tuple[Params, jax.Array]]:
    """Gradient descent with momentum: the parameters after each step, and the loss before it."""
    params, words, targets = arguments()

    @jax.jit
    def update(params: Params, speed: Params) -> tuple[Params, Params, jax.Array]:
        value, slope = jax.value_and_grad(optimize(loss))(params, words, targets)
        speed = jax.tree.map(lambda v, g: 0.9 * v - 0.05 * g, speed, slope)
        return jax.tree.map(jnp.add, params, speed), speed, value

    speed = jax.tree.map(jnp.zeros_like, params)
    for _ in range(steps):
        params, speed, value = update(params, speed)
        yield params, value


@jax.jit
def mean_length(params: Params) -> jax.Array:
    """How many steps a search takes, on average over the words."""

    def steps(word: jax.Array) -> jax.Array:
        move = functools.partial(longer, params, jnp.zeros(1, jnp.int32))
        return lax.while_loop(is_open, move, start(params, word)).step

    return jnp.mean(jax.vmap(steps)(jnp.arange(len(WORDS))))


def draw(path: str, history: Sequence[tuple[Params, jax.Array]]) -> None:
    """Plot how wrong hypotheses are, and how long searches, as training goes on."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "jaxpr-opt"  # the same file from the same figures
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
    lengths = [float(mean_length(params)) for params, _ in history]
    ax.plot(lengths, "C1", label="steps of a search")
    ax.axhline(1 + sum(map(len, WORDS)) / len(WORDS), color="C1", ls=":", label="steps needed")
    ax.plot([float(value) for _, value in history], "C0", label="wrong letters, expected")
    ax.set(xlabel="training steps", ylim=(0, None))
    ax.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(picture: str | None = None) -> None:
    """Train, and show what is spelt."""
    history = list(train(401))
    if picture is not None:
        draw(picture, history)
    for number, (_, value) in enumerate(history[::50]):
        print(f"step {50 * number}: {value:.2f} wrong letters a word")
    for number, word in enumerate(WORDS):
        print(f"{word}: {spelt(history[-1][0], number)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
