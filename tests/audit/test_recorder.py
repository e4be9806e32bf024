"""What the taps of a calibration add up, against plain computation."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from truecast.audit.recorder import Recorder, with_never_routed

BANK = "model.layers.1.experts."


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 2**31))
def test_sums_over_calls_are_those_of_all_rows(sizes: list[int], width: int, seed: int) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((sum(sizes), width)).astype(np.float32))
    recorder = Recorder(hessian=True)
    for part in x.split(sizes):
        assert recorder.input("m", part, None) is part
    found = recorder.take()["m"]
    wide = x.numpy().astype(np.float64)
    assert found.tokens == len(x)
    assert found.amax == np.abs(x.numpy()).max()
    np.testing.assert_allclose(found.second_moment, (wide**2).mean(0), rtol=1e-6)
    assert found.hessian is not None
    np.testing.assert_allclose(found.hessian, wide.T @ wide / len(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.hessian, found.hessian.T)
    assert recorder.take() == {}


def test_one_input_of_two_matrices_is_added_once() -> None:
    recorder = Recorder(hessian=False)
    for rows in (2, 3):
        x = torch.ones(rows, 4)
        recorder.input("w1", x, None)
        recorder.input("w3", x, None)
        recorder.input("w2", 2 * x, None)
    found = recorder.take()
    assert found["w1"] is found["w3"]
    assert [found[name].tokens for name in ("w1", "w3", "w2")] == [5, 5, 5]
    assert found["w2"].second_moment.tolist() == [4] * 4


def test_equal_inputs_in_two_tensors_are_not_taken_for_one() -> None:
    recorder = Recorder(hessian=False)
    for module in ("a", "b", "a"):
        recorder.input(module, torch.ones(1, 2), None)
    found = recorder.take()
    assert (found["a"].tokens, found["b"].tokens) == (2, 1)


def test_experts_without_tokens_have_the_banks_values() -> None:
    recorder = Recorder(hessian=True)
    one, two = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 2.0], [2.0, 0.0]])
    for expert, x in ((0, one), (2, two)):
        recorder.input(f"{BANK}{expert}.w1", x, None)
        recorder.input(f"{BANK}{expert}.w3", x, None)
        recorder.input(f"{BANK}{expert}.w2", 10 * x[:1], None)
    modules = [f"{BANK}{e}.{leaf}" for e in range(3) for leaf in ("w1", "w3", "w2")]
    found = with_never_routed(recorder.take(), [*modules, "model.layers.1.other"])
    assert list(found) == modules
    up, down = found[f"{BANK}1.w1"], found[f"{BANK}1.w2"]
    assert (up.tokens, up.amax, up.second_moment.tolist()) == (0, 4, [5 / 4, 20 / 4])
    assert (down.tokens, down.amax, down.second_moment.tolist()) == (0, 40, [50, 800])
    assert up.hessian is not None and up.hessian.tolist() == [[5 / 4, 0], [0, 5]]
    assert found[f"{BANK}0.w1"].amax == 1
