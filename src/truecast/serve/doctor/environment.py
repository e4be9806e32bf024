"""Values of environment variables: SGLang's own by the types in its source, the plug-in's, and NCCL's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from truecast.engines.sglang.choice import chosen
from truecast.engines.sglang.fixes import FIXES
from truecast.errors import UsageError
from truecast.serve.doctor.finding import Check, Verdict, failed, passed, skipped, warned
from truecast.serve.doctor.ground import Ground
from truecast.serve.doctor.setting import dspark, no_sglang
from truecast.serve.installed import Installation
from truecast.serve.server_variables import read_members, read_variables, read_words

RAGGED = "SGLANG_RAGGED_VERIFY_MODE"
RAGGED_MODULE, RAGGED_CLASS = "sglang.srt.speculative.ragged_verify", "RaggedVerifyMode"
NCCL_NUMBERS = frozenset(
    {
        "NCCL_BUFFSIZE", "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE", "NCCL_DMABUF_ENABLE", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_DISABLE",
        "NCCL_IB_GID_INDEX", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_TC",
        "NCCL_IB_TIMEOUT", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS",
        "NCCL_MNNVL_ENABLE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_NET_GDR_READ", "NCCL_NSOCKS_PERTHREAD",
        "NCCL_NTHREADS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_PXN_DISABLE", "NCCL_SHM_DISABLE",
        "NCCL_SOCKET_NTHREADS",
    }
)  # fmt: skip
"""Variables whose value is a whole number in NCCL's documentation."""
_C_NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TYPES: Mapping[str, Callable[[str], object]] = {"int": int, "float": float}
_SAID = {"int": "a whole number", "float": "a number"}


def _values(ground: Ground) -> Verdict | list[Verdict]:
    if ground.server is not None and ground.server.environment is None:
        return skipped("the server does not show its environment")
    if said := no_sglang(ground):
        return said
    assert ground.installation is not None
    told = [*_typed(ground, ground.installation), *_ragged(ground, ground.installation), *_nccl(ground)]
    told += _plugin(ground, ground.installation)
    return told or passed("every variable of a known type holds a value of that type")


def _typed(ground: Ground, installation: Installation) -> Iterator[Verdict]:
    text = installation.sources("sglang.srt.environ")
    kinds, words = read_variables(text), read_words(text)
    for name in sorted(ground.environment.keys() & kinds.keys()):
        value, kind = ground.environment[name], kinds[name]
        if "$" in value:
            continue
        if kind == "bool":
            right, said = not words or value.lower() in words, f"one of {', '.join(sorted(words))}"
        else:
            right, said = _reads(_TYPES[kind], value), _SAID[kind]
        if not right:
            yield warned(
                f"{name}={_short(value)} is not {said}: SGLang {installation.version} warns and takes its default",
                f"set it to {said}, or unset it",
            )


def _ragged(ground: Ground, installation: Installation) -> Iterator[Verdict]:
    value = ground.environment.get(RAGGED)
    if value is None or "$" in value:
        return
    try:
        modes = read_members(installation.sources(RAGGED_MODULE), RAGGED_CLASS)
    except LookupError:  # an SGLang without it; environment.known looks for the name
        return
    if modes and value not in modes:
        say = failed if dspark(ground) else warned
        yield say(
            f"{RAGGED}={_short(value)} is none of {', '.join(modes)}: a server with DSPARK ends at it",
            f"set it to one of {', '.join(modes)}, or unset it",
        )


def _nccl(ground: Ground) -> Iterator[Verdict]:
    for name in sorted(NCCL_NUMBERS & ground.environment.keys()):
        value = ground.environment[name]
        if value and "$" not in value and not _C_NUMBER.fullmatch(value.rstrip()):
            yield warned(
                f"{name}={_short(value)} is no whole number, as NCCL documents it", "set it to one, or unset it"
            )


def _plugin(ground: Ground, installation: Installation) -> Iterator[Verdict]:
    only = [name.strip() for name in ground.environment.get("SGLANG_PLUGINS", "truecast").split(",")]
    if "truecast" not in installation.plugins or not ("truecast" in only or only == [""]):
        return
    try:
        chosen(FIXES, ground.environment)
    except UsageError as error:
        yield failed(f"the plug-in stops the server: {error}", "set it as docs/sglang.md says, or unset it")


def _reads(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _short(value: str) -> str:
    """A value may hold anything."""
    return ascii(value[:60])[1:-1] + ("..." if len(value) > 60 else "")


CHECKS = (
    Check(
        "environment.values",
        "every variable that is set holds a value of its type",
        _values,
        ("sglang/srt/environ.py", "sglang/srt/speculative/ragged_verify.py", _DOCS),
    ),
)
