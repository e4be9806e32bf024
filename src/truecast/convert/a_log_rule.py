"""The loading rule that is added to a copy of Kimi-K3's modelling code: ``A_log`` stays at ``num_heads``.

The file is read as a syntax tree (:mod:`truecast.families.delta_attention`) and never run. The rule is a block of its own
after the file's last byte, so that whoever removes it has the source's bytes again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from truecast.checkpoint.source import Checkpoint
from truecast.families.delta_attention import FILE, MAX_BYTES, judge, knows_heads, longer

RULE = "a_log/1"
BLOCK = """

# ---- added by truecast: a_log/1 ----
# Checkpoints store A_log padded with zeros beyond num_heads. The parameter stays at num_heads: what is loaded is narrowed
# to it, and a tail that is not exactly zero is an error. Three ways lead in. torch, and with it transformers 4, loads
# through _load_from_state_dict. transformers 5 reads the parameter, which waits on the meta device, compares shapes, and
# registers what the file holds: so a waiting A_log, when asked, equals any longer shape. accelerate compares in the same
# way when it fetches from disk, and stores past both, so that a longer A_log is narrowed when it is read.
import torch as _truecast_torch


class _TruecastShape:
    def __init__(self, heads):
        self.heads = heads

    def __eq__(self, shape):
        return len(shape) == 1 and shape[0] >= self.heads

    def __hash__(self):
        return hash((self.heads,))

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return (self.heads,)[index]

    def __repr__(self):
        return f"[{self.heads} or more, zero beyond]"

    def numel(self):
        return self.heads


class _TruecastWaiting(_truecast_torch.nn.Parameter):
    @property
    def shape(self):
        return _TruecastShape(self.size(0))


def _truecast_narrow(self, value):
    heads = self._truecast_heads
    if value.dim() != 1 or value.size(0) <= heads:
        return value
    if not value.is_meta and value[heads:].count_nonzero():
        raise ValueError(
            f"A_log of layer {getattr(self, 'layer_idx', '?')} has {value.size(0)} values for {heads} heads, and"
            " those beyond are not all zero: the checkpoint is damaged, or not one of this model"
        )
    return value[:heads].clone()


def _truecast_load(self, state_dict, prefix, *args, **kwargs):
    if prefix + "A_log" in state_dict:
        state_dict[prefix + "A_log"] = _truecast_narrow(self, state_dict[prefix + "A_log"])
    super(KimiDeltaAttention, self)._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _truecast_register(self, name, param):
    if name == "A_log" and param is not None and param.dim() == 1:
        if self._parameters.get(name) is None:  # as the class builds it, with no values that matter
            self._truecast_heads = min(param.size(0), getattr(self, "num_heads", param.size(0)))
            param.data = param.data[: self._truecast_heads].clone()
        param.data = _truecast_narrow(self, param.data)
    super(KimiDeltaAttention, self).register_parameter(name, param)


def _truecast_read(self):
    param = self._parameters.get("A_log")
    if param is None:
        raise AttributeError("A_log")
    wanted = _TruecastWaiting if param.is_meta else _truecast_torch.nn.Parameter
    if param.dim() == 1 and (type(param) is not wanted or param.size(0) > self._truecast_heads):
        param = self._parameters["A_log"] = wanted(_truecast_narrow(self, param.data), param.requires_grad)
    return param


KimiDeltaAttention._load_from_state_dict = _truecast_load
KimiDeltaAttention.register_parameter = _truecast_register
KimiDeltaAttention.A_log = property(_truecast_read)
# ---- end of what truecast added ----
"""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file of modelling code that is written with the rule. ``before``: sha256 of the source's bytes."""

    before: str
    content: bytes


def code_changes(source: Checkpoint) -> tuple[dict[str, CodeChange], list[str]]:
    """What becomes of a source's copies of the file, and what a reader has to know of those that are left.

    There is a change only where some ``A_log`` is longer than the config's heads, and the file has no rule for it.
    """
    changes: dict[str, CodeChange] = {}
    notes: list[str] = []
    if not longer(source.config, {t.name: t.shape for t in source.tensors.values()}):
        return changes, notes
    for name, size in source.auxiliary.items():
        if PurePosixPath(name).name != FILE:
            continue
        content = source.read_small(name, MAX_BYTES) if size <= MAX_BYTES else b""
        verdict = judge(content) if content else "unknown"
        if verdict == "oversized" and not knows_heads(content):
            verdict = "unknown"  # the rule would not know to what length
        if verdict in ("unfixed", "oversized"):
            changes[name] = CodeChange(hashlib.sha256(content).hexdigest(), content + BLOCK.encode())
            notes.append(f"{name}: a loading rule for A_log was added after its last byte; --no-fix-code leaves it out")
        elif verdict == "unknown":
            notes.append(f"{name} was left as it is: what it does with A_log cannot be told from its text")
    return changes, notes
