"""Programs as files: data that is read without running any code, and without the model's packages.

A file is JSON: a program as `jaxpr_opt.ir.graph` has it, its ops by the names of their primitives,
with parameters of kinds that are known (`values`).  An op with another parameter, or of a primitive
that is not here, stays an op of which only the types are known.  `write` makes a file, `read` a
function that JAX traces.
"""
