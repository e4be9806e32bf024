"""Whether a deployment would serve, and serve rightly: every known trap as a check with evidence and a remedy."""
