"""The digit program, the demo around it, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import openbnns
import pytest
from openbnns import demo
from openbnns.__main__ import main
from openbnns.examples import digits


def trained(seed: int) -> tuple[list[float], float]:
    network = digits.DigitNetwork(seed)
    losses = list(digits.train(network, seed))
    return losses, digits.accuracy(network, seed + 1)


def test_the_digit_program_learns_and_stops():
    losses, share = trained(0)
    assert 20 < losses[0] < 40
    assert len(losses) < 1000  # the mean of the last 20 fell below 0.125
    assert share >= 0.95


@pytest.mark.long
def test_the_digit_program_over_ten_seeds():
    runs = [trained(seed) for seed in range(10)]
    assert 26 <= np.mean([losses[0] for losses, _ in runs]) <= 35
    assert sum(560 <= len(losses) <= 800 for losses, _ in runs) >= 8
    assert min(share for _, share in runs) >= 0.95


def test_the_digit_program_follows_pytorch():
    """Equal weights and data: the same loss to four digits for 50 steps.

    Adam adds ε to the square root of the plain second moment, as BNNS does; PyTorch adds it to that
    of the corrected one, which alone moves these losses by up to 6e-4.
    """
    torch = pytest.importorskip("torch")
    network = digits.DigitNetwork(3)
    p = [torch.tensor(array, requires_grad=True) for array in network.parameters.values()]
    first, second = ([torch.zeros_like(w) for w in p] for _ in range(2))
    for step in range(50):
        images, labels = digits.make_batch(3, step)
        fc_weights, weights, bias, beta, gamma = p
        z = torch.nn.functional.conv2d(torch.from_numpy(images), weights, bias, padding=1)
        z = torch.nn.functional.batch_norm(z, None, None, gamma, beta, training=True, eps=1e-7)
        z = torch.nn.functional.max_pool2d(z.relu(), 2).flatten(1) @ fc_weights.T
        loss = torch.nn.functional.cross_entropy(z, torch.from_numpy(labels))
        rate = 0.01 * (1 - 0.999 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
        for w, g, m, v in zip(p, torch.autograd.grad(loss, p), first, second, strict=True):
            with torch.no_grad():  # clipped first, then the penalty
                g = g.clamp(-0.5, 0.5) + 0.01 * w
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                w -= rate * m / (v.sqrt() + 1e-8)
        ours = network.step(images, labels)
        assert abs(ours - loss.item()) <= 1e-4 * loss.item(), step


def small_handwriting() -> demo.Handwriting:
    """Something to train on where no data set is installed: digits drawn by the program."""
    images, labels = digits.make_batch(0, 0, 1152)
    shown = labels.argmax(axis=1)
    return demo.Handwriting("drawn", images[128:], shown[128:], images[:128], shown[:128])


def state_bits(training: demo.Training) -> dict[str, bytes]:
    network = training.network
    arrays = {**network.parameters, **network.statistics, **network.adam.state_dict()}
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("kind", ["drawn", "handwriting"])
def test_resumed_training_has_the_same_bits(tmp_path, kind):
    def fresh() -> demo.Training:
        if kind == "drawn":
            return demo.digit_training(5)
        return demo.handwriting_training(small_handwriting(), 5, 2)

    whole = fresh()
    for _ in range(20):
        whole.advance()
    first, path = fresh(), tmp_path / "a.safetensors"
    for _ in range(9):
        first.advance()
    first.save(path)
    second = fresh()
    second.load(path)
    for _ in range(11):
        second.advance()
    assert second.losses == whole.losses
    assert state_bits(second) == state_bits(whole)


def test_the_small_network_learns():
    data = small_handwriting()
    training = demo.handwriting_training(data, 0, 10)
    while not training.is_done():
        training.advance()
    assert training.losses[-1] < training.losses[0] / 4
    assert (training.network.predict(data.held_out_images) == data.held_out_digits).mean() > 0.8


def test_a_foreign_checkpoint_is_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "a.safetensors"
    demo.digit_training(1).save(path)
    for other in (demo.digit_training(2), demo.handwriting_training(small_handwriting(), 1, 1)):
        before = state_bits(other)
        with pytest.raises(openbnns.CheckpointError, match="expected"):
            other.load(path)
        assert state_bits(other) == before
    arrays, notes = openbnns.io.load_checkpoint(path)
    for name in ("losses", "parameter.bias", "adam.time_step"):
        wrong = {**arrays, name: np.zeros((2, 2), np.float32)}
        openbnns.io.save_checkpoint(path, wrong, notes)
        same = demo.digit_training(1)
        before = state_bits(same)
        with pytest.raises(openbnns.CheckpointError):
            same.load(path)
        assert state_bits(same) == before


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tmp_path):
    command = [sys.executable, "-m", "openbnns", "demo", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "step     0" in line:
                break
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 130
    assert "--resume" in rest
    stopped = demo.digit_training(0)
    stopped.load(tmp_path / "drawn-digits.safetensors")
    assert 0 < len(stopped.losses) < 1000
    assert sorted(os.listdir(tmp_path)) == ["drawn-digits.safetensors"]


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    assert openbnns.isa() in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["version"] == openbnns.version()
    assert report["built"]["BNNSLossFilterApplyBackwardBatch"] is True


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["demo", "--folder", str(blocked)]) == 1
    assert "openbnns demo:" in capsys.readouterr().err
    for wrong in (["nothing"], ["demo", "--epochs", "0"], ["demo", "--seed", "-1"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


@pytest.mark.parametrize(
    ("command", "function"),
    [("demo", "demo.run"), ("check", "checking.check_all"), ("bench", "bench.run")],
)
def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, command, function):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"openbnns.{function}", interrupted)
    assert main([command]) == 130
