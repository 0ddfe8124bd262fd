"""Reads of windows.

===============  ===============================================
`narrow_reads`   windows of results, made of windows of operands
`array_windows`  windows in place of arrays
===============  ===============================================
"""
