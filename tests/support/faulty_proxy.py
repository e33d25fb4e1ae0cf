"""An HTTP proxy in front of one server that breaks some answers on the way, as networks and object
stores do.
"""

import http.client
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FaultyProxy:
    """Of the requests for a range of bytes, some are answered wrongly, in turn in one of the ways
    of `FAULTS`.

    Attributes:
        every: which of them: each third one, or so.
        url: where it listens.
        done: how often each fault was committed.
        always: the fault of every answer, headers asked for alone included: one of those or of
            `LASTING`; None: as above.
        sent: bytes of all ranges that were answered rightly.
    """

    FAULTS = (
        "500",
        "503 slow down",
        "reset before the answer",
        "reset in mid-body",
        "short body",
        "slow",
    )
    LASTING = ("403 forbidden", "404 gone", "a byte a second")

    def __init__(self, host: str, port: int):
        self.target, self.requests, self.lock = (host, port), 0, threading.Lock()
        self.done = dict.fromkeys(self.FAULTS, 0)
        self.every, self.always, self.sent = 3, None, 0
        handler = type("Handler", (_Handler,), {"proxy": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fault(self) -> str | None:
        with self.lock:
            self.requests += 1
            turn, due = divmod(self.requests, self.every)
            if due:
                return None
            name = self.FAULTS[turn % len(self.FAULTS)]
            self.done[name] += 1
            return name

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        connection = http.client.HTTPConnection(*self.proxy.target, timeout=30)
        given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection.request(self.command, self.path, given, dict(self.headers))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        fault = self.proxy.always or (self.proxy.fault() if "Range" in self.headers else None)
        if "Range" in self.headers and fault in (None, "slow"):  # slowly, but rightly
            with self.proxy.lock:
                self.proxy.sent += len(body)
        match fault:
            case "500" | "503 slow down" | "403 forbidden" | "404 gone":
                self.send_error(int(fault[:3]), "injected")
                return
            case "reset before the answer":
                self._reset()
                return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        half = len(body) // 2
        match fault:
            case "reset in mid-body":
                self.wfile.write(body[:half])
                self._reset()
            case "short body":
                self.wfile.write(body[:half])
                self.close_connection = True
            case "a byte a second":
                for start in range(min(len(body), 60)):
                    self.wfile.write(body[start : start + 1])
                    self.wfile.flush()
                    time.sleep(1)
                self.close_connection = True
            case "slow":
                for start in range(0, len(body), len(body) // 8 + 1):
                    self.wfile.write(body[start : start + len(body) // 8 + 1])
                    time.sleep(0.05)
            case _:
                self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_GET

    def _reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *what):
        pass
