"""A regression in numpyro: the library compiles the sampler around the user's model."""

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions
from numpyro.infer import SVI, Trace_ELBO, autoguide


def model(x, y):
    slope = numpyro.sample("slope", distributions.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", distributions.Normal(slope * x, 0.1), obs=y)


x = jnp.linspace(0.0, 1.0, 16)
svi = SVI(model, autoguide.AutoNormal(model), numpyro.optim.Adam(0.1), Trace_ELBO())
result = svi.run(jax.random.key(0), 20, x, 2.0 * x, progress_bar=False)
print("losses", result.losses.shape)
