"""Windows: which part of an array an op reads or writes.

======================  ===========================================================
`window_primitives`     how JAX's primitives say which windows they touch
`access`                the window that an op touches, and where it is in each step
`boxes`, `taken_apart`  windows at known places; arrays of which only such are read
`consecutive`           rows at consecutive places, which are one window
`concat_operands`       the operand of a concatenation that a window lies in
`coinciding`            windows that coincide or are disjoint
`reshaped`              where a window is in an array of another shape
======================  ===========================================================
"""
