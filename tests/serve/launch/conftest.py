"""Kimi-K3 of the released size in each format, from what a conversion would write.

The headers of four full-size layers stand for all: a dense one, two alike with KDA, one with MLA. What lies in a layer
counts as often as the model has such layers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pytest

from examples.shaped import kimi_k3
from examples.shaped.kimi_k3_files import small_files
from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.convert.select import Target, select
from truecast.layouts import format_of
from truecast.serve.launch.case import Draft
from truecast.serve.launch.plan import LaunchPlan, plan_launch
from truecast.serve.parallel import Module, legal_parallel
from truecast.serve.request_memory import request_memory
from truecast.serve.stored_model import StoredModel, stored_model
from truecast.serve.topology import read_topology
from truecast.serve.weights import weights_of

DSPARK = Draft("RadixArk/Kimi-K3-DSpark")
_TIMES = {0: 1, 1: 68, 2: 0, 3: 24}
"""How many layers of the model are like each of the four."""

Tensors = Iterable[tuple[str, tuple[int, ...], int]]


@dataclass
class Released:
    """Kimi-K3 in a format, as if it lay in ``/data/NAME``."""

    layers: Checkpoint

    @cached_property
    def mxfp4(self) -> StoredModel:
        """As it was released."""
        model = stored_model(self.layers)
        config = json.loads(small_files(kimi_k3.FULL)["config.json"])
        tensors = ((t.name, t.shape, t.nbytes) for t in self.layers.tensors.values())
        return replace(
            model,
            location="/data/Kimi-K3",
            name="Kimi-K3",
            config=config,
            text=config["text_config"],
            request=request_memory(config["text_config"]),
            weights=weights_of(_all_layers(tensors), model.family),
        )

    @cached_property
    def w4afp8(self) -> StoredModel:
        """INT4 experts, FP8 attention."""
        return self._converted(Target("w4afp8"))

    @cached_property
    def nvfp4(self) -> StoredModel:
        """Without input scales."""
        return self._converted(Target("nvfp4"))

    @cached_property
    def nvfp4_inputs(self) -> StoredModel:
        """With input scales."""
        return self._converted(Target("nvfp4", activations=True))

    def _converted(self, target: Target) -> StoredModel:
        found = select(self.layers, target)
        layout = found.layout
        modules = [Module(m.name, m.rows, m.cols, layout.FORMAT) for m in found.cast]
        modules += [Module(m.name, m.rows, m.cols, format_of(m)) for m in found.kept]
        modules += [Module(t.name.removesuffix(".weight"), t.shape[0], t.shape[1], "fp8") for t in found.fp8]
        block = layout.quantization_config([], found.activations)
        name = f"Kimi-K3-{layout.FORMAT.upper()}"
        text = {key: value for key, value in self.mxfp4.text.items() if key != "quantization_config"}
        return replace(
            self.mxfp4,
            location=f"/data/{name}",
            name=name,
            format=layout.FORMAT,
            dialect=layout.DIALECT,
            config={**self.mxfp4.config, "text_config": text, "quantization_config": block},
            text=text,
            weights=weights_of(_all_layers(found.written()), self.mxfp4.family),
            with_input_scale=self.mxfp4.packed if found.activations or layout.FORMAT == "w4afp8" else 0,
            parallel=legal_parallel(modules, layout.FORMAT, layout.DIALECT, self.mxfp4.heads),
        )


def _all_layers(tensors: Tensors) -> Iterator[tuple[str, tuple[int, ...], int]]:
    for name, shape, size in tensors:
        layer = re.search(r"\.layers\.(\d+)\.", name)
        yield name, shape, size * (_TIMES[int(layer[1])] if layer else 1)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    """Four full-size layers, and all that follows from them."""
    folder = tmp_path_factory.mktemp("k3") / "Kimi-K3"
    kimi_k3.make(folder, shape=replace(kimi_k3.FULL, layers=4), sparse=True)
    return Released(open_checkpoint(folder))


Launch = Callable[..., LaunchPlan]


@pytest.fixture(scope="session")
def launch(released: Released) -> Launch:
    """``launch("mxfp4", "gh200:8x4", **options)``: the plan, for SGLang 0.5.20 unless said."""

    def planned(form: str, topology: str, **options: object) -> LaunchPlan:
        options.setdefault("version", "0.5.20")
        return plan_launch(getattr(released, form), read_topology(topology), **options)  # type: ignore[arg-type]

    return planned
