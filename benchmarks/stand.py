"""`python -m benchmarks.stand` writes the tables of README's "Where we stand" from results/."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import OURS, SEPARATE, Row, duration

HERE = Path(__file__).parent
START, END = "**Convolution**", "What is short, and why:"


class Table(NamedTuple):
    title: str
    results: str  # the file, without the machine
    families: tuple[str, ...]
    phases: tuple[str, ...]
    only: str = ""  # regular expression of its cases


HALF = "(bfloat16|float16|medium)$"
TABLES = (
    Table(
        "**Convolution**, forward and both gradients:", "convolution", ("convolution",), ("all",)
    ),
    Table(
        "**Products** m x n x k; `nt`: the second factor lies as (n, k):",
        "products",
        ("gemm",),
        ("forward",),
        f"^(?!.*{HALF})",
    ),
    Table(
        "**Products of other types**, against our float32:",
        "products",
        ("gemm",),
        ("forward",),
        HALF,
    ),
    Table(
        "**Fully connected**, forward and both gradients:",
        "products",
        ("fully_connected",),
        ("all",),
    ),
    Table(
        "**Fused layers**, forward and backward with all gradients:", "fused", ("fused",), ("both",)
    ),
    Table(
        "**Normalization and arithmetic**, forward and backward:",
        "normalization",
        ("normalization", "arithmetic"),
        ("both",),
    ),
    Table(
        "**Activations** of a million values, forward and backward, 2 threads:",
        "activation",
        ("activation",),
        ("both",),
    ),
    Table(
        "**Pooling**, 2 threads. PyTorch: mostly with given outputs, which autograd cannot use:",
        "pooling",
        ("pooling",),
        ("forward", "backward"),
        "-32x64x112x112",
    ),
    Table("**Losses with their gradient**, 2 threads:", "loss", ("loss",), ("both",)),
    Table(
        "**Optimizers**, one step of a million parameters, 2 threads:",
        "loss",
        ("optimizer",),
        ("forward",),
    ),
    Table(
        "**Attention and batched products**, forward and backward:",
        "attention",
        ("attention", "matmul"),
        ("both",),
    ),
    Table("**Whole training steps**, loss read by Python:", "training", ("training",), ("step",)),
    Table(
        "**Python threads** that train a network each, time per step of all together:",
        "threads",
        ("threads",),
        ("1 user", "2 users"),
    ),
)

COLUMNS = (
    "ours",
    "PyTorch",
    "compiled",
    "oneDNN",
    "JAX",
    "our float32",
    "our two layers",
    "over the floor",
)


def main() -> None:
    tables = "\n".join(f"{table.title}\n\n{lines(table)}" for table in TABLES)
    readme = HERE / "README.md"
    text = readme.read_text()
    readme.write_text(text[: text.index(START)] + f"{tables}\n" + text[text.index(END) :])


def lines(table: Table) -> str:
    """One line per case and phase, the thread counts side by side."""
    (path,) = (HERE / "results").glob(f"*-{table.results}.json")
    found: dict[str, list[dict[str, str]]] = {}
    for row in map(Row.from_json, json.loads(path.read_text())["rows"]):
        belongs = row.family in table.families and row.phase in table.phases
        if belongs and re.search(table.only, row.case):
            name = row.case if len(table.phases) == 1 else f"{row.case}, {row.phase}"
            found.setdefault(name, []).append(cells(row))
    present = {column for rows in found.values() for row in rows for column in row}
    columns = [column for column in COLUMNS if column in present]
    words = [["", *columns], ["---" for _ in ("", *columns)]]
    for name, rows in found.items():
        words += [[name, *(" / ".join(row.get(c, "-") for row in rows) for c in columns)]]
    return "".join(f"| {' | '.join(line)} |\n" for line in words)


def cells(row: Row) -> dict[str, str]:
    """What a row has for each column; for a peer the time of its fastest variant over ours."""
    ours = row.best_of(OURS)[1].median
    best: dict[str, float] = {}
    for name, timing in row.times.items():
        column = column_of(name)
        best[column] = min(best.get(column, timing.median), timing.median)
    found = {column: f"{time / ours:.3g}x" for column, time in best.items()}
    found["ours"] = duration(ours)
    if row.floor:
        found["over the floor"] = f"{ours / row.floor:.2g}"
    return found


def column_of(contender: str) -> str:
    peer, *variant = contender.split()
    if peer == "torch":
        return "compiled" if "compiled" in variant else "PyTorch"
    columns = {"onednn": "oneDNN", "jax": "JAX", "openbnns": "our float32"}
    return {**columns, SEPARATE: "our two layers"}.get(peer, peer)


if __name__ == "__main__":
    main()
