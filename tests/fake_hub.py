"""A hub of models on loopback: what huggingface_hub asks of one, for a few small folders."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeHub(ThreadingHTTPServer):
    """Serves revisions of one model; a ``with`` block starts it and ends it.

    Attributes:
        folders: by revision (40 hexadecimal digits), the model's files.
        asked: paths of all requests so far.
    """

    def __init__(self, name: str, folders: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.folders = folders
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Stay quiet."""

    def do_GET(self):
        self._answer(body=True)

    def do_HEAD(self):
        self._answer(body=False)

    def _answer(self, *, body):
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0].strip("/").removeprefix("api/models/")
        if not path.startswith(f"{self.server.name}/"):
            return self._refuse("RepoNotFound")
        kind, revision, *rest = path.removeprefix(f"{self.server.name}/").split("/", 2)
        revision = "1" * 40 if revision == "main" else revision
        folder = self.server.folders.get(revision)
        if folder is None:
            return self._refuse("RevisionNotFound")
        if kind == "revision":
            return self._send(json.dumps({"id": self.server.name, "sha": revision}).encode(), revision, body=True)
        if kind == "tree":
            files = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _digest(file)}
                for file in sorted(folder.iterdir())
            ]
            return self._send(json.dumps(files).encode(), revision, body=True)
        if not (folder / rest[0]).is_file():
            return self._refuse("EntryNotFound")
        return self._send((folder / rest[0]).read_bytes(), revision, body=body, etag=_digest(folder / rest[0]))

    def _refuse(self, code):
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content, revision, *, body, etag="0"):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", revision)
        self.end_headers()
        if body:
            self.wfile.write(content)


def _digest(file):
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
