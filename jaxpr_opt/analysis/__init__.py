"""Facts that passes ask for: a graph in, facts out; nothing is changed."""
