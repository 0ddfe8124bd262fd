"""Analyses of scalars that isomorphic ops compute."""
