"""Ours beside the installed peers: one process per thread count, a table, and JSON on request."""

import argparse
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks.harness import ROOT, Ceilings, Row, Run, Work, ceilings, cpu_name, header, line, say

FAMILIES = (
    "gemm",
    "matmul",
    "fully_connected",
    "convolution",
    "pooling",
    "activation",
    "arithmetic",
    "normalization",
    "fused",
    "attention",
    "loss",
    "optimizer",
    "random",
    "training",
    "threads",
    "scaling",
    "calls",
)

# Bytes read, written and copied in the caches and in memory: for the record, beside the floors of
# the rows.
_SIZES = (1 << 19, 1 << 23, 1 << 28)
RECORD = [work for s in _SIZES for work in (Work(s, 0, 0), Work(0, s, 0), Work(s // 2, s // 2, 0))]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def add_list(name: str, allowed: tuple[str, ...], text: str) -> None:
        help_text = f"{text}; default {','.join(allowed)}"
        parser.add_argument(name, type=words, default=list(allowed), help=help_text)

    add_list("--family", FAMILIES, "families")
    add_list("--threads", ("1", "2"), "thread counts (calls: always 1)")
    add_list("--against", tuple(peers.MODULES), "peers")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases, by family and name")
    parser.add_argument("--compile", action="store_true", help="torch.compile too (slow to build)")
    parser.add_argument("--quick", action="store_true", help="does it run? The times mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write FILE and its table, .txt")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    for option, allowed in (("family", FAMILIES), ("against", tuple(peers.MODULES))):
        unknown = set(getattr(given, option)) - set(allowed)
        if unknown:
            parser.error(f"--{option}: unknown {', '.join(sorted(unknown))}")
    return given


def main() -> None:
    given = parse_arguments()
    if given.worker:
        given.worker.write_text(json.dumps(measure(given)))
        return
    load = os.getloadavg()[0]  # here, because each process would see the one before it
    if load > 0.5:
        say(f"load {load:.1f}: somebody else is busy, the times mean little")
    jobs: dict[int, list[str]] = {int(count): [] for count in given.threads}
    for families in jobs.values():
        families += [family for family in given.family if family != "calls"]
    if "calls" in given.family:
        jobs.setdefault(1, []).append("calls")
    parts = [in_process(count, families) for count, families in jobs.items() if families]
    if given.json:
        report = {**parts[0], "load_before": load, "rows": [], "ceilings": {}}
        for part in parts:
            report["rows"] += part["rows"]
            report["ceilings"] |= part["ceilings"]
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=1) + "\n")
        given.json.with_suffix(".txt").write_text(table(report))


def in_process(threads: int, families: list[str]) -> dict:
    """The report of a process whose libraries all start with so many threads."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for library in ("OMP", "MKL", "OPENBLAS", "OPENBNNS"):
        environment[f"{library}_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:], "--worker", str(output)]
        command += ["--threads", str(threads), "--family", ",".join(families)]
        status = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
        if status != 0:
            sys.exit(status)  # it has said why
        return json.loads(output.read_text())


def measure(given: argparse.Namespace) -> dict:
    """The work of one such process; rows are printed as they come."""
    threads = int(given.threads[0])
    if hasattr(os, "sched_setaffinity"):  # XLA counts the cores it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    import openbnns

    openbnns.set_num_threads(threads)
    present, absent = peers.load(given.against)
    for name, reason in absent.items():
        say(f"skipped: {name} ({reason})")
    run = Run(threads, present, given.only, given.quick, given.compile)
    limits = ceilings(threads)
    best = {} if limits is None else {str(threads): record(limits)}
    modules = [importlib.import_module(f"benchmarks.bench_{family}") for family in given.family]
    print(header(present), flush=True)
    rows = []
    for module in modules:
        first = len(rows)
        for row in module.rows(run):
            print(line(row, present), flush=True)
            rows.append(row)
        if rows[first:] and hasattr(module, "summary"):
            say(module.summary(rows[first:]))
    versions = {"openbnns": openbnns.__version__, "python": platform.python_version()}
    for peer in present.values():
        versions |= peer.VERSIONS
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "isa": openbnns.isa()},
        "versions": versions,
        "peers": list(present),
        "skipped": absent,
        "quick": given.quick,
        "wheel_bytes": wheel_bytes(),
        "ceilings": best,
        "rows": [row.as_json() for row in rows],
    }


def record(limits: Ceilings) -> dict:
    """Multiply-adds per second, and seconds of the RECORD by "read:written", best of five."""
    sweeps = {}
    for work in RECORD:
        loops = limits.loops(work)
        count = max(1, round(0.01 / loops.timeit(1)))
        best = min(loops.timeit(count) for _ in range(5)) / count
        sweeps[f"{work.read}:{work.written}"] = best
    return {"fma": limits.fma, "sweeps": sweeps}


def wheel_bytes() -> int | None:
    """Size of the newest wheel in dist/; None when there is none."""
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    return wheels[-1].stat().st_size if wheels else None


def table(report: dict) -> str:
    """The report as text: what was measured, then the rows."""
    machine = report["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}; {report['date']}"]
    lines += [f"load before: {report['load_before']:.1f}"]
    lines += [", ".join(f"{name} {version}" for name, version in report["versions"].items())]
    lines += [f"skipped: {name} ({reason})" for name, reason in report["skipped"].items()]
    if report["wheel_bytes"]:
        lines += [f"wheel: {report['wheel_bytes'] / 1e6:.2f} MB"]
    names = report["peers"]
    rows = [line(Row.from_json(stored), names) for stored in report["rows"]]
    return "\n".join([*lines, "", header(names), *rows]) + "\n"


if __name__ == "__main__":
    main()
