"""The command ``openbnns``, also ``python -m openbnns``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
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


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}; got {text!r}")
        return int(text)

    return number


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openbnns", description="Neural networks on the CPU. Without a command: doctor."
    )
    parser.add_argument("--version", action="version", version=openbnns.version())
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    def command(name: str, does: str, more: str = "") -> argparse.ArgumentParser:
        said = f"{does[0].upper()}{does[1:]}. {more}"
        return commands.add_parser(name, help=does, description=said)

    demo = command(
        "demo",
        "train two networks that read digits",
        "Ctrl-C leaves a checkpoint. Exit code 1 when files cannot be read or written.",
    )
    demo.add_argument("--seed", type=_at_least(0), default=0, help="of everything random (0)")
    demo.add_argument("--epochs", type=_at_least(1), default=8, help="on the handwriting (8)")
    folder = Path("openbnns-demo")
    demo.add_argument("--folder", type=Path, default=folder, help=f"for the results ({folder})")
    demo.add_argument("--resume", action="store_true", help="go on from the checkpoints there")
    status = command("doctor", "say what is installed and what it uses")
    gradients = command(
        "check", "compare all gradients with differences", "Exit code 1 when one is wrong."
    )
    bench = command(
        "bench",
        "time training beside the installed libraries",
        "Exit code 1 when one of them computes something else.",
    )
    bench.add_argument("--threads", type=_at_least(1), help="of all libraries (ours as it is set)")
    peers = ",".join(PEERS)
    bench.add_argument("--against", type=_peers, default=PEERS, help=f"names out of {peers} (all)")
    bench.add_argument("--only", type=_pattern, default="", metavar="REGEX", help="rows, by name")
    bench.add_argument("--quick", action="store_true", help="does it run? The times mean little")
    for each in (status, gradients, bench):
        each.add_argument("--json", action="store_true", help="the same as JSON, for programs")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; without any, ``doctor``. Returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return _run(chosen)
    except KeyboardInterrupt:
        return 130


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "check":
        return check(chosen.json)
    if chosen.command == "bench":
        from openbnns import bench

        return bench.run(chosen.threads, chosen.against, chosen.only, chosen.quick, chosen.json)
    if chosen.command != "demo":
        return doctor(getattr(chosen, "json", False))
    from openbnns import demo

    try:
        return demo.run(chosen.seed, chosen.epochs, chosen.folder, chosen.resume)
    except (openbnns.BNNSError, OSError) as error:
        print(f"openbnns demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
