"""The boundary to JAX's transformations: the primitive an optimised program is, and its rules."""
