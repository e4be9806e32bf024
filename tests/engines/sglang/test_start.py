"""The states of a fix, hooks that are seen to be in place, the table, and what stops the server."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import Release
from tests.engines.sglang.conftest import Place, make_fix
from truecast.engines.sglang import binary, hooking, plugin, reading, start
from truecast.engines.sglang.fix import Hook, Kind, Need
from truecast.engines.sglang.fixes import FIXES
from truecast.engines.sglang.situation import Situation
from truecast.engines.sglang.start import Outcome, State, decide, demand, table
from truecast.errors import RefusedError

LLAMA = Situation(version="0.5.17", model="llama", config={"hidden_act": "silu"})
REQUIRED = Need("the experts want it", required=True)


def nowhere(module: str) -> str:
    raise LookupError(module)


def double(original: Any, value: int) -> int:
    return 2 * int(original(value))


@pytest.fixture
def target(hook_registry: Any, place: Place) -> Any:
    """A function in one module, imported by another, and a class with methods of each kind."""

    class Layer:
        def plain(self, value: int) -> int:
            return value + 1

        @staticmethod
        def loose(value: int) -> int:
            return value + 1

        @classmethod
        def bound(cls, value: int) -> int:
            return value + 1

    class Below(Layer):
        pass

    def function(value: int) -> int:
        return value + 1

    module = place("engine.home", {"function": function, "Layer": Layer, "Below": Below})
    place("engine.guest", {"function": function})
    return module


def only(fix: Any, situation: Situation = LLAMA) -> Outcome:
    (outcome,) = decide([fix], frozenset({fix.name}), situation, nowhere)
    return outcome


def test_a_hook_is_applied_and_reaches_where_the_function_was_imported(target: Any) -> None:
    fix = make_fix(hooks=(Hook("engine.home.function", double),))
    assert only(fix).state is State.APPLIED
    assert target.function(1) == sys.modules["engine.guest"].function(1) == 4
    assert only(fix).state is State.APPLIED
    assert target.function(1) == 4  # a second model does not put it on again


@pytest.mark.parametrize("method", ["plain", "loose", "bound"])
@pytest.mark.parametrize("owner", ["Layer", "Below"])
def test_methods_of_each_kind_are_hooked_and_put_back(target: Any, owner: str, method: str) -> None:
    def hook(original: Any, *args: Any) -> int:
        return 2 * int(original(*args))

    before = dict(vars(getattr(target, owner)))
    hooks = [Hook(f"engine.home.{owner}.{method}", hook)]
    if owner == "Below" and method != "plain":  # the registry would make a plain method of it
        with pytest.raises(LookupError, match="is inherited"):
            hooking.put_on(hooks)
        return
    targets = hooking.put_on(hooks)
    assert getattr(getattr(target, owner)(), method)(1) == 4
    hooking.take_off(targets, hooks)
    assert dict(vars(getattr(target, owner))) == before
    assert getattr(getattr(target, owner)(), method)(1) == 2


def test_a_class_is_replaced(target: Any) -> None:
    class Better(target.Layer):  # type: ignore[misc]
        pass

    assert only(make_fix(hooks=(Hook("engine.home.Layer", Better, Kind.REPLACE),))).state is State.APPLIED
    assert target.Layer is Better


def test_two_fixes_on_one_target_both_run(target: Any) -> None:
    """The registry leaves alone a target that it has patched; the second fix must take all the same."""

    def negative(original: Any, value: int) -> int:
        return -int(original(value))

    first = make_fix("first", hooks=(Hook("engine.home.function", double),))
    second = make_fix("second", hooks=(Hook("engine.home.function", negative),))
    assert [o.state for o in decide([first, second], frozenset({"first", "second"}), LLAMA, nowhere)] == [
        State.APPLIED,
        State.APPLIED,
    ]
    assert target.function(1) == sys.modules["engine.guest"].function(1) == -4


def test_a_second_model_gets_the_hooks_that_it_wants(target: Any, hook_registry: Any) -> None:
    """A draft of another quantization, in the same process: what the first model did not want is put on beside."""

    def once_more(original: Any, layer: Any, value: int) -> int:
        return int(original(layer, value)) + 1

    first, draft = LLAMA, dataclasses.replace(LLAMA, quantization="w4afp8", is_draft=True)
    asked: list[Situation] = []
    common, own = Hook("engine.home.function", double), Hook("engine.home.Layer.plain", once_more)
    fix = dataclasses.replace(
        make_fix(), hooks=lambda situation: [common, own] if situation.is_draft else [common], selftest=asked.append
    )
    assert only(fix, first).state is State.APPLIED
    assert target.function(1) == 4 and target.Layer().plain(1) == 2
    for _ in range(2):
        assert only(fix, draft).state is State.APPLIED
        assert target.function(1) == 4 and target.Layer().plain(1) == 3  # each once, however often it is asked
    assert asked == [first, draft, draft]


def test_what_only_the_draft_needs_and_cannot_have_is_refused(target: Any, hook_registry: Any) -> None:
    def check(situation: Situation) -> None:
        assert not situation.is_draft, "the draft comes out wrong"

    def hooks(situation: Situation) -> list[Hook]:
        more = Hook("engine.home.Layer.plain" if situation.quantization else "engine.home.gone", double)
        return [Hook("engine.home.function", double), *([more] if situation.is_draft else [])]

    fix = dataclasses.replace(make_fix(need=REQUIRED), hooks=hooks, selftest=check)
    assert only(fix).state is State.APPLIED
    for quantization, reason in ((None, "engine.home.gone is gone"), ("w4afp8", "the draft comes out wrong")):
        draft = dataclasses.replace(LLAMA, quantization=quantization, is_draft=True)
        outcome = only(fix, draft)
        assert outcome.state is State.UNAVAILABLE and reason in outcome.reason
        with pytest.raises(RefusedError, match="needs the fix made-up"):
            demand(draft, [outcome])
        assert target.function(1) == 4, "the first model lost its hook"
        assert target.Layer().plain(1) == 2


IMPORTING = {"expert-load-filter", "marlin-ep-tile"}  # whose hooks need SGLang's modules: see their own tests


@pytest.mark.parametrize("fix", [fix for fix in FIXES if fix.name not in IMPORTING], ids=lambda fix: fix.name)
def test_hooks_are_the_same_objects_each_time(fix: Any) -> None:
    """So that a second model does not get a second layer of them."""
    first = Situation("0.5.17", "m", "w4afp8", {"num_experts": 8, "activation_situ_beta": 4.0})
    second = dataclasses.replace(first, config={**first.config, "num_experts": 5000})
    assert list(fix.hooks(first)) == list(fix.hooks(second))


def test_states(target: Any) -> None:
    hook = (Hook("engine.home.function", double),)
    assert only(make_fix(need=None, hooks=hook)).state is State.NOT_NEEDED
    assert only(make_fix(faulty=False, hooks=hook)).state is State.RIGHT
    unread = only(make_fix(faulty="there is no such loop", hooks=hook))
    assert (unread.state, unread.reason) == (State.UNAVAILABLE, "there is no such loop")
    (off,) = decide([make_fix(hooks=hook)], frozenset(), LLAMA, nowhere)
    assert off.state is State.OFF
    assert target.function(1) == 2  # nothing was patched in any of them


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.6.0", "0.0.0.dev0", "main"])
def test_nothing_is_patched_in_a_version_that_is_not_known(target: Any, version: str) -> None:
    situation = Situation(version=version, model="m")
    outcome = only(make_fix(need=REQUIRED, hooks=(Hook("engine.home.function", double),)), situation)
    assert outcome.state is State.UNKNOWN and target.function(1) == 2
    with pytest.raises(RefusedError, match=rf"m on SGLang {version}: needs the fix made-up .*unknown version"):
        demand(situation, [outcome])


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20.post1", "0.5.23+cu130", "0.5.23rc1"])
def test_releases_with_a_suffix_are_known(target: Any, version: str) -> None:
    outcome = only(make_fix(hooks=(Hook("engine.home.function", double),)), Situation(version=version, model="m"))
    assert outcome.state is State.APPLIED


@pytest.mark.parametrize(
    "path", ["engine.home.gone", "engine.gone.function", "engine.home.Layer.gone", "nothing.at.all"]
)
def test_a_target_that_is_gone(target: Any, path: str, hook_registry: Any) -> None:
    fix = make_fix(need=REQUIRED, hooks=(Hook("engine.home.function", double), Hook(path, double)))
    outcome = only(fix)
    assert outcome.state is State.UNAVAILABLE and path in outcome.reason
    assert target.function(1) == 2 and not hook_registry._patched  # the other hook was not put on alone
    with pytest.raises(RefusedError, match="needs the fix made-up"):
        demand(LLAMA, [outcome])


def test_a_hook_that_the_registry_drops_is_noticed(target: Any, hook_registry: Any, monkeypatch: Any) -> None:
    def fails(cls: Any, path: str, hooks: object) -> None:
        raise ValueError("not today")

    monkeypatch.setattr(hook_registry, "_apply_target", classmethod(fails))
    outcome = only(make_fix(hooks=(Hook("engine.home.function", double),)))
    assert outcome.state is State.UNAVAILABLE and "did not take" in outcome.reason


def test_a_binding_that_stays_behind_is_noticed(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang.srt.plugins.hook_registry as registry

    monkeypatch.setattr(registry, "_propagate_patch", lambda *args: 0)
    outcome = only(make_fix(hooks=(Hook("engine.home.function", double),)))
    assert outcome.state is State.UNAVAILABLE and "engine.guest.function still is" in outcome.reason
    assert target.function(1) == 2


def test_a_fix_that_fails_its_selftest_is_taken_off(target: Any, hook_registry: Any) -> None:
    fix = make_fix(need=REQUIRED, hooks=(Hook("engine.home.function", double),), selftest="3 is not 4")
    outcome = only(fix)
    assert outcome.state is State.UNAVAILABLE and "3 is not 4" in outcome.reason
    assert target.function(1) == sys.modules["engine.guest"].function(1) == 2
    assert not hook_registry._patched and not hook_registry._hooks
    assert only(make_fix(hooks=(Hook("engine.home.function", double),))).state is State.APPLIED
    assert target.function(1) == 4  # and can be put on later


def test_what_goes_wrong_while_a_fix_is_applied_leaves_it_off(target: Any, hook_registry: Any) -> None:
    """Not a lookup only: an import that fails, a function that cannot be compiled again."""

    def hooks(situation: Situation) -> Any:
        raise ImportError("no module named flashinfer")

    outcome = only(dataclasses.replace(make_fix(need=REQUIRED), hooks=hooks))
    assert (outcome.state, outcome.reason) == (State.UNAVAILABLE, "ImportError: no module named flashinfer")
    bad = make_fix(hooks=(Hook("engine.home.function", double), Hook("engine.home.Layer", type("L", (), {}))))
    assert only(bad).state is State.UNAVAILABLE and target.function(1) == 2 and not hook_registry._patched


def test_what_another_plugin_hooked_is_not_replaced(target: Any, hook_registry: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookType

    hook_registry.register("engine.home.function", lambda original, value: original(value) + 10, HookType.AROUND)
    hook_registry.apply_hooks()
    outcome = only(make_fix(hooks=(Hook("engine.home.function", lambda value: value, Kind.REPLACE),)))
    assert outcome.state is State.UNAVAILABLE and "hooked by another plug-in" in outcome.reason
    assert target.function(1) == 12


def test_what_another_plugin_hooked_stays_when_a_fix_is_taken_off(target: Any, hook_registry: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookType

    hook_registry.register("engine.home.function", lambda original, value: original(value) + 10, HookType.AROUND)
    hook_registry.apply_hooks()
    only(make_fix(hooks=(Hook("engine.home.function", double),), selftest="wrong"))
    assert target.function(1) == sys.modules["engine.guest"].function(1) == 12


def test_only_required_fixes_are_demanded() -> None:
    optional = Outcome(make_fix(), State.UNAVAILABLE, "gone", required=False)
    left_out = Outcome(make_fix(), State.OFF, "the user's wish", required=False)
    right = Outcome(make_fix(), State.RIGHT, "", required=True)
    demand(LLAMA, [optional, left_out, right])
    with pytest.raises(RefusedError, match="TRUECAST_SGLANG"):
        demand(LLAMA, [Outcome(make_fix(), State.UNAVAILABLE, "gone", required=True)])


def test_every_fix_is_whole() -> None:
    names = [fix.name for fix in FIXES]
    assert len(set(names)) == len(names)
    for fix in FIXES:
        assert fix.name.replace("-", "_") == fix.need.__module__.rpartition(".")[2]
        assert fix.need(LLAMA) is None, f"{fix.name} is wanted by a dense Llama"


def test_the_page_describes_every_fix_and_its_settings() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \|(.*)$", page, re.MULTILINE))
    for fix in FIXES:
        assert fix.name in rows
        for variable in fix.settings:
            assert f"`{variable}" in rows[fix.name]
    for state in State:
        assert f"| `{state.value}` |" in page


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert pkgutil.resolve_name(project["entry-points"]["sglang.srt.plugins"]["truecast"]) is plugin.register


def test_the_plugin_costs_no_import_before_a_model_is_loaded(release: Release, tmp_path: Path) -> None:
    """Neither when it is imported nor when it registers, in a process of its own; then not even the fixes."""
    names = ("sglang.srt.model_executor.model_runner", "sglang.srt.plugins.hook_registry")
    for name in names:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(release.sources(name))
    for folder in ("sglang", "sglang/srt", "sglang/srt/plugins"):
        (tmp_path / folder / "__init__.py").write_text("")
    code = (
        "import sys; from truecast.engines.sglang import plugin; before = set(sys.modules); plugin.register();"
        "heavy = {'torch', 'triton', 'numpy', 'numba', 'ml_dtypes', 'safetensors'} & {m.split('.')[0] for m in sys.modules};"
        "print(heavy, sorted(m for m in sys.modules if m.startswith('truecast.engines.sglang.')),"
        " 'sglang.srt.model_executor.model_runner' in sys.modules)"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    own = [f"truecast.engines.sglang.{name}" for name in ("later", "plugin", "source")]
    assert done.stdout == f"set() {own} False\n"


def test_a_run_that_needs_nothing_calls_sglangs_own_functions(
    runner: Any, hook_registry: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs in each step is the same object as without the plug-in, so a step costs what it did."""
    applied: list[str] = []
    stock = hook_registry._apply_target.__func__

    def note(cls: Any, target: str, hooks: Any) -> Any:
        applied.append(target)
        return stock(cls, target, hooks)

    monkeypatch.setattr(hook_registry, "_apply_target", classmethod(note))
    wants = Situation("0.5.17", "m", "w4afp8", {"num_experts": 8, "activation_situ_beta": 4.0})
    targets = [hook.target for fix in FIXES if fix.name not in IMPORTING for hook in fix.hooks(wants)]
    originals = {}
    for target in targets:
        module, name = re.fullmatch(r"(.*?)\.((?:[A-Z]\w*\.)?\w+)", target).groups()  # type: ignore[union-attr]
        owner, _, attribute = name.rpartition(".")

        def original(*args: Any) -> None: ...

        if owner:
            cls = getattr(sys.modules.get(module), owner, None) or type(owner, (), {})
            setattr(cls, attribute, original)
            place(module, {owner: cls})
        else:
            place(module, {attribute: original})
        originals[target] = original
    plugin.register()
    hook_registry.apply_hooks()
    assert runner.load_model() is runner.result
    assert len(targets) > 15 and applied == [plugin.TARGET]
    for target, original in originals.items():
        assert pkgutil.resolve_name(target) is original


def test_the_table_tells_each_state() -> None:
    outcomes = [Outcome(make_fix(state.name.lower()), state, f"why {state.value}") for state in State]
    text = table(LLAMA, outcomes, binary.Finding("sm_90a kernels: MISSING\n  build", wrong=True))
    for state in State:
        assert f"{state.name.lower():<11}  {state.value:<15}  what {state.name.lower()} does: why {state.value}" in text
    assert text.endswith("  sm_90a kernels: MISSING\n    build")
    none = [Outcome(make_fix(), State.NOT_NEEDED)]
    assert table(LLAMA, none) == "truecast: model llama, SGLang 0.5.17: none of 1 fixes is needed"
    assert "MISSING" in table(LLAMA, none, binary.Finding("MISSING", wrong=True))


@pytest.fixture
def runner(release: Release, hook_registry: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's ModelRunner with its loading and its published arguments, and truecast registered in it."""

    class ModelRunner:
        def load_model(self) -> object:
            return self.result

    moe = SimpleNamespace(enable_eplb=False, ep_num_redundant_experts=0, init_expert_location="trivial")
    kernel = SimpleNamespace(
        attention_backend="fa3", prefill_attention_backend=None, decode_attention_backend="flashmla"
    )
    place(
        "sglang.srt.runtime_context",
        {
            "get_exec": lambda: SimpleNamespace(moe=moe, kernel=kernel),
            "get_model": lambda: SimpleNamespace(kv_cache_dtype="auto"),
            "get_schedule": lambda: SimpleNamespace(page_size=None),
            "get_parallel": lambda: SimpleNamespace(tp_rank=0, tp_size=1, moe_ep_rank=0, moe_ep_size=1),
        },
    )
    place("sglang.srt.layers.moe.utils", {"get_moe_runner_backend": lambda: SimpleNamespace(value="auto")})
    place(
        "sglang.srt.layers.quantization.fp4_utils",
        {"get_fp4_gemm_runner_backend": lambda: SimpleNamespace(value="auto")},
    )
    place("sglang.srt.model_executor.model_runner", {"ModelRunner": ModelRunner})
    monkeypatch.setattr(plugin, "installed", lambda: release.sources)
    monkeypatch.setattr(start, "installed", lambda: release.sources)
    monkeypatch.setattr(reading, "version", lambda: release.version)
    made = ModelRunner()
    made.result = object()  # type: ignore[attr-defined]
    made.device, made.gpu_id, made.is_draft_worker = "cpu", 0, False  # type: ignore[attr-defined]
    config = SimpleNamespace(to_dict=lambda: {"hidden_act": "silu"})
    made.model_config = SimpleNamespace(  # type: ignore[attr-defined]
        model_path="/models/llama", quantization=None, hf_config=config, hf_text_config=config
    )
    return made


def test_a_run_that_needs_nothing_gets_one_hook_and_its_own_result(runner: Any, hook_registry: Any, capfd: Any) -> None:
    stock = dict(vars(type(runner)))
    plugin.register()
    hook_registry.apply_hooks()
    assert runner.load_model() is runner.result
    assert runner.load_model() is runner.result
    assert not hook_registry._hooks and not hook_registry._patched
    changed = {name for name, value in vars(type(runner)).items() if value is not stock.get(name)}
    assert changed == {"load_model"} and type(runner).load_model.__wrapped__ is stock["load_model"]
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and f"none of {len(FIXES)} fixes is needed" in printed


def test_the_model_runner_is_not_imported_for_the_hook(
    runner: Any, hook_registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = sys.modules["sglang.srt.model_executor"]
    (tmp_path / "model_runner.py").write_text(
        "class ModelRunner:\n    def load_model(self):\n        return self.result\n"
    )
    monkeypatch.setattr(parent, "__path__", [str(tmp_path)], raising=False)
    monkeypatch.delattr(parent, "model_runner")
    monkeypatch.delitem(sys.modules, plugin.MODULE)
    plugin.register()
    hook_registry.apply_hooks()  # as SGLang does after its last plug-in
    assert importlib.util.find_spec(plugin.MODULE)  # somebody asks whether it is there
    assert plugin.MODULE not in sys.modules and not hook_registry._hooks
    late = importlib.import_module(plugin.MODULE).ModelRunner()
    vars(late).update(vars(runner))
    assert late.load_model() is runner.result
    assert importlib.import_module(plugin.MODULE).ModelRunner.load_model.__wrapped__ is not None


@pytest.fixture
def unloaded(runner: Any, hook_registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner's module is a file that nobody has imported; ``calls`` counts what other plug-ins' hooks saw."""
    parent = sys.modules["sglang.srt.model_executor"]
    (tmp_path / "model_runner.py").write_text(
        "class ModelRunner:\n"
        "    def load_model(self):\n        return 'loaded'\n"
        "    def forward(self):\n        return 'forwarded'\n"
    )
    monkeypatch.setattr(parent, "__path__", [str(tmp_path)], raising=False)
    monkeypatch.delattr(parent, "model_runner")
    monkeypatch.delitem(sys.modules, plugin.MODULE)
    seen: list[str] = []
    monkeypatch.setattr(start, "load_model", lambda original, *args: (seen.append("truecast"), original(*args))[1])
    return seen


def _registers(registry: Any, seen: list[str], *methods: str, replace: bool = False) -> None:
    from sglang.srt.plugins.hook_registry import HookType

    def around(original: Any, *args: Any) -> Any:
        seen.append("other")
        return original(*args)

    def instead(*args: Any) -> str:
        seen.append("other")
        return "replaced"

    for method in methods:
        kind = HookType.REPLACE if replace else HookType.AROUND
        registry.register(f"{plugin.MODULE}.ModelRunner.{method}", instead if replace else around, kind)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("replace", [True, False])
def test_hooks_of_other_plugins_run_once_each_and_never_in_place_of_ours(
    unloaded: Any, hook_registry: Any, monkeypatch: pytest.MonkeyPatch, first: bool, imported: bool, replace: bool
) -> None:
    from sglang.srt import plugins

    def load_plugins() -> None:
        """What SGLang's own does, with one other plug-in."""
        if imported:
            importlib.import_module(plugin.MODULE)
        if first:
            plugin.register()
        _registers(hook_registry, unloaded, "forward", "load_model", replace=replace)
        if not first:
            plugin.register()
        hook_registry.apply_hooks()

    monkeypatch.setattr(plugins, "load_plugins", load_plugins, raising=False)
    load_plugins()
    made = importlib.import_module(plugin.MODULE).ModelRunner()
    assert made.forward() == ("replaced" if replace else "forwarded") and unloaded == ["other"]
    unloaded.clear()
    assert made.load_model() == ("replaced" if replace else "loaded")
    assert sorted(unloaded) == ["other", "truecast"]


def test_a_hook_on_loading_that_does_not_take_ends_the_process(
    unloaded: Any, hook_registry: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hook_registry, "_apply_target", classmethod(lambda cls, path, hooks: None))
    plugin.register()
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(plugin.MODULE)
    assert stop.value.code == 2 and "load_model did not take; set TRUECAST_SGLANG=off" in capsys.readouterr().err


def test_an_import_that_failed_may_be_tried_again(unloaded: Any, tmp_path: Path) -> None:
    good = (tmp_path / "model_runner.py").read_text()
    plugin.register()
    (tmp_path / "model_runner.py").write_text("raise ImportError('no such driver')\n")
    with pytest.raises(ImportError, match="driver"):
        importlib.import_module(plugin.MODULE)
    (tmp_path / "model_runner.py").write_text(good)
    importlib.invalidate_caches()
    assert importlib.import_module(plugin.MODULE).ModelRunner().load_model() == "loaded" and unloaded == ["truecast"]


def test_a_required_fix_that_cannot_be_had_stops_the_loading(runner: Any, hook_registry: Any, monkeypatch: Any) -> None:
    plugin.register()
    hook_registry.apply_hooks()
    monkeypatch.setattr(start, "FIXES", (make_fix(need=REQUIRED, faulty="all is new here"),))
    with pytest.raises(RefusedError, match=r"needs the fix made-up .*unavailable: all is new here"):
        runner.load_model()
    monkeypatch.setenv("TRUECAST_SGLANG", "off")
    assert runner.load_model() is runner.result


def test_arguments_that_cannot_be_read_stop_the_loading(runner: Any, hook_registry: Any) -> None:
    plugin.register()
    hook_registry.apply_hooks()
    del runner.model_config
    with pytest.raises(RefusedError, match=r"cannot be read .*model_config.*TRUECAST_SGLANG=off"):
        runner.load_model()


def test_a_version_that_nobody_tells_is_unknown(
    runner: Any, hook_registry: Any, monkeypatch: Any, place: Place
) -> None:
    def gone(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.undo()
    monkeypatch.setattr(metadata, "version", gone)
    monkeypatch.setitem(sys.modules, "sglang.version", None)
    assert reading.version() == "unknown"
    monkeypatch.setattr(metadata, "version", lambda name: None)  # a METADATA file without a Version
    assert reading.version() == "unknown"
    assert only(make_fix(need=REQUIRED), Situation(version="unknown", model="m")).state is State.UNKNOWN


def test_off_registers_nothing_even_where_the_target_is_gone(
    runner: Any, release: Release, hook_registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = release.edited(plugin.MODULE, "def load_model(", "def load_the_model(")
    monkeypatch.setattr(plugin, "installed", lambda: gone.sources)
    monkeypatch.setenv("TRUECAST_SGLANG", "off")
    plugin.register()
    assert not hook_registry._hooks


def test_a_missing_load_model_ends_the_process(
    runner: Any, release: Release, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = release.edited(plugin.MODULE, "def load_model(", "def load_the_model(")
    monkeypatch.setattr(plugin, "installed", lambda: gone.sources)
    with pytest.raises(SystemExit) as stop:
        plugin.register()
    assert stop.value.code == 2
    assert "model_runner has no def load_model(; set TRUECAST_SGLANG=off" in capsys.readouterr().err


@pytest.mark.parametrize(
    "variable, value", [("TRUECAST_SGLANG", "situ"), ("SGLANG_UNBALANCED_MODEL_LOADING_TIMEOUT_S", "480s")]
)
def test_a_bad_value_ends_the_process(
    runner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as stop:
        plugin.register()
    assert stop.value.code == 2 and capsys.readouterr().err.startswith(f"truecast: {variable}='{value}': ")
