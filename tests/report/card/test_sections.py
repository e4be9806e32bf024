"""What the card says where something is there and where it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.report.card_example import NATIVE, Document, records
from truecast.convert import Target, convert
from truecast.errors import InputError
from truecast.report.card import make_card, render_card
from truecast.serve.launch.environment import _ADDRESS, _INTERFACE
from truecast.serve.launch.setting import Setting
from truecast.verify import verify


def card(out: Path, made: dict[str, Document]) -> str:
    return make_card(records(out, made)).markdown


def test_only_a_proof_is_called_one(out: Path, made: dict[str, Document]) -> None:
    assert "Proved by `truecast verify`" in card(out, made)
    del made["verify"]
    text = card(out, made)
    assert "Proved" not in text and "it is not proved here. `truecast verify SOURCE THIS_FOLDER` proves it" in text


def test_an_exact_cast(tmp_path: Path, out: Path) -> None:
    manifest = convert(out.parent / "source", tmp_path / "out", Target("nvfp4"), card=render_card)
    made = {"verify": {"schema": "truecast.verify/1", **verify(out.parent / "source", tmp_path / "out").document()}}
    text = card(tmp_path / "out", made)
    assert "every weight equals the source's weight exactly" in text and "no value differs." in text
    assert f"| half blocks of 16 | {manifest['blocks']['half_blocks']:,} |" in text and "What it costs" not in text
    assert "every code is the nearest" not in text and "library_name: transformers" in text


def test_what_was_not_measured_is_named(out: Path, made: dict[str, Document]) -> None:
    text = card(out, {})
    assert "Nothing was measured yet: no speed, no KL, no task." in text
    for words in (
        "The KL to the source was not measured",
        "No task was run",
        "Speed was not measured",
        "No deployment",
    ):
        assert words in text and words not in card(out, made)
    native = {n: d for n, d in made.items() if n.endswith(".native")}
    text = card(out, native)
    assert "No task was run" in text and text.count("| not measured |") == 13, (
        "another checkpoint's figures are none of this one"
    )


def test_a_difference_comes_with_what_could_have_been_seen(out: Path, made: dict[str, Document]) -> None:
    text = card(out, made)
    assert f"aime26: this checkpoint less {NATIVE}: -2.5 points (95% interval " in text
    assert (
        text.count("would have been found with 80% power.") == 5
        and text.count("Equivalence is shown for margins above") == 5
    )
    assert "% would have been" not in text, "of a rate a factor is told: 20% less is not 20% more"
    assert text.count(", by the geometric means of the runs (95% interval over runs ") == 4
    assert "no positions were kept of both, so their difference has no interval" in text
    assert "significant" not in text


def test_two_audits_with_positions(out: Path, made: dict[str, Document]) -> None:
    made["audit.native"]["kl"]["mean"] -= 0.00213
    made["audit.native"]["excess"]["mean"] -= 0.00213
    made["audit.native"]["kl"]["interval"][0] = made["audit.native"]["excess"]["interval"][0] = 0.0
    made["compare.audit"]["a"]["kl"]["mean"] -= 0.00213
    made["compare.audit"] |= {
        "paired": {"difference": {"mean": 0.00213, "interval": [0.00101, 0.00325]}},
        "detectable": 0.0016,
        "warnings": [],
    }
    told = f"KL of this checkpoint less that of {NATIVE}: 0.00213 nats per token (95% interval 0.00101 to 0.00325)."
    assert f"- {told} A difference of 0.00160 would have been found with 80% power." in card(out, made)


def test_acceptance_has_a_row_where_a_server_tells_it(out: Path, made: dict[str, Document]) -> None:
    assert "accepted tokens a step" not in card(out, made)
    made["bench"]["levels"][1]["acceptance_length"] = 2.4
    assert "| accepted tokens a step, 50 concurrent | not measured | 2.40 |" in card(out, made)


def test_an_unsound_load_test_says_so(out: Path, made: dict[str, Document]) -> None:
    made["bench"]["sound"] = made["bench"]["complete"] = False
    made["bench"]["levels"][0]["faults"] = made["bench"]["levels"][1]["faults"] = ["the client was saturated"]
    made["compare.bench"]["b"]["sound"] = False
    text = card(out, made)
    assert "by its own report the figures do not stand" in text and "it was stopped before its last run" in text
    assert "(32.1 to 36.4), not sound |" in text
    assert text.count("load test, 20, 50 concurrent: the client was saturated.") == 1


def test_runs_are_counted_at_each_concurrency(out: Path, made: dict[str, Document]) -> None:
    assert "2 runs at each concurrency" in card(out, made)
    del made["compare.bench"], made["bench"]["levels"][1]["runs"][1]
    for figure in made["bench"]["levels"][1]["figures"].values():
        del figure["runs"][1]
        figure |= {"value": figure["runs"][0], "interval_over_runs": None}
    assert "1 to 2 runs at each concurrency" in card(out, made)


def test_remarks_that_differ_in_their_numbers_are_one_line(out: Path, made: dict[str, Document]) -> None:
    first, second = made["bench"]["levels"]
    first["remarks"] = [f"the second half gave {x} against the first" for x in ("-14%", "-1.7%", "-14%")]
    second["remarks"] = ["the second half gave +6% against the first", "9 of 10 outputs were cut"]
    text = card(out, made)
    line = "load test, 20, 50 concurrent: the second half gave -14% against the first; in other runs -1.7%, +6%."
    assert text.count("the second half gave") == 1 and line in text
    assert "load test, 50 concurrent: 9 of 10 outputs were cut." in text


def test_a_served_audit_says_how_much_the_server_gave(out: Path, made: dict[str, Document]) -> None:
    made["audit"]["candidate"] = {
        "engine": "sglang",
        "version": "0.5.20",
        "model": "k3",
        "arguments": {"--kv-cache-dtype": "fp8_e4m3", "--tp-size": "4", "--disable-radix-cache": ""},
    }
    bounds = {
        key: {"candidate": {"mean": mean, "interval": [0.0, 1.0]}} for key, mean in (("lower", 0.25), ("upper", 0.5))
    }
    made["audit"] |= {
        "estimator": {"top": 20, "name": "estimate", "kl": "a sum", "floor": "another server"},
        "sampled": {"how": "drawn from it"},
        "covered": {"mean": 0.8919},
        "measures": bounds,
    }
    del made["compare.audit"]
    text = card(out, made)
    assert "as it states, tp_size 4, kv_cache_dtype fp8_e4m3, disable_radix_cache yes. a sum; 20 most probable" in text
    assert (
        "tokens a position, which hold 89.2% of the source's probability; lower bound 0.250 (0 to 1.00); upper bound 0.500"
        in text
    )


@pytest.mark.parametrize("name", ["audit", "eval"])
def test_a_server_of_another_format_is_refused_however_it_spells_its_arguments(
    out: Path, made: dict[str, Document], name: str
) -> None:
    server = made[name].setdefault("candidate" if name == "audit" else "server", {})
    server["arguments"] = {"--quantization": "modelopt_fp4"}
    with pytest.raises(InputError, match="is 'modelopt_fp4', and this checkpoint is w4afp8"):
        card(out, made)


def test_the_deployment_is_the_plans(out: Path, made: dict[str, Document]) -> None:
    text = card(out, made)
    plan = made["launch"]
    for setting in plan["arguments"][2:]:
        words = " ".join(word for word in (setting["name"], setting["value"]) if word)
        assert f"\n  {words}" in text, words
    assert '\n  --model-path "$MODEL" \\\n' in text and str(out) not in text
    required = [n.removeprefix("plug-in, required: ") for n in plan["notes"] if n.startswith("plug-in, required: ")]
    section = text.partition("### Required fixes")[2].partition("###")[0]
    assert required and all(f"- {note}" in section for note in required)


def test_several_nodes_have_a_head(out: Path, made: dict[str, Document]) -> None:
    plan = made["launch"]
    plan["nodes_per_replica"] = 8
    plan["arguments"].append({"name": "--dist-init-addr", "value": "$HEAD:20000", "why": "x", "shell": True})
    text = card(out, made)
    assert "with `NODE_RANK` from 0 to 7 and `HEAD`" in text and '--dist-init-addr "$HEAD:20000"' in text


def test_every_expression_of_launch_is_known(out: Path, made: dict[str, Document]) -> None:
    settings = [Setting("A", value, "x", shell=True) for value in (_ADDRESS, _INTERFACE, "${A:-$B}", "$NODE_RANK")]
    made["launch"]["environment"] = [asdict(setting) for setting in settings]
    text = card(out, made)
    assert all(f'export A="{setting.value}"' in text for setting in settings)


def test_a_plan_shows_no_place_of_its_machine(out: Path, made: dict[str, Document]) -> None:
    plan = made["launch"]
    plan["model"]["location"] = "out"
    plan["draft"] = "/models/draft"
    plan["arguments"].append(
        {"name": "--speculative-draft-model-path", "value": "/models/draft", "why": "x", "shell": False}
    )
    plan["notes"].append("read from /models/draft")
    text = card(out, made)
    assert (
        '--speculative-draft-model-path "$DRAFT"' in text and "read from &#36;DRAFT" in text and "/models" not in text
    )
    plan["arguments"][0]["value"] = "some-lab/Small-K3-W4AFP8"
    text = card(out, made)
    assert "\n  --model-path some-lab/Small-K3-W4AFP8 \\\n" in text, "a name on the hub stays"
    assert "$MODEL" not in text and "&#36;MODEL" not in text, "no word on a variable that the command does not have"
    assert "not a measurement: the servers that were measured are described above." in text


@pytest.mark.parametrize("value", ["$(id)", "a b", "x; id", "`id`"])
def test_a_value_of_the_plan_is_quoted(out: Path, made: dict[str, Document], value: str) -> None:
    made["launch"]["arguments"][2]["value"] = value
    assert f" '{value}' \\\n" in card(out, made)


def test_commands_name_no_place_of_the_machine(out: Path, made: dict[str, Document]) -> None:
    made["eval"]["command"] += ["--data=s3://team/aime.jsonl", "hf://datasets/team/aime"]
    text = card(out, made)
    assert "`truecast bench URL --prompts aime.jsonl --out b1`" in text
    assert "`truecast eval URL --task aime --data=URL URL`" in text
    assert "`truecast launch THIS_FOLDER --topology h200:1x1 --sglang " in text
    last = text.partition("\ntruecast card . ")[2].partition("\n")[0]
    assert last.startswith("--verify records/verify.json ") and f"'{NATIVE}=records/bench.native.json'" in last


def test_equal_answers_are_told_as_such(out: Path, made: dict[str, Document]) -> None:
    """Of KL 0 at every position an excess below the floor would say nothing."""
    made["audit.native"] |= {"kl": {"mean": 0.0, "interval": [0.0, 0.0]}, "top1": {"agreement": 1.0, "interval": None}}
    floor = made["audit.native"]["floor"]["mean"]
    made["audit.native"]["excess"] = {"mean": -floor, "interval": [-1.2 * floor, -0.8 * floor]}
    del made["compare.audit"]
    rows = {row.split(" | ")[0]: row for row in card(out, made).splitlines() if row.startswith("| ")}
    assert "| 0 at every position |" in rows["| KL to the source (exact), nats/token"]
    assert "| none |" in rows["| excess over the floor"] and "| 100% |" in rows["| same first choice"]
