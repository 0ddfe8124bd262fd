"""Ops in a form of which XLA makes fast code.

What XLA makes of a step depends on how it is written: it may start each op by itself, or compute an
element once for each reader.  These passes run last, except for `pack-scalars`, so that JAX
differentiates vectors.

============================  =======================================================
`pack-scalars`                isomorphic scalars are computed as one vector
`make-factors-once`           a factor of an outer product is computed once
`multiply-along-rows`         a product reads its larger factor row by row
`concatenate-padded-windows`  windows of a sum are put side by side, not into zeros
`select-padded-numbers`       a number is selected, not padded, to be added to others
`compile-small-loops`         a loop of small ops is compiled as one function
============================  =======================================================
"""
