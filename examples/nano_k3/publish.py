"""Writing the trained parameters as a checkpoint in Kimi-K3's form: its names, dtypes, order, files.

``python -m examples.nano_k3.publish SHARDS KIT SOURCES OUT`` puts a checkpoint together from the shards, index and
``training.json`` that came back from the training machine, the tokenizer in KIT, and the list of texts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from examples.nano_k3.model import TEXT, Parameters
from examples.nano_k3.shape import SHAPE, config
from examples.shaped.auxiliary import to_json
from examples.shaped.contents import Spec, content
from examples.shaped.kimi_k3 import K3Shape, layer_specs, projector_specs, top_specs, vision_specs
from examples.shaped.shards import Made, write_checkpoint
from truecast.casts.bf16_to_mxfp4 import quantize
from truecast.checkpoint.source import open_checkpoint

SHARD_BYTES = 15 << 20
"""No shard is larger."""

TOKENIZER_FILES = ("tiktoken.model", "tokenizer_config.json")


def publish(out: Path, shape: K3Shape, parameters: Parameters, vocabulary: Path) -> Made:
    """Write the checkpoint into the new folder ``out``; what was there before is replaced.

    ``vocabulary`` is the folder of the tokenizer's files. The vision tower is made up: nothing trained it.
    """
    partial_out = out.with_name(out.name + ".partial")
    shutil.rmtree(partial_out, ignore_errors=True)
    cpu = {name: value.detach().float().cpu() for name, value in parameters.items()}
    files = small_files(shape, vocabulary)
    made = write_checkpoint(partial_out, shards(shape), files, metadata={}, fill=partial(stored, cpu))
    shutil.rmtree(out, ignore_errors=True)
    partial_out.rename(out)
    return made


def small_files(shape: K3Shape, vocabulary: Path) -> dict[str, bytes]:
    """Configuration and tokenizer: file name -> content."""
    document = config(shape)
    document.pop("auto_map")  # there is no code beside these weights
    tokens = {name: document[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    files = {"config.json": to_json(document), "generation_config.json": to_json(tokens)}
    return files | {name: (vocabulary / name).read_bytes() for name in TOKENIZER_FILES}


def shards(shape: K3Shape) -> dict[str, list[Spec]]:
    """Shard name -> tensors. Layers stay whole and in order, as many in a shard as fit; the rest goes where there is room."""
    filled: list[list[Spec]] = []
    for layer in range(shape.layers):
        run = list(layer_specs(shape, layer))
        if not filled or _size(filled[-1]) + _size(run) > SHARD_BYTES:
            filled.append([])
        filled[-1] += run
    for spec in [*top_specs(shape), *vision_specs(shape), *projector_specs(shape)]:
        room = next((held for held in filled if _size(held) + _size([spec]) <= SHARD_BYTES), None)
        if room is None:
            filled.append(room := [])
        room.append(spec)
    return {f"model-{n:05d}-of-{len(filled):06d}.safetensors": specs for n, specs in enumerate(filled, 1)}


def _size(specs: Sequence[Spec]) -> int:
    """Bytes that tensors take in a shard, with their places in its header."""
    return sum(spec.nbytes + 200 for spec in specs)


def stored(parameters: Parameters, spec: Spec) -> Iterable[memoryview]:
    """The bytes of one tensor."""
    if not spec.name.startswith(TEXT):
        return content(spec, seed=0)
    if ".experts." in spec.name:
        return [memoryview(_expert(parameters, spec.name))]
    value = parameters[spec.name]
    if spec.name.endswith("A_log"):  # longer on disk than there are heads, with zeros behind
        value = torch.nn.functional.pad(value, (0, spec.shape[0] - value.shape[0]))
    if spec.dtype == "BF16":
        return [memoryview(value.bfloat16().contiguous().view(torch.int16).numpy().tobytes())]
    assert spec.dtype == "F32"
    return [memoryview(value.contiguous().numpy().tobytes())]


def _expert(parameters: Parameters, name: str) -> bytes:
    """Codes or scales of one expert's matrix: ``...experts.E.w1.weight_packed``."""
    prefix, _, rest = name.partition(".experts.")
    expert, matrix, part = rest.split(".")
    packed, scales = quantize(np.ascontiguousarray(parameters[f"{prefix}.experts.{matrix}"][int(expert)].numpy()))
    return (packed if part == "weight_packed" else scales).tobytes()


def card(results: dict[str, object], sources: dict[str, dict[str, object]]) -> str:
    """README.md of the checkpoint."""
    rows = "\n".join(
        f"| {name} | {', '.join(map(str, s['packages']))} | {s['licence']} | {int(str(s['characters'])) / 1e6:.1f} |"  # type: ignore[call-overload]
        for name, s in sources.items()
    )
    return f"""\
---
license: apache-2.0
model_name: nano-K3
pipeline_tag: text-generation
---

# nano-K3

A small language model of Kimi-K3's architecture, trained for tests of tools that read, recast and serve such
checkpoints. 5 layers (KDA in 1 to 3; gated NoPE MLA in 4 and 5), AttnRes blocks of 2, latent mixture of 16
experts of which 4 are used, routed experts in MXFP4 since the first step of training (the OCP rule, straight-through
gradients). Names, dtypes, order and files are those of Kimi-K3. The vision tower is made up and untrained.

It can add numbers of up to three digits, multiply two digits by one, repeat an identifier, and call one tool, in
Kimi-K3's chat format at three efforts of thinking or without. It knows nothing else.

## Results

```json
{json.dumps(results, indent=1)}
```

## Text

| source | packages | licence | million characters |
|---|---|---|---|
{rows}

One document in 60 of the text and one content in 20 of the dialogues were held out. The dialogues are made by
`examples/nano_k3/tasks.py`. Weights: Apache-2.0, like the repository. How to make it again: `examples/nano_k3/README.md`.
"""


def assemble(trained: Path, kit: Path, sources: Path, out: Path) -> Made:
    """Put the checkpoint together from the shards that came back, laid out anew. See the module."""
    checkpoint = open_checkpoint(trained)

    def fill(spec: Spec) -> Iterable[memoryview]:
        info = checkpoint.tensors[spec.name]
        assert (info.dtype, info.shape) == (spec.dtype, tuple(spec.shape)), info.where
        with (trained / info.file).open("rb") as file:
            file.seek(info.start)
            yield memoryview(file.read(info.nbytes))

    results = json.loads((trained / "training.json").read_text())["results"]
    results.get("dialogues", {}).pop("faults", None)
    files = small_files(SHAPE, kit) | {"README.md": card(results, json.loads(sources.read_text())).encode()}
    return write_checkpoint(out, shards(SHAPE), files, metadata={}, fill=fill)


def main() -> int:
    """Put the checkpoint together."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.publish", description=__doc__)
    parser.add_argument("shards", type=Path, help="folder with model-*.safetensors, the index and training.json")
    parser.add_argument("kit", type=Path, help="folder with the tokenizer's files")
    parser.add_argument("sources", type=Path, help="sources.json, as the text program wrote it")
    parser.add_argument("out", type=Path, help="new folder")
    given = parser.parse_args()
    print(f"{given.out}: {assemble(given.shards, given.kit, given.sources, given.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
