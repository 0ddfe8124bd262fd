"""Analyses for passes: a graph in, facts out; they change nothing.

=============  ===================================================
`values`       single values
`windows`      which part of an array an op reads or writes
`masks`        masks and selects that choose a part of an array
`sparse`       arrays that are zero but for some windows
`rows`         which rows of arrays ops compute
`writes`       writes of windows, and what surrounds them
`carried`      arrays that a loop carries
`batches`      what `jax.vmap` makes
`in_place`     arrays that XLA can update in place
`steps`        which steps of a loop do something
`residuals`    what one loop stores for another, and the planner
`liveness`     when arrays are in memory
`scalars`      isomorphic ops on scalars
=============  ===================================================

A folder uses only those above it (`tests/test_architecture.py`).  What the passes of a folder ask
is in the folder of the same name here, and what they emit in that of `jaxpr_opt.builders`.
"""
