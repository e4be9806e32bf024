"""Every check has a ground that triggers it and one that passes, on each released SGLang, and a line in the docs."""

from __future__ import annotations

import pytest

from tests.serve.doctor.cases import CASES, World, finding
from tests.serve.doctor.conftest import MakeSite
from truecast.serve.doctor import (
    arguments,
    checkpoint,
    context_parallel,
    faults,
    kernels,
    moe,
    planned,
    speculation,
    versions,
)
from truecast.serve.doctor.catalogue import CHECKS
from truecast.serve.stored_model import StoredModel

SUBJECTS = (planned, versions, kernels, faults, checkpoint, moe, context_parallel, speculation, arguments)


def test_every_check_has_its_two_grounds() -> None:
    assert set(CASES) == {check.id for subject in SUBJECTS for check in subject.CHECKS}


def test_ids_are_unique_and_every_check_has_a_source() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(check.sources and check.title for check in CHECKS)


@pytest.mark.parametrize("check", CASES)
def test_it_is_triggered(check: str, version: str, make_site: MakeSite, small_k3: StoredModel) -> None:
    case = CASES[check]
    found = finding(case.trigger(World(version, make_site, small_k3)), check)
    wanted = case.status if not case.only or version in case.only else "PASS"
    assert found.status == wanted, found
    assert found.evidence and (found.remedy or wanted == "PASS")


@pytest.mark.parametrize("check", CASES)
def test_it_passes(check: str, version: str, make_site: MakeSite, small_k3: StoredModel) -> None:
    found = finding(CASES[check].passing(World(version, make_site, small_k3)), check)
    assert found.status == "PASS", found
    assert found.evidence and not found.remedy
