"""Analyses of arrays that are read and written a window at a time."""
