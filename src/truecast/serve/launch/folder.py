"""Writing a launch into a folder: the same plan gives the same bytes, and nobody else's file is replaced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from truecast.errors import RefusedError, UsageError
from truecast.serve.launch.kubernetes import lws_yaml
from truecast.serve.launch.launch_plan import LaunchPlan
from truecast.serve.launch.router import router_script
from truecast.serve.launch.scripts import MARK, node_script, setup_script
from truecast.serve.launch.slurm import job_script

NAMES = ("setup.sh", "node.sh", "job.slurm", "lws.yaml", "router.sh")


def launch_files(plan: LaunchPlan) -> dict[str, str]:
    """Name -> text of each file of a launch; ``router.sh`` only for several replicas.

    Raises: UsageError for a path with control characters, which YAML cannot hold and a terminal would obey.
    """
    files = {
        "setup.sh": setup_script(plan),
        "node.sh": node_script(plan),
        "job.slurm": job_script(plan),
        "lws.yaml": lws_yaml(plan),
    }
    return files | {"router.sh": router_script(plan)} if plan.replicas > 1 else files


def write_launch(plan: LaunchPlan, out: Path) -> list[Path]:
    """Write them. What an earlier launch wrote there is replaced, or removed where this one has no such file.

    Raises: RefusedError for a file that is not ours, before anything is written; UsageError as :func:`launch_files`, or
    where the folder cannot be written.
    """
    files = launch_files(plan)
    try:
        found = [out / name for name in NAMES if os.path.lexists(out / name)]
        foreign = [path for path in found if not _is_ours(path)]
        if foreign:
            raise RefusedError(
                "is there already, and truecast launch has not written it",
                where=str(foreign[0]),
                fix="move it away, or take another folder",
            )
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            _replace(out / name, text)
        for path in found:
            if path.name not in files:
                path.unlink()
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(error.filename or out)) from None
    return [out / name for name in files]


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return any(file.readline(200).startswith(MARK.encode()) for _ in range(2))


def _replace(path: Path, text: str) -> None:
    """Through a file of a new name: what lies there already, maybe a link to elsewhere or a pipe, is never opened."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f".{path.name}.", dir=path.parent, delete=False
    ) as file:
        partial = Path(file.name)
        try:
            file.write(text)
            file.flush()
            partial.chmod(0o644)
            partial.replace(path)
        except BaseException:
            partial.unlink()
            raise
