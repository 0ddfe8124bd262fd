"""Writes of windows, and what reads, moves or surrounds them.

=================  ========================================================
`written_windows`  reads of what was written, or is made of that
`branch_writes`    the windows that branches of a cond write
`put_parts`        all parts of an array, put together again
`nested`           a write to a window that is then put back into its array
`reshaped_writes`  writes into an array that is reshaped for them, and back
=================  ========================================================
"""
