"""An S3 server on this machine (moto) behind a proxy that delays each request and answers some with
an error.

As a program it writes the URLs of the two as a line of JSON. Then, for each line [latency in
seconds, share that fails, seed] that it reads, it writes what has been counted since the last one,
and goes on with these settings.
"""

import collections
import http.client
import json
import logging
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ERRORS = {500: "InternalError", 503: "SlowDown"}
PIECE = 2**18  # bytes that are sent, then counted


class SlowProxy(ThreadingHTTPServer):
    """Each request has a thread, so that delays do not add up.

    Attributes:
        counts: requests; failures, which are those among them that got an error; bytes of the
            bodies that were sent.
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, host: str, port: int):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.lock = (host, port), threading.Lock()
        self.restart(0, 0, 0)

    def restart(self, latency_s: float, failing: float, seed: int) -> None:
        with self.lock:
            self.latency_s, self.failing, self.random = latency_s, failing, random.Random(seed)
            self.counts = collections.Counter(requests=0, failures=0, bytes=0)

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def error(self) -> int | None:
        """The status of this request, if it is to fail."""
        with self.lock:
            return self.random.choice(list(ERRORS)) if self.random.random() < self.failing else None

    def handle_error(self, request, client_address):
        """A client that has gone away, such as one that was killed, is none of the proxy's
        errors.
        """
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each body waits for the acknowledgement of its headers

    def do_GET(self):
        proxy, status = self.server, self.server.error()
        proxy.count("requests")
        time.sleep(proxy.latency_s)
        if status:
            proxy.count("failures")
            self._send(
                status,
                {"Content-Type": "application/xml"},
                f"<Error><Code>{ERRORS[status]}</Code></Error>".encode(),
            )
            return
        connection = http.client.HTTPConnection(*proxy.target, timeout=60)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        headers = {
            name: text
            for name, text in answer.getheaders()
            if name.lower() not in ("transfer-encoding", "connection")
        }
        self._send(answer.status, headers, answer.read())
        connection.close()

    do_HEAD = do_GET

    def _send(self, status: int, headers: dict[str, str], body: bytes):
        self.send_response_only(status)
        for name, text in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, text)
        self.end_headers()
        for start in range(0, len(body) if self.command == "GET" else 0, PIECE):
            self.wfile.write(body[start : start + PIECE])
            self.server.count("bytes", len(body[start : start + PIECE]))

    def log_message(self, *what):
        pass


def main():
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    proxy = SlowProxy(host, port)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    print(
        json.dumps(
            {"direct": f"http://{host}:{port}", "slow": f"http://127.0.0.1:{proxy.server_port}"}
        ),
        flush=True,
    )
    for line in sys.stdin:
        counts = proxy.counts
        proxy.restart(*json.loads(line))
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
