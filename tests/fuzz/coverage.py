"""Prints how many lines of each folder of src/ the fuzzer reached: coverage.py FUZZER PROFILE."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def main(fuzzer: str, profile: str) -> None:
    text = subprocess.run(
        ["llvm-cov", "export", "-summary-only", f"-instr-profile={profile}", fuzzer],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in json.loads(text)["data"][0]["files"]:
        path = Path(file["filename"])
        if SOURCE not in path.parents:
            continue
        folder = path.relative_to(SOURCE).parts[0]
        lines = file["summary"]["lines"]
        for name in (folder, "all of src"):
            folders[name][0] += lines["covered"]
            folders[name][1] += lines["count"]
    for name in sorted(folders, key=lambda name: (name == "all of src", name)):
        covered, count = folders[name]
        print(f"{name:16} {covered:6} of {count:6} lines  {100 * covered / count:5.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
