"""Load runs: what is measured at a serving deployment, and the comparison of two."""
