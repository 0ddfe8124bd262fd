"""`jaxpr-opt run`: run a script unchanged, and report the programs that JAX compiles."""
