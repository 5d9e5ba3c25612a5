"""Options of the test run. Tests import the `cases` and `oracles` packages beside this file."""

import os

import pytest
from hypothesis import settings

# Cases are small, and what they check is to be computed by several threads.
os.environ.setdefault("OPENBNNS_EAGER_THREADS", "1")

settings.register_profile("short", deadline=None, derandomize=True, max_examples=150)
settings.register_profile("long", deadline=None, derandomize=True, max_examples=2000)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="large cases too, and many more examples")
    parser.addoption(
        "--fuzz-minutes", type=float, default=0, help="random calls for so long, others each time"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "long: runs only with --long")
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="needs --long"))
