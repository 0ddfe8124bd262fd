"""When arrays are in memory.

===================================  =======================================================
`fused`, `scheduled`                 the arrays that XLA has in memory, and when ops run
`loops`                              which of XLA's loops compute an op, and at how many places
`lifetimes`, `aliasing`              which result may take the memory of which argument
`across_peak`                        values that are made before the peak and read after it
`rematerialization`, `segmenting`    which of them to drop and recompute
===================================  =======================================================
"""
