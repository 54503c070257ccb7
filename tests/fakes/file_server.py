"""A web server over a folder that can be told to misbehave, and that can answer as the Hugging Face hub does."""

import hashlib
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_HUB = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class FileServer(ThreadingHTTPServer):
    """Serves a folder; its attributes are its faults.

    Args:
        folder: Files by path; for the hub's addresses below `OWNER/NAME`.
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.asked = []  # (method, path, headers) of each request
        self.sent = 0  # bytes of bodies
        self.ranges = True  # whether Range is understood
        self.versions = True  # whether ETag is sent
        self.lengths = True  # whether the size is said
        self.cut_after = None  # bytes of a body after which the connection is closed
        self.cuts = 1000  # how often
        self.pause = 0.0  # seconds before each block
        self.failures = []  # status codes of the next requests
        self.shift = 0  # added to the first byte of a range
        self.store = None  # base URL where the hub keeps large files; None sends them itself
        self.gated = False  # whether the hub wants a token
        self.large = 100  # bytes from which the hub keeps files as large ones

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Clients that hang up are what the tests are about."""

    def ranges_asked(self, name):
        return [h.get("Range") for method, path, h in self.asked if method == "GET" and path.endswith(name)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        server, path = self.server, unquote(urlsplit(self.path).path)
        server.asked.append((self.command, path, self.headers))
        if server.failures:
            self._end(server.failures.pop(0))
            return
        match = _HUB.fullmatch(path)
        if match is None:
            file = server.folder / path.lstrip("/")
            self._file(file, body, {}) if file.is_file() else self._end(404)
            return
        name, revision, inner = match.groups()
        headers = {"X-Repo-Commit": COMMIT}
        if server.gated and not self.headers.get("Authorization"):
            self._end(401, {"X-Error-Code": "GatedRepo", **headers})
        elif not (server.folder / name).is_dir():
            self._end(404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._end(404, {"X-Error-Code": "RevisionNotFound", **headers})
        elif not (server.folder / name / inner).is_file():
            self._end(404, {"X-Error-Code": "EntryNotFound", **headers})
        else:
            self._hub_file(server.folder / name / inner, f"{name}/{inner}", body, headers)

    def _hub_file(self, file, path, body, headers):
        data = file.read_bytes()
        if len(data) < self.server.large:
            headers["ETag"] = f'"{hashlib.sha1(b"blob %d" % len(data) + bytes(1) + data).hexdigest()}"'
            self._file(file, body, headers)
            return
        headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if self.server.store:
            self._end(302, {"Location": f"{self.server.store}/{path}", **headers})
        else:
            self._file(file, body, {"ETag": '"of the store"', **headers})

    def _file(self, file, body, headers):
        server, data = self.server, file.read_bytes()
        if server.versions and "ETag" not in headers:
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        part, status = data, 200
        if asked and server.ranges and condition in (None, headers.get("ETag")):
            start = int(asked[1]) + server.shift
            end = min(int(asked[2] or len(data) - 1), len(data) - 1)
            if start >= len(data):
                self._end(416, {"Content-Range": f"bytes */{len(data)}"})
                return
            part, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        if server.lengths:
            headers["Content-Length"] = str(len(part))
        else:
            headers["Connection"] = "close"
        self._head(status, headers)
        if body:
            self._send(part)

    def _send(self, data):
        server = self.server
        cut = server.cut_after if server.cut_after is not None and server.cuts > 0 else None
        for start in range(0, len(data), 1000):
            block = data[start : start + 1000]
            cuts = cut is not None and start + len(block) > cut
            if cuts:
                block = block[: cut - start]
            if server.pause:
                time.sleep(server.pause)
            server.sent += len(block)
            self.wfile.write(block)
            if cuts:
                server.cuts -= 1
                self.close_connection = True
                return

    def _end(self, status, headers=None):
        self._head(status, {"Content-Length": "0", **(headers or {})})

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serving(folder):
    """Runs a `FileServer` in a thread."""
    with FileServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
