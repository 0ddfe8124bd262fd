"""Donation: which result may take the memory of which argument, and functions that donate."""
