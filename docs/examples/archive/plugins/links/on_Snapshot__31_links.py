#!/usr/bin/env python3
"""A record for each link: the crawl starts a run for it if it goes there."""

import argparse
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
asked, _ = parser.parse_known_args()


class Links(HTMLParser):
    """Collects where a page leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [urljoin(asked.url, value) for name, value in attrs if name == "href" and value]


links = Links()
links.feed(Path("../fetch/page.html").read_text())
for url in links.found:
    print(json.dumps({"type": "Snapshot", "url": url}))
print(json.dumps({"type": "Result", "status": "succeeded", "output_json": {"links": len(links.found)}}))
