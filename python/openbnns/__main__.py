"""``python -m openbnns``: what is installed and what it uses."""

from __future__ import annotations

import openbnns
from openbnns import _core


def main() -> None:
    """Print a short status."""
    built = openbnns.support()
    rows = {
        "version": openbnns.version(),
        "instructions": f"{openbnns.isa()} ({_core.isa_reason()})",
        "threads": str(openbnns.get_num_threads()),
        "library": str(openbnns.library_path()),
        "headers": str(openbnns.include_dir()),
        "C functions": f"{sum(built.values())} of {len(built)} built",
    }
    for name, value in rows.items():
        print(f"{name:<14}{value}")


if __name__ == "__main__":
    main()
