"""What several passes write: rows, sums in place, fences, what loops hand to each other."""
