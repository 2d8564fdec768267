"""One deployed server: `server.py NAME DIRECTORY` serves the directory, and says in its `.url` where."""

import functools
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if __name__ == "__main__":
    directory = Path(sys.argv[2])
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        told = directory / ".url.new"
        told.write_text(f"http://127.0.0.1:{server.server_port}/")
        told.rename(directory / ".url")
        server.serve_forever()
