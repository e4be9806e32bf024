"""An SGLang in a folder, read as files: versions, pins, plug-ins, arguments, variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.doctor.conftest import MakeSite, make_site, version
from truecast.errors import UsageError
from truecast.serve.installed import MAX_SOURCE, find_installation, flags, read_text, variables
from truecast.serve.server_flags import read_flags

__all__ = ["make_site", "version"]


def test_distributions_are_known_by_their_normal_name(make_site: MakeSite) -> None:
    site = make_site().distribution("Flash_Infer.Python", "1.0", ("torch==2.0", "numpy>=1", "a[b]==3 ; extra == 'c'"))
    found = site.plugin().find()
    assert found.version == "0.5.20" and found.versions["flash-infer-python"] == "1.0"
    assert found.pins["flash-infer-python"] == {"torch": "2.0"}
    assert found.plugins == {"truecast": "truecast.engines.sglang.plugin:register"}
    assert found.path("sglang", "srt") and found.path("torch") is None


def test_other_ways_to_name_the_folder(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    packages = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    packages.parent.mkdir(parents=True)
    packages.symlink_to(site.root)
    for folder in (site.root, site.root / "sglang", tmp_path / "venv"):
        found = find_installation(folder)
        assert found is not None and found.version == "0.5.20"
    assert find_installation(tmp_path) is None
    with pytest.raises(UsageError, match="is no folder"):
        find_installation(tmp_path / "nowhere")


def test_an_editable_installation_is_followed(make_site: MakeSite, tmp_path: Path) -> None:
    source = tmp_path / "my source" / "python"
    source.mkdir(parents=True)
    (source / "sglang").symlink_to(make_site().root / "sglang")
    site = tmp_path / "site"
    info = site / "sglang-0.5.20.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.20\n")
    (info / "direct_url.json").write_text(json.dumps({"url": source.parent.as_uri(), "dir_info": {"editable": True}}))
    found = find_installation(site)
    assert found is not None and found.root == source and found.version == "0.5.20"
    (info / "direct_url.json").write_text("[1, 2")
    assert find_installation(site) is None


def test_the_running_environment(make_site: MakeSite) -> None:
    code = (
        "from truecast.serve.installed import find_installation as f; i = f();"
        "import sys; print(i and i.version, 'sglang' in sys.modules, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", str(make_site().root)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5.20", "False", "False"]


def test_server_arguments_of_each_release(version: str, make_site: MakeSite) -> None:
    known = flags(make_site(version).find())
    assert len(known) > 450
    assert known["--tensor-parallel-size"] is known["--tp-size"] and known["--tp-size"].name == "--tp-size"
    assert known["--model"].name == "--model-path" and known["--reasoning-parser"].takes_value
    assert not known["--disable-radix-cache"].takes_value and known["--disable-radix-cache"].default == "False"
    assert "marlin" in (known["--moe-runner-backend"].choices or ()) and known["--moe-runner-backend"].default == "auto"
    assert known["--mamba-ssm-dtype"].choices == ("float32", "bfloat16", "float16")
    assert ("--speculative-draft-kv-cache-dtype" in known) == (version != "0.5.17")
    assert not known["--trust-remote-code"].takes_value and "--truthful" not in known


def test_arguments_in_every_form_of_source() -> None:
    known = read_flags(
        [
            "CHOICES = ['one', 'two']\nOTHER = CHOICES",
            "class Args:\n"
            "    plain: A[int, 'help'] = 3\n"
            "    chosen: A[Optional[str], Arg(help='x', choices=OTHER, aliases=['--also'])] = None\n"
            "    literal: A[Optional[Literal['a', 'b']], 'help'] = 'a'\n"
            "    switch: A[Optional[bool], 'help'] = None\n"
            "    both: A[bool, Arg(help='x', action=argparse.BooleanOptionalAction)] = True\n"
            "    hidden: A[int, Arg(help='x', no_cli=True)] = 0\n"
            "    silent: A[int, NS('deep')] = 0\n"
            "    renamed: A[int, Arg(help='x', cli_name='--named')] = 0\n"
            "    untold: int = 0\n"
            "parser.add_argument('--old', action=DeprecatedStoreTrueAction)\n"
            "parser.add_argument('--made', choices=['auto'] + rest())\n",
        ]
    )
    assert known["--plain"].default == "3" and known["--plain"].takes_value
    assert known["--also"].choices == ("one", "two") and known["--literal"].choices == ("a", "b")
    assert not known["--switch"].takes_value and known["--no-both"].name == "--both"
    assert not known["--old"].takes_value and known["--made"].choices is None and known["--named"].takes_value
    assert not {"--hidden", "--silent", "--renamed", "--untold"} & set(known)


def test_variables_of_each_release(version: str, make_site: MakeSite) -> None:
    known = variables(make_site(version).find())
    assert {"SGLANG_HOST_IP", "SGLANG_RAGGED_VERIFY_MODE", "SGLANG_PLUGINS"} <= known
    assert not {"SGLANG_EXPERT_LOAD_FILTER", "SGLANG_MARLIN_EP_BLOCK"} & known


def test_text_is_read_in_bounds(tmp_path: Path) -> None:
    long = tmp_path / "long"
    with long.open("wb") as file:
        file.truncate(MAX_SOURCE + 1)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name, why in {"long": "16 MiB", "latin": "UTF-8", "loop": "loop", "pipe": "no file", "gone": "no file"}.items():
        with pytest.raises(LookupError, match=why) as raised:
            read_text(tmp_path / name)
        assert name in str(raised.value)
