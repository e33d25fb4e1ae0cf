"""A web server on this machine, which has some abilities and lacks others."""

import contextlib
import http.server
import re
import threading
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, unquote


@contextlib.contextmanager
def web_server(
    folder,
    *,
    ranges=True,
    etag=True,
    times=True,
    length=True,
    listing=True,
    missing=404,
    redirect=False,
    refuse=0,
    login=None,
):
    """Its address and the (method, path) of every request.

    Args:
        missing: the status of what is not there; 200 with a web page, as of a portal.
        redirect: whether files lie elsewhere, as Hugging Face's resolve/ has them.
        refuse: the status of every answer; 0: none.
        login: the header Authorization without which every answer is 401; None: none is needed.
    """
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.do_GET()

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(501)

        def do_GET(self):
            asked.append((self.command, self.path))
            name = unquote(self.path.split("?")[0].strip("/"))
            moved = name.startswith("elsewhere/")
            file = Path(folder, name.removeprefix("elsewhere/"))
            if refuse or (login and self.headers.get("Authorization") != login):
                self.answer(refuse or 401)
            elif file.is_dir() and listing:
                inside = [quote(each.name) + "/" * each.is_dir() for each in sorted(file.iterdir())]
                links = ["?C=N;O=D", "../", "/", "./", *inside]
                self.answer(
                    200,
                    "".join(f'<a href="{each}">{each}</a>' for each in links).encode(),
                    kind="text/html",
                )
            elif not file.is_file():
                self.answer(missing, b"<html>not here</html>", kind="text/html")
            elif redirect and not moved:
                self.answer(302, headers={"Location": f"/elsewhere/{name}?signature=x"})
            else:
                self.send_file(file)

        def send_file(self, file):
            content, headers = file.read_bytes(), {}
            if etag:
                headers["ETag"] = f'W/"{hash(content)}"'
            if times:
                headers["Last-Modified"] = formatdate(file.stat().st_mtime, usegmt=True)
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if not (ranges and found):
                self.answer(200, content, headers, chunked=not length)
                return
            first, last = int(found[1]), int(found[2])
            headers["Content-Range"] = (
                f"bytes {first}-{min(last + 1, len(content)) - 1}/{len(content)}"
            )
            self.answer(206, content[first : last + 1], headers, chunked=not length)

        def answer(
            self, status, content=b"", headers=(), kind="application/octet-stream", chunked=False
        ):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header(
                *(
                    ("Transfer-Encoding", "chunked")
                    if chunked
                    else ("Content-Length", str(len(content)))
                )
            )
            self.end_headers()
            if self.command == "HEAD":
                return
            with contextlib.suppress(OSError):  # who wants the headers alone closes
                self.wfile.write(
                    b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
                    if chunked and content
                    else content
                )

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
