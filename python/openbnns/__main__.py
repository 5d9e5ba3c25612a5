"""The command ``openbnns``, also ``python -m openbnns``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import openbnns
from openbnns import _core

PEERS = ("torch", "jax", "numpy")  # of bench


def doctor(as_json: bool = False) -> int:
    """Print what is installed and what it uses."""
    built = openbnns.support()
    rows = {
        "version": openbnns.version(),
        "instructions": f"{openbnns.isa()} ({_core.isa_reason()})",
        "threads": str(openbnns.get_num_threads()),
        "precision": openbnns.get_matmul_precision(),
        "library": str(openbnns.library_path()),
        "headers": str(openbnns.include_dir()),
        "C functions": f"{sum(built.values())} of {len(built)} built",
    }
    if as_json:
        print(json.dumps({**rows, "built": built}, indent=2))
        return 0
    for name, value in rows.items():
        print(f"{name:<14}{value}")
    return 0


def check(as_json: bool = False) -> int:
    """Compare the gradients of every block with differences; 1 when one is wrong."""
    from openbnns.checking import check_all

    reports = check_all()
    if as_json:
        rows = {
            name: {"ok": r.ok, "checked": r.checked, "worst": max(row[4] for row in r.rows)}
            for name, r in reports.items()
        }
        print(json.dumps(rows, indent=2))
    else:
        for name, report in reports.items():
            worst = max(row[4] for row in report.rows)
            said = "good" if report.ok else f"WRONG\n{report}"
            print(f"{name:<36}{report.checked:4} entries, largest error {worst:.1e}  {said}")
    return 0 if all(report.ok for report in reports.values()) else 1


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got {text!r}")
    return int(text)


def _peers(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    if not set(words) <= set(PEERS):
        raise argparse.ArgumentTypeError(f"expected names out of {','.join(PEERS)}; got {text!r}")
    return words


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression; got {text!r}") from error
    return text


def main(arguments: list[str] | None = None) -> int:
    """Run one command; without any, ``doctor``. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="openbnns", description="Neural networks on the CPU.")
    parser.add_argument("--version", action="version", version=openbnns.version())
    commands = parser.add_subparsers(dest="command")
    demo = commands.add_parser("demo", help="train two networks that read digits")
    demo.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    demo.add_argument("--epochs", type=int, default=8, help="on the handwriting (8)")
    demo.add_argument("--folder", type=Path, default=Path("openbnns-demo"), help="for the results")
    demo.add_argument("--resume", action="store_true", help="go on from the checkpoints there")
    status = commands.add_parser("doctor", help="say what is installed and what it uses")
    status.add_argument("--json", action="store_true", help="the same for programs")
    gradients = commands.add_parser("check", help="compare all gradients with differences")
    gradients.add_argument("--json", action="store_true", help="the same for programs")
    bench = commands.add_parser("bench", help="time training beside the installed libraries")
    bench.add_argument("--threads", type=_count, help="of all libraries (the library's setting)")
    bench.add_argument("--against", type=_peers, default=PEERS, help=f"peers ({','.join(PEERS)})")
    bench.add_argument("--only", type=_pattern, default="", metavar="REGEX", help="rows, by name")
    bench.add_argument("--quick", action="store_true", help="does it run? The times mean little")
    bench.add_argument("--json", action="store_true", help="the same for programs")
    chosen = parser.parse_args(arguments)
    if chosen.command == "check":
        return check(chosen.json)
    if chosen.command == "bench":
        from openbnns.bench import run as run_bench

        try:
            return run_bench(
                chosen.threads, chosen.against, chosen.only, chosen.quick, chosen.json
            )
        except KeyboardInterrupt:
            return 130
    if chosen.command != "demo":
        return doctor(getattr(chosen, "json", False))
    from openbnns.demo import run

    try:
        return run(chosen.seed, chosen.epochs, chosen.folder, chosen.resume)
    except (openbnns.BNNSError, OSError) as error:
        print(f"openbnns demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
