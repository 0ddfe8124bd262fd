"""Windows in place of masks and selects.

=================  ============================================================
`one_hot_rows`     the row that a mask chooses
`picked_sums`      rows that one-hot arrays pick, or add up
`picked_windows`   windows in zeros where one-hot arrays are one
`selected_writes`  a select of windows, in place of one of versions of an array
=================  ============================================================
"""
