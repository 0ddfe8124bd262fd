"""Scalars that isomorphic ops compute, for `pack-scalars`.

====================  ======================================================================
`isomorphic_ops`      families of scalars that are computed alike
`packs`               sets of ops that one op on vectors can replace
`packing`             how the step of a loop is computed with vectors
`element_provenance`  the op that computes one element of an array
====================  ======================================================================
"""
