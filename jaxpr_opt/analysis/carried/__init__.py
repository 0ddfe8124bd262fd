"""Arrays that a loop carries.

==========================  =======================================================================
`buffers`                   all accesses to a carried array: a `Buffer`
`overwritten`               reads of what a write overwrites
`earlier_reads`             reads of what was written that may come before the write
`blocks`                    the rows of a buffer that a loop touches
`moved_reads`               windows of a moved buffer, and which of its operands these are
`sliding`, `sliding_costs`  a window that slides over a buffer, and whether to stack it
`row_sources`               the arrays that the rows of an array come from
`shift_registers`           carries that drop rows at one end and take some at the other
`rings`                     shift registers that could be rings
`histories`                 buffers whose rows each step rearranges
`last_rows`                 stacks of which the last row is read, streams of which the first counts
`picked_rows`               stacks of which one row is read, at a place that the data say
`mapped_carries`            what a step makes of rows of a carry, of which it changes few
==========================  =======================================================================
"""
