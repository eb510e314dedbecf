"""A fake `vllm` that answers /health after a moment, has a child process like vLLM's engine, and
appends its arguments to the file that FAKE_VLLM names."""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


if "--broken" in sys.argv:
    sys.exit("no room for the model")
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.environ["FAKE_VLLM"], "a") as file:
    pids = [os.getpid(), engine.pid]
    file.write(json.dumps({"words": sys.argv[1:], "pids": pids}) + "\n")
time.sleep(0.2)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
