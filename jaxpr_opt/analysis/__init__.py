"""Analyses for passes: a graph in, facts out; they change nothing.

=============  ===================================================
`values`       single values
`windows`      arrays that are read and written in part
`steps`        which steps of a loop do something
`residuals`    what one loop stores for another, and the planner
`liveness`     when arrays are in memory
`scalars`      isomorphic ops on scalars
=============  ===================================================

A folder uses only those above it (`tests/test_architecture.py`).
"""
