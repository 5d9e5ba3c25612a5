"""The networks of benchmarks/networks.py: PyTorch's steps are ours."""

import dataclasses

import numpy as np
import pytest

from benchmarks.networks import NETWORKS

RATE = 1e-4
STEPS = 2


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    from oracles.blocks import Blocks, Training

    usual = dataclasses.replace(NETWORKS[name], batch=4)
    network = usual.network(RATE)
    start = {key: array.copy() for key, array in network.parameters().items()}
    peer = Training(Blocks(usual.blocks(), start), RATE)
    for batch in usual.batches(STEPS):
        ours, theirs = network.train_step(*batch), peer.step(*map(torch.from_numpy, batch))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    for key, array in network.parameters().items():
        found = peer.model.p[key.replace(".", "-")].detach().numpy()
        # Adam's first steps have the sign of the gradient, which rounding decides where it is zero.
        far = np.abs(found - array) > 0.1 * RATE
        assert far.mean() < 0.1, f"{key}: {far.mean():.3f} of its values"
