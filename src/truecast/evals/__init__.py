"""Task runs: scores with their statistics, and the comparison of two."""
