"""Analyses of values: constants, affine functions of loop steps, algebra, rounding."""
