"""Statistics that several measurements share: quantiles, clustered means, intervals, paired scores, equivalence."""
