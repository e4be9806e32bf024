"""What is published is what was trained."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from examples.nano_k3 import vocabulary  # noqa: E402
from examples.nano_k3.model import Model, initial  # noqa: E402
from examples.nano_k3.publish import SHARD_BYTES, publish, shards  # noqa: E402
from examples.nano_k3.shape import SHAPE, TINY  # noqa: E402
from truecast.checkpoint.source import open_checkpoint  # noqa: E402
from truecast.cli.main import main  # noqa: E402
from truecast.models.generate import logits  # noqa: E402
from truecast.models.open import open_model  # noqa: E402
from truecast.models.rows import Rows  # noqa: E402


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    folder = tmp_path_factory.mktemp("nano")
    ranks = {bytes([b]): b for b in range(256)} | {b"%d_" % n: 256 + n for n in range(vocabulary.RANKS - 256)}
    (folder / "tiktoken.model").write_bytes(vocabulary.ranks_file(ranks))
    (folder / "tokenizer_config.json").write_bytes(vocabulary.config_file())
    parameters = initial(TINY, seed=3)
    generator = torch.Generator().manual_seed(4)
    for name, value in parameters.items():  # nothing at its neutral start
        if value.dim() == 1 or "res_proj" in name:
            value += 0.2 * torch.randn(value.shape, generator=generator)
    publish(folder / "checkpoint", TINY, parameters, folder)
    return folder / "checkpoint", Model(TINY, parameters, torch.float32)


def test_the_checkpoint_gives_the_logits_of_the_training_forward(published: tuple[Path, Model]) -> None:
    folder, model = published
    tokens = torch.randint(TINY.vocab, (50,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        trained = model.logits(tokens, Rows((50,)))
    stored = logits(open_model(folder), tokens)
    assert (trained - stored).abs().max() < 1e-5 * stored.abs().max()
    assert (trained.argmax(-1) == stored.argmax(-1)).all()


def test_a_log_is_longer_than_the_heads_with_zeros_behind(published: tuple[Path, Model]) -> None:
    checkpoint = open_checkpoint(published[0])
    info = checkpoint.tensors["language_model.model.layers.0.self_attn.A_log"]
    data = (published[0] / info.file).read_bytes()[info.start : info.end]
    assert info.shape == (128,)
    assert any(data[: 4 * TINY.heads])
    assert not any(data[4 * TINY.heads :])


@pytest.mark.parametrize("command", [["inspect"], ["check"]])
def test_the_tool_is_content_with_it(
    published: tuple[Path, Model], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(published[0])]) == 0, capsys.readouterr().out


def test_the_true_shape_fits_the_repository() -> None:
    sizes = [sum(spec.nbytes for spec in specs) for specs in shards(SHAPE).values()]
    assert len(sizes) <= 5
    assert max(sizes) < SHARD_BYTES
    assert sum(sizes) < 60e6
