"""A script with an option that is called like one of ours, which reads what it is given."""

import argparse
import os
import sys
import threading

os.environ["JAX_ENABLE_X64"] = "1"  # before JAX is imported: it counts

import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--optimize", action="store_true")
given = parser.parse_args()


@jax.jit
def tripled(x):
    return 3 * x


threading.Thread(target=lambda: tripled(jnp.ones(4))).start()
print(given.optimize, sys.stdin.readline().strip(), tripled(jnp.ones(3)).dtype, __name__)
sys.exit(7)
