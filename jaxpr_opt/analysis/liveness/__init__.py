"""Analyses of when arrays are in memory."""
