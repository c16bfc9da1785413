"""A page to hand to a parser under test, as the fetch stage would have made it.

For tests; imports the plugin API, and the HTML room when a page's tree or text is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncrawl.api import Headers, Page


def page(
    html: str | bytes,
    url: str = "http://site.test/",
    *,
    status: int = 200,
    content_type: str = "text/html",
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Page:
    """A 2xx page whose body is `html`; text is sent as UTF-8 and declared so.

    `fields` are any of `Page`'s own (`depth`, `label`, `final_url`, `encoding` ...);
    `headers` are added to the Content-Type.
    """
    if isinstance(html, str):
        fields.setdefault("encoding", "utf-8")
        content_type = f"{content_type}; charset=utf-8"
        body = html.encode()
    else:
        body = html
    fields.setdefault("final_url", url)
    fields.setdefault("canonical_url", url)
    fields.setdefault("fetched_at", "2024-01-01T00:00:00Z")
    return Page(
        url=url,
        status=status,
        headers=Headers({"Content-Type": content_type, **(headers or {})}),
        body=body,
        _tree=_tree,
        _text=_text,
        **fields,
    )


def _tree(page: Page) -> Any:
    from syncrawl.parse.html import tree_of

    return tree_of(page)


def _text(page: Page) -> str:
    from syncrawl.parse.html import text_of

    return text_of(page)
