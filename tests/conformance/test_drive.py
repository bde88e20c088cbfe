"""``--drive``: a command, an HTTP request or a person starts what a case needs."""

import json
import queue
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ds4proto_conformance.bench.drive import Driver

from ds4proto.errors import WrongUsage

PATIENCE = 60.0
Asked = queue.SimpleQueue[tuple[str, str, bytes]]


@pytest.fixture
def server() -> Iterator[tuple[str, Asked]]:
    asked: Asked = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.put((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"127.0.0.1:{httpd.server_port}/v1/completions", asked
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_a_command_is_run_each_time(tmp_path: Path) -> None:
    told = tmp_path / "told"
    driver = Driver(f"exec:{sys.executable} -c \"open('{told}', 'a').write('x')\"")
    for _ in range(2):
        driver.start()
        (process,) = driver._processes
        assert process.wait(timeout=PATIENCE) == 0
    driver.close()
    assert told.read_text() == "xx"


def test_a_command_that_still_runs_is_ended() -> None:
    driver = Driver(f"exec:{sys.executable} -c 'import signal; signal.pause()'")
    driver.start()
    (process,) = driver._processes
    driver.close()
    assert process.returncode is not None


@pytest.mark.parametrize("form", ["http://{}", "http:http://{}"])
def test_a_prompt_is_posted(server: tuple[str, Asked], form: str) -> None:
    where, asked = server
    driver = Driver(form.format(where))
    driver.start()
    path, kind, body = asked.get(timeout=PATIENCE)
    driver.close()
    assert (path, kind) == ("/v1/completions", "application/json")
    found = json.loads(body)
    assert found["prompt"]
    assert found["messages"][0]["role"] == "user"
    assert 0 < found["max_tokens"] < 100


def test_a_person_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    Driver("manual", "coordinator").start()
    assert "start a request on the coordinator now" in capsys.readouterr().err


def test_a_peer_that_acts_by_itself_needs_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver = Driver("")
    driver.start()
    driver.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["gopher:x", "exec:", "http:", "exec"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="exec:COMMAND"):
        Driver(text)


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(WrongUsage, match="no-such-command"):
        Driver("exec:/no-such-command --now").start()
