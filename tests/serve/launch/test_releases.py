"""Every flag of a plan exists in the SGLang that it is for, in the released wheels themselves."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.engines.conftest import SGLANG_VERSIONS, wheel_file
from tests.serve.launch.conftest import DSPARK, Launch
from truecast.errors import InputError, UsageError
from truecast.serve.installed import Installation, find_installation, flags
from truecast.serve.launch.experts import SITU_ON_TRTLLM
from truecast.serve.launch.parsers import PARSERS
from truecast.serve.launch.versions import SINCE, version_numbers

_WANTED = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/", "sglang/version.py", ".dist-info/METADATA")


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installation]:
    """What of each release says its arguments, and its parsers."""
    found = {}
    for version in SGLANG_VERSIONS:
        root = tmp_path_factory.mktemp("sglang")
        with zipfile.ZipFile(wheel_file("sglang", version)) as wheel:
            wheel.extractall(root, [n for n in wheel.namelist() if any(part in n for part in (*_WANTED, "parser"))])
        installation = find_installation(root)
        assert installation is not None and installation.version == version
        found[version] = installation
    return found


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
@pytest.mark.parametrize("profile", ["throughput", "latency"])
@pytest.mark.parametrize(
    ("form", "topology"),
    [("mxfp4", "gh200:8x4"), ("w4afp8", "gh200:8x4"), ("nvfp4", "b200:2x8"), ("nvfp4_inputs", "b200:2x8"),
     ("mxfp4", "b300:1x8"), ("nvfp4", "h200:2x8")],
)  # fmt: skip
def test_flags_and_choices(
    launch: Launch, unpacked: dict[str, Installation], version: str, profile: str, form: str, topology: str
) -> None:
    known = flags(unpacked[version])
    for draft in (None, DSPARK):
        plan = launch(form, topology, version=version, profile=profile, draft=draft, trust_remote_code=True)
        for setting in plan.arguments:
            flag = known[setting.name]
            assert flag.name == setting.name  # its main spelling
            assert flag.takes_value == (setting.value is not None)
            assert flag.choices is None or setting.value in flag.choices


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_what_not_every_release_has_is_missing_where_it_is_said_to_be(
    unpacked: dict[str, Installation], version: str
) -> None:
    for name, first in SINCE.items():
        assert (name in flags(unpacked[version])) == (version_numbers(version) >= first)


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_parsers_are_registered(unpacked: dict[str, Installation], version: str) -> None:
    root = unpacked[version].root / "sglang" / "srt"
    reasoning = (root / "parser" / "reasoning_parser.py").read_text()
    tools = (root / "function_call" / "function_call_parser.py").read_text()
    for first, second in PARSERS.values():
        assert f'"{first}":' in reasoning and f'"{second}":' in tools


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_situ_reaches_the_fp4_fast_path_where_it_is_said_to(version: str) -> None:
    with zipfile.ZipFile(wheel_file("sglang", version)) as wheel:
        method = wheel.read("sglang/srt/layers/quantization/modelopt_quant.py").decode()
        runner = wheel.read("sglang/srt/layers/moe/moe_runner/flashinfer_trtllm.py").decode()
    supported = re.search(r"_SUPPORTED_FP4_ACTIVATIONS = (\{.*?\})", runner)
    assert supported is not None
    passes = (
        re.search(r'activation == "situ"\s+and \(?\s*moe_runner_backend\.is_flashinfer_trtllm\(\)', method) is not None
    )
    reaches = passes and '"situ"' in supported[1]
    assert reaches == (version_numbers(version) >= SITU_ON_TRTLLM)


def test_an_installation_says_its_version_and_its_flags(
    launch: Launch, unpacked: dict[str, Installation], tmp_path: Path
) -> None:
    plan = launch("mxfp4", "gh200:8x4", installation=unpacked["0.5.17"], draft=DSPARK)
    assert plan.version == "0.5.17"
    assert "--speculative-draft-kv-cache-dtype" not in {setting.name for setting in plan.arguments}

    folder = tmp_path / "sglang" / "srt"
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "version.py").write_text('__version__ = "0.5.20"\n')
    (folder / "server_args.py").write_text('class A:\n    model_path: A[str, "path"]\n')
    broken = find_installation(tmp_path)
    with pytest.raises(InputError, match="has no --moe-runner-backend"):
        launch("mxfp4", "gh200:8x4", installation=broken)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.6.0", "1.0", "latest", "", "0.5.20; rm -rf /"])
def test_a_release_that_is_not_known(launch: Launch, version: str) -> None:
    with pytest.raises(UsageError, match="is not known here"):
        launch("mxfp4", "gh200:8x4", version=version)


def test_a_post_release_is_its_release() -> None:
    assert version_numbers("0.5.20.post1") == version_numbers("v0.5.20") == (0, 5, 20)
