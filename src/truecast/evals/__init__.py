"""Task runs: asked, recorded and scored; and two of them compared.

name, data ───> definition  problems, prompt, sampling and rules of a task: tasks/, found by tasks/find.py
definition ───> answers     inspect-ai asks (running.py, gate.py), answers.py reads its samples, journal.py keeps each
answers ──────> record      evaluate.py, with scores.py: every share with its error; record.py reads it again, from anybody
two records ──> difference  pairing.py pairs the problems, compare.py

``evaluate.evaluate`` is the whole way from definition to record.
"""
