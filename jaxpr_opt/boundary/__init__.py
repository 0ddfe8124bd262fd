"""The boundary to JAX's transformations: the primitive `optimized`, and its rules.

==================================  ==============================================================
programs
`program`                           a program, and what JAX's transformations make of it
`gradients`                         forward and backward, optimised as one and taken apart
`rules`                             both as the rules that JAX requires of a primitive
`loops`                             each `while` becomes a loop that has a gradient
`constant_residuals`                residuals that depend on no input are made again
`accumulation`                      gradients that are added to refs
`checking`                          in check mode, what must compute the same
functions
`wrapping`, `compiling`, `stages`   what `jax.jit` gets of a function, and what it gives
`static_leaves`, `arrays_only`      arguments that are no arrays
`mutation`                          modules that a function changes and does not return
`trial`                             a small program that tries all of this on the installed JAX
==================================  ==============================================================
"""
