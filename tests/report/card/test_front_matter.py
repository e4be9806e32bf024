"""The front matter by the hub's own parser."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.report.card_example import Document, records
from truecast.errors import InputError
from truecast.report.card import make_card, render_card

hub = pytest.importorskip("huggingface_hub")


def test_the_hub_reads_it(out: Path, made: dict[str, Document]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = hub.ModelCard(make_card(records(out, made)).markdown).data
    assert (data.license, data.license_name, data.license_link) == ("other", "small-licence", "LICENSE")
    assert (data.base_model, data["base_model_relation"]) == ("some-lab/Small-K3", "quantized")
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("sglang", "text-generation", "Small-K3")
    assert data.tags == ["truecast", "w4afp8", "int4", "fp8", "kimi_k3"]
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_name, result.metric_type) == ("text-generation", "aime26", "accuracy")
    assert result.metric_value == pytest.approx(made["eval"]["scores"]["score"], abs=1e-6), (
        "this checkpoint's, not the other's"
    )


def test_what_convert_writes(out: Path) -> None:
    manifest = records(out, {})[0].document
    data = hub.ModelCard(render_card(manifest)).data
    assert data.base_model == "some-lab/Small-K3" and data.eval_results is None
    assert hub.ModelCard((out / "README.md").read_text()).data.to_dict() == data.to_dict()


@pytest.mark.parametrize("name", ["a b", "x: y", "<x>", "../x"])
def test_a_task_of_another_name_is_no_result(out: Path, made: dict[str, Document], name: str) -> None:
    made["eval"]["task"]["name"] = name
    del made["compare.eval"]
    assert "model-index" not in make_card(records(out, made)).markdown


@pytest.mark.parametrize("family", ["true", "null", "no", "2024-01-01", "1e5", "gpt_oss"])
def test_a_tag_is_a_text(out: Path, family: str) -> None:
    manifest = {**records(out, {})[0].document, "family": family}
    assert hub.ModelCard(render_card(manifest)).data.tags[-1] == family


def test_a_format_brings_no_lines_of_its_own(out: Path) -> None:
    manifest = records(out, {})[0].document
    target = {**manifest["target"], "format": "w4afp8]\nlicense: mit\nx: [y"}
    with pytest.raises(InputError, match="no format that is known here"):
        render_card({**manifest, "target": target})
