"""The native side. Only the other files of this package call it: arguments are positional, and what
each means is in bindings/."""

from collections.abc import Callable
from typing import Any, final

from ._spec import Array, GradientTarget

Operand = tuple[Any, ...]
NativeActivation = tuple[Any, ...]
Description = tuple[Any, ...]  # of a layer, by `describe` of its module

@final
class Filter:
    @property
    def closed(self) -> bool: ...
    @property
    def handle(self) -> int: ...
    def close(self) -> None: ...
    def describe(self, batch: int, /) -> str: ...

@final
class Parameter:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Generator: ...

@final
class Tensors: ...

@final
class Program:
    def __call__(self) -> None: ...

def record(calls: list[tuple[str, Callable[[], Any]]], /) -> Program | None: ...
def repeat(
    program: Program,
    runs: int,
    feeds: list[tuple[Array | bytearray, Array | bytes, Array | None]],
    result: Array,
    results: Array,
    /,
) -> int: ...
def require_finite(name: str, value: Array, /) -> None: ...
def activation_create(
    name: str,
    input: Operand,
    output: Operand,
    alpha: Operand,
    activation: NativeActivation,
    axis_flags: int,
    threads: int,
    /,
) -> Filter: ...
def activation_apply(filter: Filter, x: Array, out: Array | None, /) -> Any: ...
def activation_backward(
    filter: Filter,
    x: Array | None,
    y: Array | None,
    grad_output: Array,
    input_gradient: GradientTarget,
    alpha_gradient: GradientTarget,
    accumulate: int,
    /,
) -> tuple[Any, Any]: ...
def activation_direct(
    name: str,
    input: Operand,
    output: Operand,
    activation: NativeActivation,
    axis_flags: int,
    threads: int,
    x: Array,
    out: Array | None,
    /,
) -> Any: ...
def activation_parameter(filter: Filter, which: int, /) -> Parameter: ...
def arithmetic_create(name: str, description: Description, threads: int, /) -> Filter: ...
def arithmetic_apply(filter: Filter, out: Array | None, /, *inputs: Array) -> Any: ...
def arithmetic_backward(
    filter: Filter,
    y: Array | None,
    grad_output: Array,
    accumulate: int,
    /,
    *inputs_and_gradients: Any,
) -> tuple[Any, ...]: ...
def clip_value(
    name: str,
    input: Operand,
    output: Operand,
    x: Array,
    out: Array | None,
    low: float,
    high: float,
    /,
) -> Any: ...
def clip_norm(
    name: str,
    input: Operand,
    output: Operand,
    x: Array,
    out: Array | None,
    threshold: float,
    axis_flags: int,
    /,
) -> Any: ...
def clip_global_norm(
    name: str,
    arrays: list[tuple[Operand, Operand, Array, Array | None]],
    threshold: float,
    global_norm: float,
    /,
) -> list[Any]: ...
def clip_compute_norm(
    name: str, input: Operand, output: Operand, x: Array, out: Array | None, axis_flags: int, /
) -> Any: ...
def clip_norm_backward(
    name: str,
    input: Operand,
    output: Operand,
    x: Array,
    y: Array,
    grad_output: Array,
    input_gradient: Array | None,
    axis_flags: int,
    accumulate: bool,
    /,
) -> Any: ...
def convolution_create(
    name: str, description: Description, winograd: int, threads: int, copy_parameters: bool, /
) -> Filter: ...
def fully_connected_create(
    name: str, description: Description, precision: int, threads: int, copy_parameters: bool, /
) -> Filter: ...
def fully_connected_sparsify(
    name: str,
    rows: int,
    columns: int,
    values: Array,
    data_type: int,
    indices: Array,
    row_starts: Array | None,
    numerator: int,
    denominator: int,
    /,
) -> bytes: ...
def fused_create(
    name: str,
    first_type: int,
    first: Description,
    output: Operand,
    second_type: int,
    second: Description,
    pooling: Description | None,
    winograd: int,
    threads: int,
    copy_parameters: bool,
    /,
) -> Filter: ...
def fused_apply(filter: Filter, out: Array | None, training: bool, /, *inputs: Array) -> Any: ...
def fused_backward(
    filter: Filter,
    y: Array | None,
    grad_output: Array,
    accumulate: int,
    /,
    *inputs_and_gradients: Any,
) -> tuple[Any, ...]: ...
def fused_work_bytes(filter: Filter, batch: int, /) -> int: ...
def fused_kept_bytes(filter: Filter, batch: int, /) -> int: ...
def attention_create(
    name: str,
    query: Description,
    key: Description,
    value: Description,
    output: Description,
    key_attention_bias_operand: Operand,
    value_attention_bias_operand: Operand,
    mask: Operand,
    key_attention_bias: Array | None,
    value_attention_bias: Array | None,
    add_zero: bool,
    dropout: float,
    seed: int,
    causal: bool,
    threads: int,
    copy_parameters: bool,
    /,
) -> Filter: ...
def attention_apply(
    filter: Filter,
    query: Array,
    key: Array,
    value: Array,
    key_mask: Array | None,
    attention_bias: tuple[Operand, Array] | None,
    out: Array | None,
    cache: Array | None,
    /,
) -> Any: ...
def attention_backward(
    filter: Filter,
    query: Array | None,
    key: Array | None,
    value: Array | None,
    grad_output: Array,
    key_mask: Array | None,
    attention_bias: tuple[Operand, Array] | None,
    cache: Array | None,
    targets: tuple[GradientTarget, ...],
    accumulate: int,
    /,
) -> tuple[Any, ...]: ...
def attention_cache_bytes(filter: Filter, batch: int, /) -> int: ...
def normalization_kept_bytes(filter: Filter, batch: int, /) -> int: ...
def matmul_create(
    name: str,
    a: Operand,
    b: Operand,
    output: Operand,
    weights: Array | None,
    flags: int,
    threads: int,
    copy_parameters: bool,
    transpose_a: bool,
    transpose_b: bool,
    alpha: float,
    accumulate_to_output: bool,
    /,
) -> Filter: ...
def contraction_create(
    name: str,
    a: Operand,
    b: Operand,
    output: Operand,
    weights: Array | None,
    flags: int,
    threads: int,
    copy_parameters: bool,
    expression: str,
    alpha: float,
    beta: float,
    /,
) -> Filter: ...
def gram_create(
    name: str, input: Operand, output: Operand, threads: int, alpha: float, /
) -> Filter: ...
def matmul_apply(filter: Filter, a: Array | None, b: Array | None, out: Array | None, /) -> Any: ...
def matmul_backward(
    filter: Filter,
    a: Array | None,
    b: Array | None,
    grad_output: Array,
    a_gradient: GradientTarget,
    b_gradient: GradientTarget,
    accumulate: int,
    /,
) -> tuple[Any, Any]: ...
def matmul_direct(
    name: str,
    a_operand: Operand,
    b_operand: Operand,
    output: Operand,
    transpose_a: bool,
    transpose_b: bool,
    alpha: float,
    a: Array,
    b: Array,
    out: Array | None,
    workspace: Array | None,
    /,
) -> Any: ...
def matmul_workspace_size(
    name: str,
    a: Operand,
    b: Operand,
    output: Operand,
    transpose_a: bool,
    transpose_b: bool,
    alpha: float,
    /,
) -> int: ...
def normalization_create(
    name: str,
    input: Operand,
    output: Operand,
    description: Description,
    threads: int,
    copy_parameters: bool,
    borrow_input: bool,
    /,
) -> Filter: ...
def normalization_apply(filter: Filter, x: Array, out: Array | None, training: bool, /) -> Any: ...
def normalization_backward(
    filter: Filter,
    y: Array | None,
    grad_output: Array,
    input_gradient: GradientTarget,
    beta_gradient: GradientTarget,
    gamma_gradient: GradientTarget,
    accumulate: int,
    /,
) -> tuple[Any, Any, Any]: ...
def weighted_apply(filter: Filter, x: Array, out: Array | None, /) -> Any: ...
def weighted_backward(
    filter: Filter,
    x: Array | None,
    y: Array | None,
    grad_output: Array,
    input_gradient: GradientTarget,
    weights_gradient: GradientTarget,
    bias_gradient: GradientTarget,
    accumulate: int,
    /,
) -> tuple[Any, Any, Any]: ...
def weighted_work_bytes(filter: Filter, batch: int, /) -> int: ...
def optimizer_hold(
    name: str, argument: str, operands: list[Operand], arrays: list[Array], /
) -> Tensors: ...
def optimizer_step(
    name: str,
    function: int,
    fields: bytes | bytearray,
    parameters: Tensors,
    gradients: list[Array] | Tensors,
    accumulators: Tensors | None,
    threads: int,
    /,
) -> None: ...
def random_create(seed: int | None, threads: int, /) -> Generator: ...
def random_get_state(generator: Generator, /) -> bytes: ...
def random_set_state(generator: Generator, state: bytes, /) -> None: ...
def random_uniform(
    generator: Generator, name: str, operand: Operand, out: Array | None, low: float, high: float, /
) -> Any: ...
def random_normal(
    generator: Generator, name: str, operand: Operand, out: Array | None, mean: float, std: float, /
) -> Any: ...
def random_integers(
    generator: Generator, name: str, operand: Operand, out: Array | None, low: int, high: int, /
) -> Any: ...
def random_categorical(
    generator: Generator,
    name: str,
    weights: Operand,
    draws: Operand,
    probabilities: Array,
    out: Array | None,
    log: bool,
    /,
) -> Any: ...
def loss_create(
    name: str,
    input: Operand,
    output: Operand,
    function: int,
    reduction: int,
    parameter: float,
    yolo: tuple[Any, ...] | None,
    threads: int,
    /,
) -> Filter: ...
def loss_apply(
    filter: Filter,
    x: Array,
    labels: Array,
    class_type: int,
    weights: Array | None,
    out: Array | None,
    input_gradient: GradientTarget,
    accumulate: int,
    /,
) -> Any: ...
def loss_backward(
    filter: Filter,
    x: Array,
    labels: Array,
    class_type: int,
    weights: Array | None,
    grad_output: Array,
    input_gradient: GradientTarget,
    accumulate: int,
    /,
) -> Any: ...
def pooling_create(
    name: str,
    input: Operand,
    output: Operand,
    bias_operand: Operand,
    indices_32: Operand,
    indices_64: Operand,
    bias: Array | None,
    description: Description,
    threads: int,
    copy_parameters: bool,
    /,
) -> Filter: ...
def pooling_apply(
    filter: Filter, x: Array, out: Array | None, indices: Array | None, return_indices: bool, /
) -> Any: ...
def pooling_backward(
    filter: Filter,
    x: Array | None,
    y: Array | None,
    grad_output: Array,
    indices: Array | None,
    input_gradient: GradientTarget,
    bias_gradient: GradientTarget,
    accumulate: int,
    /,
) -> tuple[Any, Any]: ...
def quantization_direct(
    name: str,
    input: Operand,
    output: Operand,
    description: Description,
    threads: int,
    x: Array,
    out: Array | None,
    /,
) -> Any: ...
def copy_packed(to: Array, source: Array, /) -> bool: ...
def version() -> str: ...
def isa() -> str: ...
def isa_reason() -> str: ...
def last_error() -> str: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int, /) -> None: ...
def get_matmul_precision() -> int: ...
def set_matmul_precision(precision: int, /) -> None: ...
def get_winograd() -> bool: ...
def set_winograd(allowed: bool, /) -> None: ...
def set_seed(seed: int, /) -> None: ...
def forget_calls() -> None: ...
def watch_signals(main_thread: int, /) -> None: ...
def is_implemented(function: str, /) -> int: ...
def library_path() -> str: ...
