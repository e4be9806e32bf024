"""The catalogue of what ``check`` can find: for each id how bad it is, what engines do with it, and what to do.

Engine behaviour was read in SGLang 0.5.20 and vLLM 0.33.0, or is taken from the issue that is named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Rule:
    """How bad a finding is by default, why it matters, and the remedy."""

    severity: str
    why: str
    remedy: str
    shown: int = 20
    """How many of one class of tensors are listed before the rest is only counted."""


_DOWNLOAD = "download the file again and compare its sha256 with the publisher's"
_RECAST = "quantize this matrix again from its source"
_EXCLUDE = "derive the exclude list from the tensors: every module with a plain two-dimensional weight, no other"

FILES = {
    "shard-missing": Rule(
        ERROR,
        "its tensors never reach the model: SGLang and vLLM either stop or leave those weights uninitialised",
        "finish the download",
    ),
    "shard-stray": Rule(
        WARNING,
        "engines that follow the index skip it, those that read every shard in the folder load it too, and stale"
        " weights may win (ggml-org/llama.cpp#7215)",
        "move it out of the folder",
    ),
    "shard-truncated": Rule(
        ERROR,
        "safetensors refuses the file; readers that map it without checking read beyond its end",
        _DOWNLOAD,
    ),
    "header-invalid": Rule(ERROR, "safetensors refuses such a file, and with it every engine", _DOWNLOAD),
    "tensor-duplicate": Rule(
        ERROR,
        "engines load shards in whatever order they come, so it is left to chance which copy stays",
        "remove the stale shard",
    ),
    "index-names-absent-tensor": Rule(
        ERROR, "a reader that asks the index for this tensor fails or leaves it uninitialised", "write the index again"
    ),
    "index-lacks-tensor": Rule(
        ERROR,
        "a reader that goes by the index never sees this tensor (transformers, sharded loaders)",
        "write the index again from the shards' headers",
    ),
    "index-wrong-shard": Rule(
        ERROR, "a reader that goes by the index looks for it in the wrong file", "write the index again"
    ),
    "index-total-size": Rule(
        WARNING,
        "loaders and download tools plan memory and disk by it",
        "set metadata.total_size to the sum of the tensors' bytes",
    ),
    "format-metadata": Rule(
        WARNING,
        "transformers 5.24 never looks at it and loads any (Kimi-K3's shards carry no metadata at all), but 4.x releases"
        " refuse other metadata, and older ones of them fail where there is none (huggingface/safetensors#549)",
        'save with metadata {"format": "pt"}',
    ),
    "offset-unaligned": Rule(
        WARNING,
        "torch cannot view bytes that start between two elements: readers that map the file copy, or fail",
        "write the shard with its header padded and wide dtypes first",
    ),
    "pickle-file": Rule(
        WARNING,
        "unpickling runs code of the file's author; some loaders fall back to it where safetensors files fail",
        "delete it, or leave it out of the download",
    ),
    "remote-code": Rule(
        WARNING,
        "transformers runs the folder's Python files when called with trust_remote_code, and needs that to load it",
        "read that code before you allow it",
    ),
}

CODE = {
    "a-log-oversized": Rule(
        ERROR,
        "an earlier fix of this file: it loads, and the first forward fails, because the kernel views A_log as"
        " [num_heads, 1] (fla/ops/kda/gate.py); SGLang and vLLM do not use the file",
        "convert with this truecast, whose loading rule keeps A_log at num_heads; or take the released file and that rule",
    ),
    "a-log-unloadable": Rule(
        WARNING,
        "from_pretrained stops at the shape of this parameter (transformers 4.56 and 5); SGLang and vLLM do not use the file",
        "convert with this truecast, which adds a loading rule to the copy; or narrow A_log in _load_from_state_dict",
    ),
}

PARTS = {
    "columns-not-multiple": Rule(
        ERROR,
        "a row cannot be cut into whole blocks, so no 4-bit kernel reads it",
        "pad or keep this module unquantized",
    ),
    "scale-missing": Rule(
        ERROR,
        "engines leave a scale that no file supplies uninitialised, without an error: garbage output",
        "download the shard that holds it, or quantize again",
    ),
    "scale-orphan": Rule(ERROR, "the codes that it scales never reach the model", "download the shard that holds them"),
    "scale-shape": Rule(
        ERROR,
        "engines either fail to load it or broadcast it over the wrong blocks (NVIDIA/Model-Optimizer#2038)",
        _RECAST,
    ),
    "global-scale-missing": Rule(
        ERROR,
        "transformers once decoded such experts without it and said nothing (huggingface/transformers#48371); vLLM and"
        " SGLang leave it uninitialised",
        "restore it: nothing else tells this matrix's magnitude",
    ),
    "packed-unknown": Rule(
        ERROR,
        "it looks packed but fits no layout known here, so nothing can be said about it",
        "name the format in an issue",
    ),
    "matrix-duplicate": Rule(
        ERROR, "the same matrix is stored in two layouts: which one an engine loads is chance", "remove one of them"
    ),
    "bank-incomplete": Rule(
        ERROR,
        "SGLang and vLLM allocate the whole bank and leave an absent expert uninitialised: wrong only when it is routed to",
        "restore the missing experts",
    ),
}

SCALES = {
    "scale-nan": Rule(
        ERROR,
        "every weight of the block becomes NaN, and the first token that meets it poisons the whole batch"
        " (NVIDIA/Model-Optimizer#1633)",
        "quantize again with scales clamped to 2^-9..448 before the cast",
    ),
    "scale-zero": Rule(
        ERROR,
        "every weight of the block vanishes (NVIDIA/Model-Optimizer#1382: scales below 2^-9 rounded to zero)",
        "quantize again with scales clamped to at least 2^-9",
    ),
    "scale-negative": Rule(
        ERROR,
        "Blackwell's tensor cores read block scales as unsigned E4M3 and Marlin shifts the sign bit out, software"
        " decoders flip the block's sign: engines disagree",
        "move the sign into the codes",
    ),
    "scale-subnormal": Rule(
        WARNING,
        "below Blackwell (Hopper, Ampere) engines run NVFP4 on Marlin, which with BF16 activations reads such a scale as"
        " next to nothing: the block's weights become zero without a word (SGLang 0.5.17 to 0.5.23; vllm-project/vllm#34577)."
        " Blackwell's own kernels, and Marlin with FP16 activations, read it right",
        "choose a smaller global scale where the block scales leave room below 448, or serve the MXFP4 form there;"
        " --hardware GPU makes it an error where it is one",
    ),
    "matrix-all-zero": Rule(
        WARNING, "a module whose weights are all zero computes nothing: most often a lost or untrained expert", _RECAST
    ),
    "global-scale-invalid": Rule(
        ERROR, "it multiplies (or divides) every weight of the matrix: all become NaN, infinite or negated", _RECAST
    ),
    "global-scale-zero": Rule(ERROR, "as a multiplier it makes every weight zero, as a divisor infinite", _RECAST),
    "global-scale-subnormal": Rule(
        WARNING,
        "GPUs flush float32 subnormals to zero in most kernels, and every weight of the matrix with them",
        "cast again with a global scale of at least 2^-126, moving the difference into the block scales",
    ),
    "global-scale-convention": Rule(
        ERROR,
        "ModelOpt's weight_scale_2 multiplies, compressed-tensors' weight_global_scale divides; read the wrong way round"
        " the output is garbage (modular/modular#6600)",
        "store the reciprocal",
    ),
    "factor-subnormal": Rule(
        WARNING,
        "GPUs flush subnormals to zero in most kernels, and every weight under this scale with them",
        _RECAST,
    ),
    "scale-not-bf16": Rule(
        WARNING,
        "SGLang keeps the group scales of W4AFP8 in BF16: it rounds them when it loads them, and the codes were chosen for"
        " others",
        "store BF16 scales, and codes that are nearest under them",
    ),
    "stored-shape": Rule(
        ERROR,
        "compressed-tensors unpacks the words to this shape: the wrong number of columns, or codes of another width",
        _RECAST,
    ),
    "twins-differ": Rule(
        ERROR,
        "engines fuse these modules and keep one global scale: SGLang's Marlin path and vLLM take the first one's, so the"
        " others come out scaled wrongly (sgl-project/sglang#27588, vllm-project/vllm#54974)",
        "cast again with one global scale over the fused modules",
    ),
    "input-scale-invalid": Rule(
        ERROR,
        "activations are divided by it; vLLM's CUTLASS path aborts on such a value, Marlin does not notice"
        " (vllm-project/vllm#45320)",
        "calibrate again, or write 1.0 for experts that saw no token",
    ),
    "input-scale-missing": Rule(
        ERROR,
        "vLLM leaves an input scale that the files lack uninitialised in W4A4 (vllm-project/vllm#45212); SGLang takes 1.0",
        "write 1.0 where calibration gave none, or declare the checkpoint weight-only",
    ),
    "input-scale-partial": Rule(
        WARNING,
        "SGLang's W4AFP8 takes 1.0 for those that are missing and then the largest of the bank for all its experts: the"
        " calibrated ones count for nothing where they are smaller",
        "calibrate all experts, or write for the others what calibration gave the bank",
    ),
    "input-scale-default": Rule(
        WARNING,
        "SGLang's W4AFP8 then takes 1.0: activations beyond 448 saturate, small ones lose precision",
        "calibrate the activations",
    ),
}

CONFIG = {
    "config-missing": Rule(WARNING, "no engine can build the model without config.json", "copy it from the source"),
    "config-quantization-missing": Rule(
        ERROR,
        "engines take the model for unquantized and fail on the packed shapes",
        "write the quantization_config that belongs to the layout",
    ),
    "config-nested": Rule(
        ERROR,
        "SGLang reads a ModelOpt block at the top level of config.json only, and loads the model as unquantized",
        "move quantization_config out of the nested config to the top level",
    ),
    "config-only-hf-quant": Rule(
        WARNING,
        "SGLang and vLLM fall back to hf_quant_config.json, other readers do not (NVIDIA-NeMo/RL#3615) and take the"
        " model for unquantized",
        "copy the block into config.json as quantization_config",
    ),
    "config-contradiction": Rule(
        ERROR,
        "SGLang and vLLM read config.json and ignore hf_quant_config.json, TensorRT-LLM reads the latter: engines load"
        " different models",
        "write both files from the same facts",
    ),
    "config-method": Rule(
        ERROR,
        "the engine chooses its loader by these keys, and the loader looks for tensors of another layout",
        "write the quantization_config that belongs to the layout",
    ),
    "config-group-size": Rule(
        ERROR,
        "engines allocate the scales by it and fail on the shape, or spread them over the wrong blocks",
        "correct it",
    ),
    "ignored-not-read": Rule(
        WARNING,
        "SGLang 0.5.20's own W4AFP8 never reads the list: it builds every linear module in FP8; Kimi-K3 then stops while it"
        " is built or loaded, and where no such error comes a plain weight is taken without a scale",
        "patch it to read the list: see docs/engines.md",
    ),
    "exclude-key": Rule(
        ERROR,
        "in a top-level ModelOpt block SGLang reads `ignore` and never `exclude_modules`: it takes every module for"
        " quantized; vLLM prefers `ignore` too",
        "list the modules under both keys",
    ),
    "exclude-invalid": Rule(
        ERROR, "the engine that compiles this pattern stops with a regex error", "correct the pattern"
    ),
    "exclude-matches-nothing": Rule(
        WARNING,
        "a pattern that hits nothing protects nothing: most often a missing prefix (vllm-project/llm-compressor#1871) or"
        " a name of another release",
        "correct it, or remove it",
    ),
    "exclude-hits-quantized": Rule(
        ERROR,
        "the engine builds this module unquantized and fails on its packed tensors, or drops them"
        " (vllm-project/vllm#45132)",
        _EXCLUDE,
    ),
    "exclude-misses-plain": Rule(
        ERROR,
        "the engine builds this module quantized and finds a plain weight: a shape error at load, or the weight is"
        " dropped (vllm-project/vllm#49187 for MTP layers, sgl-project/sglang#36596 for fused names)",
        _EXCLUDE,
    ),
    "exclude-misses-embedding": Rule(
        WARNING,
        "SGLang and vLLM never quantize an embedding, but a reader that goes by the list alone would",
        _EXCLUDE,
    ),
    "fused-partial": Rule(
        ERROR,
        "engines fuse these modules into one: SGLang and vLLM raise ValueError when only some of them are quantized",
        "exclude all of them, or quantize all of them",
    ),
}

_A_CLASS_AT_A_TIME = ("exclude-", "format-metadata")  # what hits one layer hits them all
RULES: dict[str, Rule] = {
    name: replace(rule, shown=3) if name.startswith(_A_CLASS_AT_A_TIME) else rule
    for name, rule in {**FILES, **CODE, **PARTS, **SCALES, **CONFIG}.items()
}
"""Every id that ``check`` can report."""
