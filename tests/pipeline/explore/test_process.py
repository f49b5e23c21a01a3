"""The command itself: a real server on a real port, and what it says where it cannot serve."""

import http.client
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def server(hostile_run: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process of `prep explore`, its port and its token."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "explore", str(hostile_run)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", process.stdout.readline())
    assert address, process.communicate(timeout=5)
    yield process, int(address[1]), address[2]
    if process.poll() is None:
        process.kill()
    process.communicate()


def ask(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def test_a_process_serves_until_it_is_stopped(
    server: tuple[subprocess.Popen[str], int, str],
) -> None:
    process, port, token = server
    assert len(token) >= 32
    assert ask(port, "/documents")[0] == 403
    status, headers, _ = ask(port, f"/documents?token={token}")
    assert status == 303 and "server" not in {name.lower() for name in headers}
    cookie = headers["set-cookie"].partition(";")[0]
    assert cookie.startswith(f"wafermill-explore-{port}=")
    status, headers, page = ask(port, "/documents", Cookie=cookie)
    assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
    assert "documents</h1>" in page or 'id="total"' in page
    assert ask(port, "/documents", Cookie=cookie, Host="evil.example")[0] == 421
    with socket.socket() as other:
        # Another address of this machine than 127.0.0.1 answers nothing.
        assert other.connect_ex(("127.0.0.2", port)) != 0
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 143 and errors.splitlines()[1:] == []
    assert "reading its tables" in errors and token not in errors


def test_a_taken_port_is_one_line(hostile_run: Path, prep: Callable[..., Any]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        ended = prep("explore", hostile_run, "--port", port)
    assert ended.code == 5 and f"--port {port}" in ended.err


def test_a_missing_extra_is_one_line(
    hostile_run: Path, prep: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "uvicorn" else find_spec(name, *more),
    )
    ended = prep("explore", hostile_run)
    assert ended.code == 2 and "pip install 'wafermill[explore]'" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_what_is_no_finished_run_is_refused(tmp_path: Path, prep: Callable[..., Any]) -> None:
    ended = prep("explore", tmp_path)
    assert ended.code == 3 and "not a finished run" in ended.err
