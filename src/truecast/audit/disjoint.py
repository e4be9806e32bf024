"""Documents that a candidate was calibrated on tell nothing of others: an audit refuses them."""

from __future__ import annotations

from truecast.audit.corpus import Corpus
from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.layouts.calibrated_on import calibrated_on
from truecast.layouts.calibration import document_sha256

_SHOWN = 3


def check_disjoint(candidate: Checkpoint, corpus: Corpus) -> None:
    """Documents are told apart by their token ids, whatever they are called.

    Raises: InputError where the candidate's manifest says that it, or what it was converted from, was calibrated on a
    document of ``corpus``, or that it was calibrated but not on what.
    """
    used = calibrated_on(candidate)
    if not used:
        return
    shared = [d.id for d in corpus.documents if document_sha256(d.tokens.tolist()) in used]
    if shared:
        names = ", ".join(repr(name) for name in shared[:_SHOWN]) + (", ..." if len(shared) > _SHOWN else "")
        raise InputError(
            f"{candidate.location} was calibrated on {len(shared)} of these {len(corpus.documents)} documents: {names}",
            where=corpus.location,
            fix="audit on other documents",
        )
