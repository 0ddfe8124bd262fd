"""JAX, as the rest of the library may know it: its private parts by names of ours, behind one door.

A JAX that we do not know shows here, and nowhere else: `door` warns once, and programs stay as they
are.
"""
