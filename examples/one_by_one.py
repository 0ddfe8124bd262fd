"""Tables that a loop changes one row at a time.

A model of ratings that is trained by one rating a step, as its author writes descent: the gradient
is zero but for two rows, and plain JAX subtracts all of it. And accounts that are opened, changed
or left alone by a `switch`: XLA copies all of them for the branches. By hand each step reads rows,
and writes them.

    cd examples; jaxpr-opt diff one_by_one.py:rated --args-from one_by_one.py:ratings
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

RATE = 0.05
Tables = dict[str, jax.Array]


def rated(tables: Tables, who: jax.Array, what: jax.Array, stars: jax.Array) -> jax.Array:
    """The sum of all losses of matrix factorisation, one step of descent for each rating."""

    def loss(tables: Tables, i: jax.Array, j: jax.Array, star: jax.Array) -> jax.Array:
        return (star - tables["users"][i] @ tables["films"][j]) ** 2

    def step(tables: Tables, rating: tuple[jax.Array, ...]) -> tuple[Tables, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(tables, *rating)
        return jax.tree.map(lambda t, g: t - RATE * g, tables, gradient), value

    return jnp.sum(lax.scan(step, tables, (who, what, stars))[1])


def rated_by_hand(tables: Tables, who: jax.Array, what: jax.Array, stars: jax.Array) -> jax.Array:
    """Two rows are read and written."""

    def step(tables: Tables, rating: tuple[jax.Array, ...]) -> tuple[Tables, jax.Array]:
        i, j, star = rating
        user, film = tables["users"][i], tables["films"][j]
        error = star - user @ film
        users = tables["users"].at[i].set(user + 2 * RATE * error * film)
        films = tables["films"].at[j].set(film + 2 * RATE * error * user)
        return {"users": users, "films": films}, error**2

    return jnp.sum(lax.scan(step, tables, (who, what, stars))[1])


def booked(
    accounts: jax.Array, places: jax.Array, amounts: jax.Array, kinds: jax.Array
) -> jax.Array:
    """The sum of what was in the accounts before each event."""

    def step(accounts: jax.Array, event: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        i, amount, kind = event
        cases = [
            lambda accounts: accounts.at[i].set(amount),
            lambda accounts: accounts.at[i].add(amount * accounts[i]),
            lambda accounts: accounts,
        ]
        return lax.switch(kind, cases, accounts), jnp.sum(accounts[i])

    return jnp.sum(lax.scan(step, accounts, (places, amounts, kinds))[1])


def booked_by_hand(
    accounts: jax.Array, places: jax.Array, amounts: jax.Array, kinds: jax.Array
) -> jax.Array:
    """The branches make a row."""

    def step(accounts: jax.Array, event: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        i, amount, kind = event
        old = accounts[i]
        cases = [lambda _: amount, lambda old: old + amount * old, lambda old: old]
        return accounts.at[i].set(lax.switch(kind, cases, old)), jnp.sum(old)

    return jnp.sum(lax.scan(step, accounts, (places, amounts, kinds))[1])


def ratings(size: int = 64) -> tuple[Tables, jax.Array, jax.Array, jax.Array]:
    """So many users and films, and as many ratings."""
    keys = jax.random.split(jax.random.key(0), 5)
    tables = {
        name: 0.3 * jax.random.normal(key, (size, 8))
        for name, key in zip(("users", "films"), keys, strict=False)
    }
    who, what = (jax.random.randint(key, (size,), 0, size) for key in keys[2:4])
    return tables, who, what, jax.random.normal(keys[4], (size,))


def events(size: int = 64) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """So many accounts, and as many events."""
    keys = jax.random.split(jax.random.key(0), 4)
    places = jax.random.randint(keys[1], (size,), 0, size)
    kinds = jax.random.randint(keys[3], (size,), 0, 3)
    amounts = 0.1 * jax.random.normal(keys[2], (size, 8))
    return jax.random.normal(keys[0], (size, 8)), places, amounts, kinds
