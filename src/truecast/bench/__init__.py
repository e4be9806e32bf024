"""Load runs against a serving deployment: AIPerf sends, this room reads its records; and the comparison of two."""
