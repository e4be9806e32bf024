"""The SGLang plug-in: faults of SGLang that matter for recast checkpoints, mended in an unmodified installation.

The way: :mod:`.plugin` registers one hook, on the loading of a model; :mod:`.start` then takes a
:class:`~.situation.Situation` (which checkpoint, which arguments, which GPU), asks each of :mod:`.fixes` whether this run
needs it, applies those through SGLang's own hook registry, verifies that each took, runs its self-test and prints one table.
A run that needs no fix is left as it is, without a hook anywhere but on loading.
"""
