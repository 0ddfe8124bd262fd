"""Analyses of steps of loops: which do nothing, and when that is known."""
