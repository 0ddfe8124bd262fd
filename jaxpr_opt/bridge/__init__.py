"""The bridge to JAX: its private API behind names of our own, and a guard around our code.

An unknown JAX shows here and nowhere else: `guard` warns once, and programs stay unchanged.

======================================  ====================================================
JAX's private API
`compat`                                jaxprs, equations, and how they are traced
`compat_types`                          the types of values
`compat_source`                         the user's lines that equations come from
`compat_ad`, `compat_repeats`           transformations of jaxprs; faster, where ops recur
`compat_rules`, `compat_guard`          rules of our primitives; the plain program's if they fail
`compat_lowering`                       how a jaxpr is compiled inside another program
`compat_devices`                        meshes, donated arguments, what versions of XLA do
`compat_call`, `compat_frames`          jitted functions and their calls; filtered tracebacks
`compat_jit`, `compat_watch`            for `everywhere`, and for `jaxpr-opt run`
`compat_saving`                         for saved programs
facts
`parameters`                            the parameters of JAX's primitives
`dtypes`                                numbers and their limits
`slicing`                               windows and rows at starts that are in range
around our code
`guard`                                 what happens where our code fails
`interpreter_stack`                     it runs in one chunk of stack
======================================  ====================================================
"""
