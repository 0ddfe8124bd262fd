"""`jaxpr-opt run`: programs that nobody prepared are run, and what JAX compiles is looked at."""
