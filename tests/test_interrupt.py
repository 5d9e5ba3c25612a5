"""Ctrl-C in a long native call: KeyboardInterrupt soon, and everything usable afterwards."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs signals")

# The slowest kernels on one thread, so that a call takes long enough anywhere.
SLOW = {"OPENBNNS_ISA": "portable", "OPENBNNS_NUM_THREADS": "1"}

PRODUCT = """
layer = bnns.FullyConnectedLayer(input=(4000,), output=(4000,), weights=np.ones((4000, 4000), "f4"))
x = np.ones((9000, 4000), "f4")
call = lambda: layer.apply(x)
check = lambda: np.array_equal(layer.apply(x[:3]), np.full((3, 4000), 4000, "f4"))
"""

CONVOLUTION = """
weights = np.ones((128, 128, 5, 5), "f4")
layer = bnns.ConvolutionLayer(input=(128, 128, 128), weights=weights, padding=2)
x = np.ones((24, 128, 128, 128), "f4")
call = lambda: layer.apply(x)
check = lambda: layer.apply(x[:1])[0, 0, 64, 64] == 25 * 128
"""

WEIGHTS = """
weights = np.ones((128, 128, 5, 5), "f4")
layer = bnns.ConvolutionLayer(input=(128, 128, 128), weights=weights, padding=2)
x = np.ones((24, 128, 128, 128), "f4")
call = lambda: layer.apply_backward(x, None, x, input_gradient=False)
check = lambda: layer.apply(x[:1])[0, 0, 64, 64] == 25 * 128
"""

PROGRAM = """
import signal, sys, time
import numpy as np, openbnns as bnns
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
{setup}
print("begins", flush=True)
try:
    call()
    print("ends", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(check(), flush=True)
"""

HANDLER = """
seen = []
def handler(number, frame):
    other = bnns.ActivationLayer("tanh", input=(1 << 16,))  # a handler may use the library
    seen.append(float(other.apply(np.zeros((4, 1 << 16), "f4")).sum()))
    raise TimeoutError
signal.signal(signal.SIGINT, handler)
inner = call
def call():
    try:
        inner()
    except TimeoutError:
        assert seen == [0.0]
        raise KeyboardInterrupt
"""


def interrupted_after(setup, threads="1"):
    """Sends SIGINT in the middle of the call: seconds until it was heard, and what was printed."""
    environment = {**os.environ, **SLOW, "OPENBNNS_NUM_THREADS": threads}
    command = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "begins\n"
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            begin = time.monotonic()
            heard = child.stdout.readline()
            took = time.monotonic() - begin
            rest = child.stdout.read()
        finally:
            child.kill()
    return took, heard + rest


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("setup", [PRODUCT, CONVOLUTION, WEIGHTS], ids=["product", "forward", "dw"])
def test_ctrl_c_ends_a_long_call(setup, threads):
    took, text = interrupted_after(setup, threads)
    assert text == "interrupted\nTrue\n"
    assert took < 5  # the call itself takes much longer; between two questions it is 0.1 s or so


def test_signal_handler_may_use_the_library_and_raise_what_it_likes():
    _, text = interrupted_after(PRODUCT + HANDLER)
    assert text == "interrupted\nTrue\n"


def test_a_handler_that_returns_lets_the_call_go_on():
    setup = """
layer = bnns.FullyConnectedLayer(input=(2000,), output=(2000,), weights=np.ones((2000, 2000), "f4"))
x = np.ones((4000, 2000), "f4")
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
def call():
    global y
    for _ in range(100):
        y = layer.apply(x)
        if seen:
            break
check = lambda: bool(seen) and np.array_equal(y, np.full((4000, 2000), 2000, "f4"))
"""
    _, text = interrupted_after(setup)
    assert text == "ends\nTrue\n"
