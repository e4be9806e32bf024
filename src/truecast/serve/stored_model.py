"""What a deployment has to know of a checkpoint, from headers and config.json alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from truecast.checkpoint.source import Checkpoint
from truecast.errors import InputError
from truecast.families import find_family
from truecast.layouts import LAYOUTS, format_of
from truecast.layouts.base import Matrix
from truecast.layouts.recognise import recognise
from truecast.serve.parallel import Module, Parallel, legal_parallel
from truecast.serve.request_memory import RequestMemory, request_memory
from truecast.serve.weights import Weights, weights_of

LARGEST = 1 << 53
"""No count of a model is larger; floats hold whole numbers up to there."""

PLAIN = ("bf16", "bf16")
"""Format and dialect of a checkpoint without quantized matrices."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A checkpoint as it would be served. ``text`` is the text model's part of ``config``; counts are 0 if not stated.

    ``problems``: packed tensors and scales that fit no layout, such as an expert without its scale.
    ``remote_code``: Python files that config.json names to be run; truecast runs none of it. ``packed``: matrices of the
    format; ``with_input_scale``: those of them that have a stored activation scale.
    """

    location: str
    name: str
    family: str
    architecture: str
    format: str
    dialect: str
    config: Mapping[str, Any] = field(repr=False)
    text: Mapping[str, Any] = field(repr=False)
    weights: Weights
    parallel: Parallel
    request: RequestMemory | None
    problems: tuple[InputError, ...] = ()
    remote_code: tuple[str, ...] = ()
    packed: int = 0
    with_input_scale: int = 0

    @property
    def activation(self) -> str:
        """``hidden_act`` of config.json; SiLU if it says nothing."""
        return str(self.text.get("hidden_act", "silu"))

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self._count("num_hidden_layers")

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self._count("num_attention_heads")

    @property
    def experts(self) -> int:
        """Routed experts of a layer, 0 for a dense model."""
        names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
        return next((count for name in names if (count := self._count(name))), 0)

    @property
    def experts_per_token(self) -> int:
        """Routed experts that a token visits."""
        names = ("num_experts_per_token", "num_experts_per_tok", "moe_top_k")
        return next((count for name in names if (count := self._count(name))), 0)

    @property
    def context(self) -> int:
        """Tokens that the model's positions reach; 0 if not stated."""
        return self._count("max_position_embeddings")

    def _count(self, key: str) -> int:
        value = self.text.get(key)
        return value if type(value) is int and value > 0 else 0


def stored_model(source: Checkpoint) -> StoredModel:
    """Read it. Raises: InputError if no config.json says what the model is, or a number in it is of no model's size."""
    if not source.config:
        raise InputError("no config.json: it is not known what model this is", where=source.location)
    if beyond := next(_beyond(source.config, ""), None):
        raise InputError(
            f"config.json: {beyond[:100]} is a larger number than any model has",
            where=source.location,
            fix="do not trust this checkpoint",
        )
    problems: list[InputError] = []
    contents = recognise(source.tensors, problems.append)
    text = source.config.get("text_config")
    text = text if isinstance(text, dict) else source.config
    family = find_family(source.config, source.tensors).name
    form, dialect = _form(contents.matrices.values())
    packed = [m for m in contents.matrices.values() if format_of(m) == form]
    heads = text.get("num_attention_heads")
    modules = [Module(m.name, m.rows, m.cols, format_of(m)) for m in contents.matrices.values()]
    return StoredModel(
        location=source.location,
        name=source.location.rstrip("/").rpartition("/")[2],
        family=family,
        architecture=_architecture(source.config),
        format=form,
        dialect=dialect,
        config=source.config,
        text=text,
        weights=weights_of(((t.name, t.shape, t.nbytes) for t in source.tensors.values()), family),
        parallel=legal_parallel(modules, form, dialect, heads if type(heads) is int and heads > 0 else None),
        request=request_memory(text),
        problems=tuple(problems),
        remote_code=_remote_code(source.config),
        packed=len(packed),
        with_input_scale=sum(m.input_scale is not None for m in packed),
    )


def _beyond(value: Any, name: str) -> Iterator[str]:
    """Names of numbers beyond :data:`LARGEST`. The reader of config.json bounds how deep it is nested."""
    if isinstance(value, int) and abs(value) > LARGEST:
        yield name
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _beyond(inner, f"{name}.{key}".strip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _beyond(inner, name)


def _form(matrices: Any) -> tuple[str, str]:
    """Of most elements; FP8 modules beside packed ones are not the form of the model, however many."""
    every: list[Matrix] = list(matrices)
    packed = [m for m in every if format_of(m) != "fp8"] or every
    elements = Counter[str]()
    for matrix in packed:
        elements[matrix.layout] += matrix.rows * matrix.cols
    if not elements:
        return PLAIN
    layout = LAYOUTS[elements.most_common(1)[0][0]]
    return layout.FORMAT, layout.DIALECT


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _remote_code(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Files that ``auto_map`` names, also those of other repositories (``owner/name--file``)."""
    mapped = config.get("auto_map")
    if not isinstance(mapped, Mapping):
        return ()
    named = [v for value in mapped.values() for v in (value if isinstance(value, list) else [value])]
    return tuple(sorted({f"{v.rpartition('.')[0]}.py" for v in named if isinstance(v, str) and "." in v}))
