#!/bin/sh
# urllib3 2.8.0 changes the ssl.SSLContext that a PoolManager is given at each new connection: it loads the authorities
# and sets the ALPN protocols again. Python's ssl asks that a context is configured before several threads use it, and
# one would expect that a given context is used as it is. Seen on 2026-11-28:
#   3 connections: authorities loaded 3 times, ALPN set 3 times
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check urllib3==2.8.0 trustme==1.2.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import http.server
import ssl
import sys
import threading

import trustme
import urllib3


class Counting(ssl.SSLContext):
    loaded = alpn = 0

    def load_verify_locations(self, *given, **named):
        self.loaded += 1
        super().load_verify_locations(*given, **named)

    def set_alpn_protocols(self, protocols):
        self.alpn += 1
        super().set_alpn_protocols(protocols)


authority = trustme.CA()
authority.cert_pem.write_to_path("authority.pem")
serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
authority.issue_cert("localhost").configure_cert(serves)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
server.socket = serves.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
given = Counting(ssl.PROTOCOL_TLS_CLIENT)
pool = urllib3.PoolManager(ssl_context=given, ca_certs="authority.pem")
for _ in range(3):  # an HTTP/1.0 server: each request has a connection of its own
    assert pool.request("GET", f"https://localhost:{server.server_port}/authority.pem").status == 200
print("urllib3", urllib3.__version__)
print(f"3 connections: authorities loaded {given.loaded} times, ALPN set {given.alpn} times")
sys.exit((given.loaded, given.alpn) != (3, 3))
PYTHON
