"""The bridge to JAX: its private API behind names of our own, and a guard around our code.

An unknown JAX shows here and nowhere else: `guard` warns once, and programs stay unchanged.
"""
