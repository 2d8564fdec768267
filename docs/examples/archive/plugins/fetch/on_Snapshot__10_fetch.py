#!/usr/bin/env python3
"""Fetches the page of a snapshot."""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
asked, _ = parser.parse_known_args()

try:
    with urllib.request.urlopen(asked.url, timeout=int(os.environ["FETCH_TIMEOUT"]) / 2) as answer:  # noqa: S310
        page = answer.read()
except urllib.error.HTTPError as refused:
    # The server has answered, so another try would not help: a failed result, and no error.
    print(json.dumps({"type": "Result", "status": "failed", "output_str": f"HTTP {refused.code}"}))
    sys.exit(0)

# Whole or not at all: a hook that is killed here is run again.
with open("page.html.part", "wb") as part:
    part.write(page)
os.replace("page.html.part", "page.html")
print(json.dumps({"type": "Result", "status": "succeeded", "output_str": "page.html"}))
