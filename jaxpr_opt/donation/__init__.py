"""Donation: which arguments can become results, and functions that let them."""
