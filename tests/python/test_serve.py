"""dflash2 serve: becomes llama-server with the right flags, or prints what other engines need."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from dflash2.cli.main import main
from dflash2.tune.result import saved_path
from dflash2.upstream.command import XLLAMACPP, server_flags
from dflash2.upstream.engines import Cluster, llama_cpp_rpc, sglang, vllm
from dflash2.upstream.process import free_port
from make_tiny_models import make_tiny_target

Pair = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]

RECORDER = """#!/bin/sh
printf '%s\\n' "$$" "$@" > "{out}"
exit 7
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of tune are looked for here, and no server is on PATH but a test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def printed(capsys: Capture, *args: str | Path) -> list[str]:
    assert main(["serve", *map(str, args), "--print"]) == 0
    return shlex.split(capsys.readouterr().out)


def save_result(pair: Pair, n: int, **settings: object) -> Path:
    path = saved_path(str(pair[0]), str(pair[1]))
    path.parent.mkdir(parents=True)
    fields = {"overall": {"server_best": n}, "settings": settings, "reason": "because"}
    path.write_text(json.dumps({"format": "dflash2 tune 1", **fields}))
    return path


def test_the_process_becomes_the_server(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    executable(tmp_path / "llama-server", RECORDER.format(out=tmp_path / "argv"))
    args = [str(pair[0]), str(pair[1]), "-c", "512", "-np", "2", "--port", str(free_port()), "-q"]
    extra = ["--alias", "a name"]
    command = [sys.executable, "-m", "dflash2", "serve", *args, "--", *extra]
    child = subprocess.Popen(command)
    assert child.wait() == 7
    pid, *argv = (tmp_path / "argv").read_text().splitlines()
    assert int(pid) == child.pid
    assert argv == shlex.split(print_of(args, extra, capsys))[1:]
    assert argv[:4] == ["-m", str(pair[0]), "-c", "1024"]
    assert argv[-2:] == extra


def print_of(args: list[str], extra: list[str], capsys: Capture) -> str:
    assert main(["serve", *args, "--print", "--", *extra]) == 0
    return capsys.readouterr().out


def test_flags_come_from_the_command_then_from_tune(pair: Pair, capsys: Capture) -> None:
    assert printed(capsys, *pair)[-6:-4] == ["-ngld", "0"]
    before = printed(capsys, *pair)
    assert before[before.index("--spec-draft-n-max") + 1] == "3"
    save_result(pair, 5, n_ctx=2048, n_threads=3, n_gpu_layers=-1, draft_device="CUDA0")
    program, *flags = printed(capsys, *pair, "-t", "2")
    assert Path(program).name == "llama-server"
    expected = server_flags(
        *pair, n_draft_max=5, n_ctx=2048, n_threads=2, n_gpu_layers=-1, draft_device="CUDA0"
    )
    assert flags == [*expected, "--host", "127.0.0.1", "--port", "8080"]


def test_no_drafter_where_tune_found_it_slower(pair: Pair, capsys: Capture) -> None:
    save_result(pair, 0)
    assert main(["serve", str(pair[0]), str(pair[1]), "--print"]) == 0
    out, err = capsys.readouterr()
    assert "-md" not in shlex.split(out)
    assert "because" in err
    assert "warning: serving without the drafter" in err
    assert "-md" in printed(capsys, *pair, "--spec-draft-n-max", "2")


@contextmanager
def serving(command: list[str], url: str) -> Iterator[None]:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            assert child.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(20)


@pytest.mark.xllamacpp
@pytest.mark.filterwarnings("default")  # those of other packages
def test_openai_requests_are_drafted_by_the_real_server(real_pair: Pair, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    executable(tmp_path / "llama-server", f'#!/bin/sh\nexec {shlex.join(XLLAMACPP)} "$@"\n')
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    args = ["-c", "512", "-t", "1", "--port", str(port), "--spec-draft-n-max", "5", "-q"]
    command = [sys.executable, "-m", "dflash2", "serve", *map(str, real_pair), *args]
    with serving(command, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        answer = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "List the planets of the solar system."}],
            max_tokens=24,
            temperature=0,
        )
    assert "Mars" in (answer.choices[0].message.content or "")
    assert answer.model_extra is not None
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == 24
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 5


def failure(capsys: Capture, *args: str | Path) -> str:
    assert main(["serve", *map(str, args)]) == 1
    return capsys.readouterr().err


def test_bad_input_is_named(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    target, draft = pair
    assert "llama-server: expected llama.cpp's server on PATH" in failure(capsys, *pair, "-q")
    missing = tmp_path / "no-server"
    for more in ([], ["--print"]):
        said = failure(capsys, *pair, "--server", missing, *more)
        assert f"{missing}: expected llama.cpp's server an executable file" in said
    assert "nowhere.gguf: no such file" in failure(capsys, "nowhere.gguf", draft)
    assert "expected a DFlash drafter, got a target" in failure(capsys, target, target)
    assert "expected a target, got a DFlash 2 drafter" in failure(capsys, draft, draft)
    other = make_tiny_target(tmp_path / "other.gguf", n_embd=256)
    assert "does not fit" in failure(capsys, other, draft)
    path = save_result(pair, 3)
    path.write_text("{")
    assert f"{path}: expected a result of dflash2 tune" in failure(capsys, *pair)
    path.unlink()
    server = executable(tmp_path / "server", "#!/bin/sh\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        said = failure(capsys, *pair, "--server", server, "--port", str(port), "-q")
    assert f"127.0.0.1:{port}: expected a free port, got: Address already in use" in said


# -- other engines


def test_each_engine_gets_its_own_flags() -> None:
    one, two = Cluster(gpus=2), Cluster(nodes=2, gpus=8, head="10.0.0.1", port=30000)
    assert "--speculative-algorithm DFLASH --speculative-draft-model-path d" in shlex.join(
        sglang("t", "d", one).commands[0]
    )
    second = shlex.join(sglang("t", "d", two).commands[1])
    assert second.endswith("--tp 16 --host 0.0.0.0 --port 30000 " + NODES)
    config = {"method": "dflash", "model": "d", "num_speculative_tokens": 7}
    command = vllm("t", "d", 7, one).commands[0]
    assert json.loads(command[command.index("--speculative-config") + 1]) == config
    first, second = vllm("t", "d", 7, two).commands
    assert "--headless" in second
    assert "--headless" not in first
    assert second[second.index("--node-rank") + 1] == "1"
    rpc = llama_cpp_rpc(["-m", "/m/t.gguf"], ["10.0.0.2"], two)
    assert rpc.commands[0][-2:] == ("--rpc", "10.0.0.2:50052")
    assert rpc.commands[1][0] == "ggml-rpc-server"


NODES = "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:20000"


def test_a_compose_file_runs_the_same_commands(tmp_path: Path) -> None:
    folder = tmp_path / "a$b"
    folder.mkdir()
    one = vllm(str(folder), "org/draft", 7, Cluster())
    services = yaml.safe_load(one.compose())["services"]
    assert list(services) == ["head"]
    assert "profiles" not in services["head"]
    started = [services["head"]["entrypoint"], *services["head"]["command"]]
    assert [arg.replace("$$", "$") for arg in started] == list(one.commands[0])
    assert f"{folder}:{folder}:ro" in services["head"]["volumes"]
    many = sglang("t", "d", Cluster(nodes=3, head="a"))
    services = yaml.safe_load(many.compose())["services"]
    assert services["worker"]["profiles"] == ["worker"]
    rank = services["worker"]["command"].index("--node-rank") + 1
    assert services["worker"]["command"][rank].startswith("${NODE_RANK:?")
    assert "&" not in many.compose()  # no anchors


def test_engines_that_read_no_gguf_say_so(pair: Pair, capsys: Capture) -> None:
    models = ["serve", *map(str, pair)]
    with pytest.raises(SystemExit) as e:
        main([*models, "--engine", "sglang"])
    assert e.value.code == 2
    assert "reads the original safetensors checkpoints, not the GGUF" in capsys.readouterr().err
    checkpoints = ["--target-checkpoint", "org/t", "--draft-checkpoint", "org/d"]
    assert main([*models, "--engine", "vllm", *checkpoints]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# vLLM reads the original safetensors checkpoints")
    assert '"num_speculative_tokens": 7' in out
    code = [line for line in out.splitlines() if not line.startswith("#")]
    assert yaml.safe_load("\n".join(code[1:]))["services"]
    with pytest.raises(SystemExit):
        main([*models, "--engine", "sglang", *checkpoints, "--nodes", "2"])
    assert "--nodes 2: expected --node-hosts with 2 hosts" in capsys.readouterr().err


def test_rpc_offloads_everything_and_names_whole_paths(
    pair: Pair, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pair[0].parent)
    names = [os.path.relpath(file) for file in pair]
    many = ["--engine", "llama.cpp-rpc", "--nodes", "2", "--node-hosts", "a,b", "-q"]
    assert main(["serve", *names, *many]) == 0
    head = capsys.readouterr().out.splitlines()[4]
    assert shlex.split(head)[:3] == ["llama-server", "-m", str(pair[0].resolve())]
    assert "-ngl all" in head
