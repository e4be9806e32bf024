"""Load runs against a serving deployment: AIPerf sends, this room reads its records; and the comparison of two.

prompts, server ──> load      prompts.py, server.py; one run of AIPerf: aiperf.py (its processes: guard.py, processes.py)
load ─────────────> requests  each with the times of its tokens and their counts: stream.py, usage.py
requests ─────────> figures   window.py (the steady window), figures.py; beside them the client and the server: monitor.py
runs of a level ──> document  spread.py (intervals), sound.py (do they stand?), replicas.py: document.py; kept by keep.py
two documents ────> ratios    compare.py

``bench.bench`` is the whole way, level by level.
"""
