"""nano-K3 in real SGLang servers, with the plug-in, against truecast's own model: ``python -m benchmarks.sglang --help``.

What is needed: SGLang 0.5.17 and what it imports in one folder (``--site``), a GPU, and nothing that is fetched. Each run is
one server; all of them start side by side and score the same token ids.
"""
