"""The site of the docs: built in an environment of its own, then every link in it is followed, and nobody else's server may be asked for a part."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.venv import BUILD, HERE, ROOT, python_with

SITE = BUILD / "site"
LOADED = {"script": "src", "img": "src", "iframe": "src"}
"""What a browser loads by itself; of links those to styles, icons and the like."""


class _Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            self.ids.add(found["id"] or "")
        if tag in LOADED and (source := found.get(LOADED[tag])):
            self.loads.append(source)
        if tag == "link" and found.get("rel") != "canonical" and (source := found.get("href")):
            self.loads.append(source)
        if tag == "a" and (target := found.get("href")):
            self.links.append(target)


def broken(site: Path) -> Iterator[str]:
    """What is wrong with the links of a site: a sentence for each."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text())
    for path, page in pages.items():
        name = path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{name} loads {target} from somebody else"
        for target in [*page.loads, *page.links]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or path.name == "404.html":  # that one is shown at any address
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                yield f"{name} links to {target}, which is not there"
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids:
                yield f"{name} links to {target}, but nothing there has that name"


def main() -> int:
    """Build it; 1 if a link is broken."""
    python = python_with(HERE / "site.txt", BUILD / "site-venv")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [python.parent / "zensical", "build", "--clean", "--strict"]
    if (ended := subprocess.run(command, cwd=ROOT, env=environment, check=False)).returncode:
        return ended.returncode
    found = list(broken(SITE))
    for one in found:
        print(one, file=sys.stderr)
    if not found:
        print(
            f"{sum(1 for _ in SITE.rglob('*.html'))} pages, no broken link: {(SITE / 'index.html').relative_to(ROOT)}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
