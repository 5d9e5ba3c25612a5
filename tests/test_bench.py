"""`openbnns bench`: rows, peers, exit codes."""

import json
import os

import numpy as np
import openbnns
import pytest
from openbnns import bench
from openbnns.__main__ import main

QUICK = ["bench", "--quick", "--threads", "1"]


def test_every_row_is_run_by_ours(capsys):
    cores = getattr(os, "sched_getaffinity", lambda process: None)
    before = openbnns.get_num_threads(), cores(0)
    assert main([*QUICK, "--against", ""]) == 0
    said = capsys.readouterr().out.strip().split("\n")
    assert len(said) == 2 + len(bench._STEPS) + len(bench._LAYERS)
    assert (openbnns.get_num_threads(), cores(0)) == before


def test_the_report_for_programs(capsys):
    assert main([*QUICK, "--json", "--only", "64-32-10", "--against", "numpy"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["threads"] == 1
    assert report["versions"]["numpy"] == np.__version__
    assert [row["name"] for row in report["rows"]] == list(bench._STEPS)[:2]
    for row in report["rows"]:
        assert set(row["seconds"]) == {"ours", "numpy"}
        assert row["seconds"]["ours"]["median"] > 0


@pytest.mark.parametrize("peer", ["torch", "jax"])
def test_peers_do_the_same_work(peer, capsys):
    pytest.importorskip(peer)
    assert main([*QUICK, "--json", "--against", peer]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    steps = [row for row in rows if row["name"] in bench._STEPS]
    assert all(peer in row["seconds"] for row in steps)


def test_a_peer_that_computes_something_else_ends_it(monkeypatch, capsys):
    other = bench._Contender(lambda: None, lambda: np.zeros(5))
    monkeypatch.setitem(bench._MAKERS, "numpy", lambda name: other)
    assert main([*QUICK, "--only", "1 sample", "--against", "numpy"]) == 1
    assert "numpy computes something else" in capsys.readouterr().err


def test_wrong_words(capsys):
    assert main([*QUICK, "--only", "nothing"]) == 2
    assert "no row matches 'nothing'" in capsys.readouterr().err
    for wrong in (["--threads", "0"], ["--against", "abacus"], ["--only", "("]):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", *wrong])


def test_absent_peers_are_named(monkeypatch, capsys):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    assert main([*QUICK, "--only", "1 sample"]) == 0
    assert "not installed: torch, jax, numpy" in capsys.readouterr().out
