"""A real retrieval server whose `/call` misbehaves as a file says: `python faulty_server.py CORPUS PORT MODE_FILE`."""

import asyncio
import json
import sys
from pathlib import Path

from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.serving import app as app_module
from rpl.retrieval.serving.server import serve
from rpl.retrieval.serving.service_config import ServiceConfig


class Faulty:
    """Does to answers what the mode says: ok, slow, garbage, error, empty or wrong (one passage for all)."""

    def __init__(self, app, mode_file):
        self.app, self.mode_file, self.sent = app, mode_file, []

    async def __call__(self, scope, receive, send):
        mode = self.mode_file.read_text() if scope["type"] == "http" and scope["path"] == "/call" else "ok"
        if mode == "slow":
            await asyncio.sleep(30)
        if mode in ("ok", "slow"):
            await self.app(scope, receive, send)
            return
        parts = []

        async def keep(message):
            parts.append(message.get("body", b""))

        await self.app(scope, receive, keep)
        reply = json.loads(b"".join(parts))
        body, status = b"<html>bad gateway</html>", 200
        if mode == "error":
            status = 500
        elif mode in ("empty", "wrong"):
            for result in reply["results"]:
                result.pop("passages", None)
                result["status"] = "empty"
                if mode == "wrong":
                    result |= {"status": "ok", "passages": [["x", "Nowhere", "Nothing.", 1.0]]}
            body = json.dumps(reply).encode()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": body})


def main(corpus, port, mode_file):
    create = app_module.create_app
    app_module.create_app = lambda service: Faulty(create(service), Path(mode_file))
    config = LibraryConfig(corpus=corpus)
    serve(
        lambda: open_library(config),
        "127.0.0.1",
        int(port),
        ServiceConfig(threads=8),
        lambda text: (sys.stdout.write(text + "\n"), sys.stdout.flush()),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
