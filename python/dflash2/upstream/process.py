"""A llama-server that runs while a `with` block does, and what it says about its requests."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from types import TracebackType
from typing import Any

from dflash2.errors import DFlash2Error

COUNTER = re.compile(r'^llamacpp:spec_decode_num_(\w+)_total(?:{position="(\d+)"})? (\S+)$', re.M)
# "statistics draft-dflash: .. dur(b,g,a) = 0.1, 23.4, 0.2 ms": begin, draft, accept, in total.
DRAFT_MS = re.compile(rb"statistics +draft-dflash:.* dur\(b,g,a\) = [\d.]+, ([\d.]+), [\d.]+ ms")
TRACE = 4  # the log level of that line


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Speculative counters since the server started."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: tuple[int, ...]


class ServerProcess:
    """A server on a free port of loopback.

    Args:
        program: the executable, or an interpreter and a script.
        flags: llama-server's arguments, without host and port.
        start_s: seconds until it must answer.

    Raises:
        OSError: the program cannot be executed.
        DFlash2Error: it ended, or did not answer in time; with its last words.
    """

    def __init__(
        self, program: Sequence[str], flags: Sequence[str], *, start_s: float = 600.0
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.command = [*program, *flags, "--host", "127.0.0.1", "--port", str(port)]
        self.command += ["--metrics", "-lv", str(TRACE), "--fit", "off"]
        # Loopback must not go through a proxy that the environment names.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._log_read = 0  # bytes that draft_ms() has seen
        try:
            self._child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
            )
        except BaseException:
            self._log.close()
            raise
        try:
            self._wait_until_ready(start_s)
        except BaseException:
            self.close()
            raise

    def complete(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> dict[str, Any]:
        """llama-server's answer, with `content` and `timings`; nothing is taken from its cache.

        options: further fields of the endpoint /completion, such as `temperature`.

        Raises:
            DFlash2Error: the server refused the request or died.
        """
        body = {"prompt": list(prompt), "n_predict": max_tokens, "cache_prompt": False, **options}
        answer: dict[str, Any] = json.loads(self._request("/completion", body))
        return answer

    def counters(self) -> Counters:
        """Errors as for `complete`."""
        found: dict[str, int] = {}
        per_pos = []
        for name, position, value in COUNTER.findall(self._request("/metrics")):
            if position:
                per_pos.append(int(float(value)))
            else:
                found[f"num_{name}"] = int(float(value))
        return Counters(**found, accepted_per_pos=tuple(per_pos))

    def draft_ms(self) -> float | None:
        """Milliseconds in drafting since the server started; None: it logs no such line.

        The log is written by a thread of its own: waits for the line of the last request.
        """
        for _ in range(50):
            lines = list(DRAFT_MS.finditer(self._read_log(self._log_read)))
            if lines:
                self._log_read += lines[-1].end()
                return float(lines[-1][1])
            time.sleep(0.01)
        return None

    def close(self) -> None:
        """Ends the server."""
        self._child.terminate()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait_until_ready(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._child.poll() is not None:
                raise self._failure(f"ended with status {self._child.returncode}")
            try:
                self._http.open(f"{self.url}/health", timeout=5).close()
                return
            except (OSError, HTTPException):  # not listening yet, or 503 while it loads
                time.sleep(0.05)
        raise self._failure(f"expected an answer within {seconds:g} s, got none")

    def _request(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with self._http.open(request) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as e:
            said = e.read().decode(errors="replace")
            raise DFlash2Error(f"{self.command[0]}: {path}: status {e.code}: {said}") from e
        except (OSError, HTTPException) as e:
            raise self._failure(f"{path}: {e}") from e

    def _failure(self, what: str) -> DFlash2Error:
        words = self._read_log().decode(errors="replace").strip().splitlines()[-5:]
        return DFlash2Error(f"{self.command[0]}: {what}; it said last: {' | '.join(words)}")

    def _read_log(self, start: int = 0) -> bytes:
        """Leaves the position alone: the server writes there."""
        file = self._log.fileno()
        return os.pread(file, max(0, os.fstat(file).st_size - start), start)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
