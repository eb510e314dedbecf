"""The part of a W&B server, on loopback, that uploading a run and saving a report needs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROJECT = {"id": "7", "internalId": "7", "name": "p", "entityName": "me", "user": None}
PROJECT |= {"createdAt": "2026-01-01T00:00:00Z", "isBenchmark": False}
VIEWER = {"id": "1", "username": "me", "entity": "me", "email": "me@example.org"}
VIEWER |= {"flags": "{}", "teams": {"edges": []}, "name": "me", "admin": False, "apiKeys": None}
LAST = {"endCursor": None, "hasNextPage": False}


class Server(ThreadingHTTPServer):
    """Its records: reports, and the history of each run by line, as a server stores it."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuses = refuses  # every request
        self.reports: list[dict] = []
        self.histories: dict[str, dict[int, dict]] = {}  # run -> line -> row
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answered(self, query: str, variables: dict) -> dict:
        """The reply to a GraphQL request."""
        self.asked.append(query.split("(")[0].split("{")[0].strip())
        if "upsertView" in query:
            self.reports.append(variables)
            return {"upsertView": {"view": self.view(variables), "inserted": True}}
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": bucket(variables["name"]), "inserted": True}}
        if "GetProjects" in query:
            return {"models": {"edges": [{"node": PROJECT, "cursor": ""}], "pageInfo": LAST}}
        if "createRunFiles" in query:
            files = [{"name": f, "uploadUrl": f"{self.url}/file/{f}"} for f in variables["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if "RunResumeStatus" in query:
            return {"model": self.model(variables["name"])}
        if "project(" in query:
            return {"project": PROJECT}
        return {"viewer": VIEWER} if "viewer" in query else {}

    def view(self, variables: dict) -> dict:
        named = {key: variables[key] for key in ("name", "displayName", "description", "spec")}
        return {"id": "view", "type": "runs", "project": PROJECT, **named}

    def model(self, run: str) -> dict | None:
        """The server's description of a run for a client that resumes it."""
        if run not in self.histories:
            return None
        lines = self.histories[run]
        tail = json.dumps([json.dumps(lines[max(lines)])])
        known = {"historyLineCount": len(lines), "historyTail": tail, "summaryMetrics": "{}"}
        empty = {"eventsLineCount": 0, "logLineCount": 0, "eventsTail": "[]", "tags": []}
        started = {"config": "{}", "wandbConfig": json.dumps({"t": 1})}
        return {"id": "7", "name": "p", "bucket": {**bucket(run), **known, **empty, **started}}

    def stored(self, run: str, files: dict) -> None:
        """Store lines of a stream; they replace those from its offset on."""
        if (chunk := files.get("wandb-history.jsonl")) is not None:
            lines = self.histories.setdefault(run, {})
            for place, line in enumerate(chunk["content"], start=chunk["offset"]):
                lines[place] = json.loads(line)


def bucket(name: str) -> dict:
    of_run = {"historyLineCount": 0, "sweepName": None, "displayName": name, "config": "{}"}
    return {"id": name, "name": name, "project": {**PROJECT, "entity": {"name": "me"}}, **of_run}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply({})

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/graphql":
            asked = json.loads(raw)
            self.reply({"data": self.server.answered(asked["query"], asked.get("variables") or {})})
            return
        if self.path.endswith("/file_stream"):
            run = self.path.split("/")[-2]
            self.server.stored(run, json.loads(raw).get("files") or {})
        self.reply({})

    def reply(self, said: dict) -> None:
        raw = json.dumps(said).encode()
        self.send_response(401 if self.server.refuses else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args) -> None:
        """No log."""


@contextmanager
def serving(*, refuses: bool = False) -> Iterator[Server]:
    server = Server(refuses=refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
