"""Writes of windows, and reads of what they write.

===============  ======================================================
`coinciding`     a read of a window that may be the one that is written
`branch_writes`  writes of branches, after their cond
`whole_writes`   writes to windows, as writes to the array
`written_rows`   reads of rows of an array that was written, without it
===============  ======================================================
"""
