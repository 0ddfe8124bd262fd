"""Analyses of what one loop stores for another."""
