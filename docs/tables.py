"""MkDocs hook: the tables of the performance page, from the files of benchmark results."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.harness import OURS, Row, duration, factor  # noqa: E402

MARK = "<!-- tables -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called for every page; only the performance page has the mark."""
    if MARK not in markdown:
        return markdown
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return markdown.replace(MARK, "\n\n".join(table(path) for path in files))


def table(path: Path) -> str:
    """One file: a heading, the machine and the versions, the rows."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    machine = stored["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    lines = [
        f"## {path.stem}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']} kernels; {versions}; "
        f"{stored['date'][:10]}.",
        "",
        "| case | phase | threads | ours | best peer | peer/ours | ours/floor |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(line(Row.from_json(row)) for row in stored["rows"])])


def line(row: Row) -> str:
    ours, best = row.best_of(OURS), row.best_peer
    time = ours[1].median if ours else None
    peer = f"{duration(best[1].median)} {best[0]}" if best else "-"
    ratio = factor(best[1].median, time) if best else "-"
    floor = factor(time, row.floor) if time else "-"
    cells = [row.case, row.phase, row.threads, duration(time), peer, ratio, floor]
    return "| " + " | ".join(map(str, cells)) + " |"
