"""A script whose child process imports it again, and uses JAX as well."""

import multiprocessing

import jax
import jax.numpy as jnp


@jax.jit
def doubled(x):
    return 2 * x


def child(results):
    results.put(float(doubled(jnp.ones(3)).sum()))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    print("the child says", results.get())
    process.join()
    print("the parent says", float(doubled(jnp.ones(3)).sum()))
