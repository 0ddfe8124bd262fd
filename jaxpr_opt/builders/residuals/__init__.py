"""Residuals that loops store for other loops, or compute again.

======================  ========================================================
`outer_values`          values that are the same in each step
`recomputed_residuals`  residuals computed from what is stored
`inner_replay`          a loop of a step, run again
`undone_writes`         writes that a loop back undoes
`register_windows`      windows of a shift register, of the rows that entered it
======================  ========================================================
"""
