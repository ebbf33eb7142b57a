"""The Dask engine: the same result on a cluster, with one of its workers killed on the way."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE
from zoo_helpers import command, free_port, process, tree, wait_for, zoo
from zoo_maker import greedy, make_zoo

import t7bridge

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")


def worker(address: str) -> tuple[str, ...]:
    """The command of a worker with one thread."""
    return (
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    )


@pytest.mark.slow
def test_cluster_loses_a_worker(tmp_path: Path) -> None:
    """A scheduler and two workers, as processes, produce the results of one machine, though a worker is killed."""
    make_zoo(tmp_path / "zoo", 300, large=2, large_bytes=4 << 20)
    t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "here", workers=0)
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        process(sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard"),
        process(*worker(address)) as first,
        process(*worker(address)),
    ):
        options = ("-o", tmp_path / "out", "--engine", "dask", "--scheduler", address)
        with subprocess.Popen(command(tmp_path / "zoo", *options), stdout=subprocess.PIPE) as run:
            wait_for(lambda: len(list((tmp_path / "out").rglob("*.pt"))) > 20)
            first.send_signal(signal.SIGKILL)
            assert run.wait(PATIENCE) == 1
        again = zoo(tmp_path / "zoo", *options, "--json")

    assert tree(tmp_path / "out") == tree(tmp_path / "here")
    assert '"now": {}' in again.stdout


@pytest.mark.slow
def test_own_cluster(tmp_path: Path) -> None:
    """Without a scheduler a cluster is started on this machine; limits of time and memory hold there too."""

    make_zoo(tmp_path / "zoo", 40)
    greedy(tmp_path / "zoo/greedy.t7")
    run = zoo(tmp_path / "zoo", "-o", tmp_path / "out", "--engine", "dask", "--workers", 1, "--memory", "48M")

    assert run.returncode == 1
    assert "greedy.t7: needs more than the 48 MiB of memory available (OutOfMemory)" in run.stderr


def test_no_scheduler(tmp_path: Path) -> None:
    """A scheduler that is not there is an error that names it."""
    make_zoo(tmp_path / "zoo", 3)
    address = f"tcp://127.0.0.1:{free_port()}"

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.5s"}),
        pytest.raises(t7bridge.T7BridgeError, match=f"{address}: the Dask scheduler cannot be reached"),
    ):
        t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", engine="dask", scheduler=address)
