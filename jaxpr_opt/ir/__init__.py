"""The graph of a program: its mutator, its verifier, its text, and the ways from and to jaxprs."""
