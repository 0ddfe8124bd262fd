"""The test suites of libraries on JAX, with everything they compile optimised: ``make
test-suites``.
"""
