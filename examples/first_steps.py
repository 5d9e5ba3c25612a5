"""First steps: a pooling and an activation layer, forward and backward, on a printable picture."""

import time

import numpy as np
import openbnns as bnns


def show(title: str, image: np.ndarray) -> None:
    """Print one channel of an image, larger values as denser characters."""
    shades = " .:-=+*#%@"
    low, high = float(image.min()), float(image.max())
    scale = (len(shades) - 1) / (high - low) if high > low else 0.0
    print(f"\n{title}, {image.shape[0]} x {image.shape[1]}, from {low:.3g} to {high:.3g}")
    for row in image:
        print("    " + "".join(shades[round((float(v) - low) * scale)] * 2 for v in row))


def main() -> None:
    print(f"OpenBNNS {bnns.__version__}, {bnns.isa()} kernels, {bnns.get_num_threads()} threads")

    # A ring, as a batch of one image with one channel: (N, C, H, W). The noise keeps maxima apart:
    # where two are equal, a maximum has no slope that could be measured below.
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[-1:1:24j, -1:1:24j]
    ring = np.exp(-20 * (np.hypot(rows, columns) - 0.6) ** 2) + 0.1 * random.random((24, 24))
    x = ring.astype(np.float32)[None, None]
    show("the input", x[0, 0])

    # Max pooling halves it, and tells where every maximum came from.
    pool = bnns.PoolingLayer("max", input=(1, 24, 24), kernel_size=3, stride=2, padding=1)
    pooled, indices = pool.apply(x, return_indices=True)
    show("max pooling 3 x 3, stride 2", pooled[0, 0])

    # A steep tanh, written into an array of ours.
    tanh = bnns.ActivationLayer(bnns.Activation.scaled_tanh(1.0, 2.0), input=pooled.shape[1:])
    y = np.empty_like(pooled)
    tanh.apply(pooled, out=y)

    # Backward, layer by layer: loss = sum of squares / 2, so its gradient is y itself.
    grad_pooled = tanh.apply_backward(pooled, y, y).input
    grad_x = pool.apply_backward(x, pooled, grad_pooled, indices=indices).input
    show("the gradient, scattered back to the winners", grad_x[0, 0])

    # Is it right? Move the input a little in a random direction, and compare the loss with what
    # the gradient promises.
    direction = random.standard_normal(x.shape).astype(np.float32)

    def loss(image: np.ndarray) -> float:
        return float((tanh.apply(pool.apply(image)).astype(np.float64) ** 2).sum() / 2)

    step = 1e-4
    measured = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    promised = float((grad_x.astype(np.float64) * direction).sum())
    print(f"\nslope along a random direction: measured {measured:.5f}, promised {promised:.5f}")

    # And how long does it take on something of real size?
    batch = random.standard_normal((32, 64, 112, 112), dtype=np.float32)
    layer = bnns.PoolingLayer("max", input=batch.shape[1:], kernel_size=3, stride=2, padding=1)
    out, where = layer.apply(batch, return_indices=True)
    grad = np.empty_like(batch)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        layer.apply(batch, out=out, indices=where)
        layer.apply_backward(None, out, out, indices=where, input_gradient=grad)
        times.append(time.perf_counter() - start)
    print(
        f"max pooling 3 x 3 of 32 images with 64 channels of 112 x 112, forward and backward: "
        f"{min(times) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()
