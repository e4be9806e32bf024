"""Values of environment variables, by the types that each released SGLang gives them."""

from __future__ import annotations

import re

import pytest

from tests.serve.doctor.cases import finding
from tests.serve.doctor.conftest import MakeSite, ground
from truecast.serve.doctor.arguments import COUNTS
from truecast.serve.doctor.environment import RAGGED
from truecast.serve.installed import flags
from truecast.serve.server_variables import read_variables, read_words


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("SGLANG_RAGGED_VERIFY_MODE", "foo", "WARN"),
        ("SGLANG_RAGGED_VERIFY_MODE", "compact", "PASS"),
        ("SGLANG_RAGGED_VERIFY_MODE", "$MODE", "PASS"),
        ("SGLANG_IS_IN_CI", "maybe", "WARN"),
        ("SGLANG_IS_IN_CI", "Yes", "PASS"),
        ("SGLANG_HOST_IP", "anything", "PASS"),
        ("NCCL_MIN_NCHANNELS", "many", "WARN"),
        ("NCCL_IB_TIMEOUT", "0x16", "PASS"),
        ("NCCL_ALGO", "Ring", "PASS"),
        ("NCCL_BUFFSIZE", "\x1b[31m" * 100, "WARN"),
    ],
)
def test_a_value(version: str, make_site: MakeSite, name: str, value: str, status: str) -> None:
    found = finding(ground(make_site(version), environment={name: value}), "environment.values")
    assert found.status == status
    assert (name in found.evidence) == (status == "WARN")
    assert "\x1b" not in found.evidence and len(found.evidence) < 200


def test_types_and_words_are_those_of_the_source(version: str, make_site: MakeSite) -> None:
    text = make_site(version).find().sources("sglang.srt.environ")
    kinds = read_variables(text)
    assert set(kinds.values()) == {"int", "float", "bool"} and len(kinds) > 400
    declared = set(re.findall(r"^    (\w+) = EnvBool(?:WithAlias)?\(", text, re.M))
    assert {name for name, kind in kinds.items() if kind == "bool"} == declared
    assert read_words(text) == {"true", "1", "yes", "y", "false", "0", "no", "n"}


def test_a_mode_that_is_none_ends_a_server_with_a_draft(version: str, make_site: MakeSite) -> None:
    given = ground(make_site(version), arguments="--speculative-algorithm DSPARK", environment={RAGGED: "Static"})
    assert finding(given, "environment.values").status == "FAIL"


@pytest.mark.parametrize(
    ("environment", "status"),
    [
        ({"SGLANG_MARLIN_EP_BLOCK": "7"}, "FAIL"),
        ({"TRUECAST_SGLANG": "everything"}, "FAIL"),
        ({"SGLANG_MARLIN_EP_BLOCK": "7", "SGLANG_PLUGINS": "other"}, "PASS"),
        ({"SGLANG_MARLIN_EP_BLOCK": "8"}, "PASS"),
    ],
)
def test_a_setting_of_the_plug_in(version: str, make_site: MakeSite, environment: dict[str, str], status: str) -> None:
    given = ground(make_site(version).plugin(), environment=environment)
    assert finding(given, "environment.values").status == status


def test_each_count_is_a_whole_number_of_this_sglang(version: str, make_site: MakeSite) -> None:
    known = flags(make_site(version).find())
    assert {name for name in COUNTS if name not in known or known[name].number != "int"} == set()
    assert all(known[name].name == name for name in COUNTS)
