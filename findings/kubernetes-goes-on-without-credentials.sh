#!/bin/sh
# kubernetes 37.0.1 (Python): the program that a kubeconfig's `exec` names for credentials fails, as after a session has
# ended. kubectl ends with the program's words. Here loading succeeds: the failure is a line of the root logger, and the
# client asks the cluster without credentials, which answers 401; nothing in the exception tells of the program.
# Seen on 2026-11-29:
#   loading: no exception
#   logged: exec: process returned 3. the session has ended: log in again
#   request: Authorization None -> UnauthorizedException 401, tells of the program: False
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kubernetes==37.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import logging
import sys
import threading
from pathlib import Path

import kubernetes
from kubernetes import client, config

sent, logged = [], []


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sent.append(self.headers.get("Authorization"))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Log(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage().strip())


logging.getLogger().addHandler(Log())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
program = Path("credentials").absolute()
program.write_text("#!/bin/sh\necho 'the session has ended: log in again' >&2\nexit 3\n")
program.chmod(0o755)
kind = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
kubeconfig = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
    "users": [{"name": "one", "user": {"exec": kind}}],
}
print("kubernetes", kubernetes.__version__)
made = config.new_client_from_config_dict(kubeconfig)
print("loading: no exception")
print("logged:", *logged)
try:
    client.CoreV1Api(made).list_namespace()
    error = None
except client.ApiException as raised:
    error = raised
told = "log in again" in str(error)
print(f"request: Authorization {sent[0]} -> {type(error).__name__} {error.status}, tells of the program: {told}")
sys.exit(not (sent == [None] and error.status == 401 and not told and "log in again" in logged[0]))
PYTHON
