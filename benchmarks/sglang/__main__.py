"""``python -m benchmarks.sglang --site SITE --work WORK [--runs formats,cache]``: servers side by side, one table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import truecast
from benchmarks.sglang import checkpoints, loading
from benchmarks.sglang.client import Prompts, Scores, ServerError, score, wait
from benchmarks.sglang.compare import Outcome, fix_states, reason, row, table
from benchmarks.sglang.reference import KINDS
from benchmarks.sglang.runs import COMMON, Run, chosen

ROOT = Path(__file__).parents[2]
NANO = ROOT / "examples" / "nano_k3"
LAUNCH = Path(__file__).with_name("launch.py")


def prompts(corpus: Path, documents: int, tokens: int, new: int) -> Prompts:
    """Held-out documents: cut to ``tokens``; the next four to 64 for whole distributions; starts of 48 to be continued.

    The first scored one is several documents in one, 1,000 tokens long: kernels change with the length.
    """
    lines = [json.loads(line)["tokens"] for line in corpus.read_text().splitlines()[1:]][checkpoints.CALIBRATED_ON :]
    if len(lines) < documents + 7:
        raise SystemExit(f"{corpus}: {len(lines)} documents beyond the first {checkpoints.CALIBRATED_ON} are too few")
    long = [token for line in lines[-3:] for token in line][:1000]
    scored = [long, *(line[:tokens] for line in lines[: documents - 1])]
    rest = lines[documents - 1 :]
    return Prompts(scored, [line[:64] for line in rest[:4]], [line[:48] for line in lines[:8]], new)


def plug(folder: Path) -> None:
    """The plug-in as an installed package: truecast itself, and the entry point of its pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project.get("entry-points", {}).get("sglang.srt.plugins")
    if not points:
        raise SystemExit("pyproject.toml names no entry point of group sglang.srt.plugins")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "truecast").symlink_to(Path(truecast.__file__).parent)
    info = folder / f"truecast-{truecast.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: truecast\nVersion: {truecast.__version__}\n")
    lines = "".join(f"{name} = {where}\n" for name, where in points.items())
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{lines}")


def environment(run: Run, site: Path, work: Path, jit: Path | None) -> dict[str, str]:
    """Of a server process."""
    out = {k: v for k, v in os.environ.items() if k != "TRUECAST_SGLANG"}
    out["PYTHONPATH"] = f"{work / 'plug'}:{site}"
    out |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    out |= {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false", "FLASHINFER_WORKSPACE_BASE": str(work)}
    out |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    out |= {"SGLANG_K3_AR_FUSION": "0", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"}
    if jit is not None:
        out["TVM_FFI_CACHE_DIR"] = str(jit)
    if run.plugin is not None:
        out["TRUECAST_SGLANG"] = run.plugin
    return {**out, **run.environment}


def command(run: Run, paths: Mapping[str, Path], port: int, python: str = sys.executable) -> list[str]:
    """What starts the server."""
    arguments = [a.replace("{draft}", str(paths["draft"])) for a in (*COMMON, *run.arguments)]
    where = ("--model-path", str(paths[run.checkpoint]), "--port", str(port), "--nccl-port", str(port + 50))
    return [python, "-P", "-W", "ignore", str(LAUNCH), *where, *arguments]


class Server(threading.Thread):
    """One run from start to scores."""

    def __init__(
        self, run: Run, asked: Prompts, line: Sequence[str], env: Mapping[str, str], log: Path, limit: float
    ) -> None:
        super().__init__(daemon=True)
        self.outcome, self.asked, self.line, self.env, self.log, self.limit = Outcome(run), asked, line, env, log, limit
        self.port = int(line[line.index("--port") + 1])

    def run(self) -> None:
        """Never raises: the outcome says what went wrong."""
        start, out = time.time(), self.outcome
        deadline, base = start + self.limit, f"http://127.0.0.1:{self.port}"
        with self.log.open("wb") as log:
            process = subprocess.Popen(self.line, env=dict(self.env), stdout=log, stderr=log, start_new_session=True)
        vocabulary = 2048
        try:
            wait(base, lambda: process.poll() is None, deadline)
            out.ready_seconds = time.time() - start
            out.read_calls = loading.read_calls(process.pid)
            draft = out.run.draft
            out.scores = score(base, self.asked, vocabulary, deadline, draft=draft, full=False)
            out.again = score(base, self.asked, vocabulary, deadline, draft=draft, full=False)
            if not draft:
                out.scores.full = score(base, Prompts([], self.asked.full, [], 1), vocabulary, deadline).full
        except (ServerError, KeyError, TypeError, IndexError) as error:
            time.sleep(2)  # what killed it reaches the log
            out.error = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.log = self.log.read_text(errors="replace")
        out.fixes = fix_states(out.log)
        if out.error and out.scores is None:
            out.error = f"{out.error}; {reason(out.log)}"
        elif out.error:  # scored, and something later failed: the scores count
            print(f"{out.run.name}: {out.error}", flush=True)
            out.error = ""


def references(names: set[str], work: Path) -> dict[str, subprocess.Popen[bytes]]:
    """Start what scores with truecast's own model, one process a reference."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "4"}
    line = [sys.executable, "-m", "benchmarks.sglang.reference", str(work)]
    return {n: subprocess.Popen([*line, n], env=env, cwd=ROOT) for n in sorted(names)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 1 where a run did not do what it should."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sglang", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="folder with SGLang 0.5.17 and what it imports")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints, logs and results")
    parser.add_argument("--runs", default="all", help="comma list of runs and groups")
    parser.add_argument("--checkpoint", type=Path, default=NANO / "checkpoint")
    parser.add_argument("--corpus", type=Path, default=NANO / "heldout_documents.jsonl")
    parser.add_argument("--jit", type=Path, help="compiled kernels: TVM_FFI_CACHE_DIR")
    parser.add_argument("--python", default=sys.executable, help="Python that runs SGLang")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--limit", type=float, default=200, help="seconds for one server from its start")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--dry-run", action="store_true", help="make everything, print what would be started")
    options = parser.parse_args(arguments)
    try:
        runs = chosen(options.runs)
    except ValueError as error:
        parser.error(str(error))
    work, begin = options.work.resolve(), time.time()
    work.mkdir(parents=True, exist_ok=True)
    plug(work / "plug")
    wanted = {r.reference for r in runs if not r.draft}
    paths = checkpoints.make(
        {r.checkpoint for r in runs} | {KINDS[w][0] for w in wanted},
        options.checkpoint.resolve(),
        options.corpus,
        work / "checkpoints",
    )
    asked = prompts(options.corpus, options.documents, options.tokens, options.new)
    document = {"prompts": vars(asked), "checkpoints": {n: str(p) for n, p in paths.items()}}
    if not (told := work / "prompts.json").exists() or json.loads(told.read_text())["prompts"] != document["prompts"]:
        for stale in work.glob("reference-*.json"):
            stale.unlink()
    told.write_text(json.dumps(document))
    print(f"checkpoints: {time.time() - begin:.0f} s", flush=True)
    servers = []
    for i, run in enumerate(runs):
        line = command(run, paths, options.port + 100 * i, options.python)
        env = environment(run, options.site.resolve(), work, options.jit.resolve() if options.jit else None)
        servers.append(Server(run, asked, line, env, work / f"server-{run.name}.log", options.limit))
    if options.dry_run:
        for server in servers:
            print(server.outcome.run.name, " ".join(server.line))
        return 0
    for server in servers:
        server.start()
    models = references({w for w in wanted if not (work / f"reference-{w}.json").exists()}, work)
    for server in servers:
        server.join()
    print(f"servers: {time.time() - begin:.0f} s", flush=True)
    return report(work, [s.outcome for s in servers], models, options.limit)


def report(
    work: Path, outcomes: Sequence[Outcome], models: Mapping[str, subprocess.Popen[bytes]], patience: float
) -> int:
    """Print the table, write results.json; 1 where a run failed that should not, or the other way."""
    for name, model in models.items():
        try:
            model.wait(patience)
        except subprocess.TimeoutExpired:
            model.kill()
            print(f"reference {name}: not done in time", flush=True)
    known = {}
    for name in {o.run.reference for o in outcomes}:
        if (path := work / f"reference-{name}.json").exists():
            known[name] = Scores(**json.loads(path.read_text()))
    scores = {o.run.name: o.scores for o in outcomes}
    rows = [row(o, scores.get("mxfp4"), known, scores.get(o.run.same_as)) for o in outcomes]
    (work / "results.json").write_text(json.dumps(rows, indent=1))
    for outcome in outcomes:
        if outcome.scores is not None:
            (work / f"scores-{outcome.run.name}.json").write_text(json.dumps({**outcome.scores.document(), "full": []}))
    print(json.dumps({"rows": rows}))
    print(table(rows))
    print(loading.table(rows))
    return int(any(not r.get("failed_as_it_must", not r["error"]) for r in rows))


if __name__ == "__main__":
    sys.exit(main())
