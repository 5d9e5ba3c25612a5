"""Every file includes the standard headers whose names it uses, says clang-tidy's include cleaner.

    python .ci/includes.py BUILD_FOLDER      # after cmake wrote its compile_commands.json

A kernel file is looked at for one target, a header with the options of a source that includes it.
Our own headers and Python's may come by way of another of ours: they change when we change them,
not with the next standard library. Those of the interface have what they need from
openbnns/bnns/base.h, in C, and ssize_t comes from there.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = f"{re.escape(str(ROOT))}/.*;.*/python3[^/]*/.*"
# where glibc keeps what other headers promise
POSIX = ".*(sys/types|bits/pthreadtypes|bits/types/siginfo_t).h.*"
CONFIG = f"""{{Checks: '-*,misc-include-cleaner', WarningsAsErrors: '*',
  CheckOptions: {{misc-include-cleaner.IgnoreHeaders: '{OURS};{POSIX}'}}}}"""


def commands(folder):
    """One entry of the compilation database per source and header of ours."""
    sources = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        sources.setdefault(Path(entry["file"]).relative_to(ROOT), entry)
    entries, seen = list(sources.values()), set()
    waiting = list(sources.items())
    for path, entry in waiting:  # grows: what a header includes is looked at as the header is
        for name in re.findall(r'^#include "(.+)"$', (ROOT / path).read_text(), re.MULTILINE):
            beside = path.parent / name
            header = beside if (ROOT / beside).is_file() else Path("src", name)
            if header.suffix == ".h" and header not in seen and (ROOT / header).is_file():
                seen.add(header)
                command = entry["command"].replace(str(ROOT / path), f"-x c++ {ROOT / header}")
                ours = entry | {"file": str(ROOT / header), "command": command}
                entries.append(ours)
                waiting.append((header, ours))
    return entries


def check(entry, folder):
    options = ["--quiet", f"--config={CONFIG}", "--extra-arg=-w"]
    command = ["clang-tidy", "-p", folder, *options, entry["file"]]
    result = subprocess.run(command, text=True, capture_output=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def main():
    entries = commands(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cpu_count()) as pool:
        Path(folder, "compile_commands.json").write_text(json.dumps(entries))
        findings = [text for text in pool.map(lambda entry: check(entry, folder), entries) if text]
    print("\n".join(findings), end="")
    print(f"{len(entries)} files, {len(findings)} with findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
