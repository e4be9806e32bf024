from __future__ import annotations

import pickle

from truecast.errors import InputError, WorkerLostError


def test_errors_cross_processes_whole() -> None:
    error = InputError("is short", where="a in b", fix="again", code="shard-truncated", tensor="a")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), vars(copy), str(copy)) == (InputError, vars(error), "a in b: is short; again")
    assert type(pickle.loads(pickle.dumps(WorkerLostError("was killed")))) is WorkerLostError
