"""Load runs against a serving deployment: AIPerf sends the requests, this room reads what it recorded."""
