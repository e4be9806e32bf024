"""Run as a process of its own under one transformers: load folders with ``trust_remote_code``, run one forward of each.

Reads a JSON list of ``{"folder", "options"}`` from stdin; prints one JSON object for each: ``{"logits": [...]}``, with
the length of every ``A_log``, or ``{"error": text}``.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM


def load(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    told = Told()
    logger = logging.getLogger("transformers")
    logger.addHandler(told)
    try:
        if options.get("dtype"):
            options["dtype"] = getattr(torch, options["dtype"])
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()
    except Exception as error:  # its type is transformers' own affair; the text is what is tested
        return {"stage": "load", "error": f"{error}\n{told.text}"}
    finally:
        logger.removeHandler(told)
    lengths = {name: list(p.shape) for name, p in model.named_parameters() if name.endswith("A_log")}
    try:
        with torch.no_grad():
            logits = model(torch.arange(6)[None]).logits.float()
    except RuntimeError as error:
        return {"stage": "forward", "error": str(error), "A_log": lengths}
    return {"logits": logits.flatten().tolist(), "A_log": lengths, "warnings": told.text}


class Told(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


if __name__ == "__main__":
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    results = [load(job["folder"], job["options"]) for job in json.load(sys.stdin)]
    print(json.dumps({"version": transformers.__version__, "results": results}))
