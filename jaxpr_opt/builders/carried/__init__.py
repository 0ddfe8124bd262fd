"""Loops that carry less of an array.

================  ====================================================
`narrow_carry`    the rows that a loop touches
`last_rows`       the last row of a stack
`picked_rows`     the row of a stack that the data say
`mapped_carries`  a loop that carries what it makes of rows
`moved_reads`     windows of what is moved, of its operands
`sliding_rows`    windows that slide over a buffer, as rows of a stack
`ring_rows`       a shift register as a ring
`traced_rows`     rows that are rearranged after the loop
================  ====================================================
"""
