"""Fields by CSS selector or XPath, configured wholly in the crawl's TOML.

A parser instance lives on one parse thread. Imports syncrawl's plugin API and cssselect;
pages bring their tree with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cssselect import HTMLTranslator, SelectorError

from syncrawl.api import ConfigError, Page, Record

SYNCRAWL_API = "1.0"

_OPTIONS = {"match", "rules"}
_RULE_KEYS = {"css", "xpath", "attr", "match", "many"}
_KEY = "parse.options.selectors"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one field is found: an XPath, where it applies, and what is taken of a match."""

    xpath: str
    match: re.Pattern[str] | None = None
    attr: str | None = None
    many: bool = False

    def applies(self, url: str) -> bool:
        """Whether the rule is meant for the page at `url`."""
        return self.match is None or self.match.search(url) is not None

    def values(self, tree: Any) -> list[Any]:
        """Every value on the page in document order: text, or a number or truth value."""
        found = tree.xpath(self.xpath)
        if not isinstance(found, list):
            found = [found]
        values = [self._value(item) for item in found]
        return [value for value in values if value not in (None, "")]

    def _value(self, item: Any) -> Any:
        if isinstance(item, str):
            # lxml's strings remember their page; a record must not keep it alive.
            return " ".join(str(item).split())
        if isinstance(item, bool | float):
            return item
        if self.attr is not None:
            return item.get(self.attr)
        if not isinstance(item.tag, str):
            return None  # a comment or a processing instruction
        return " ".join("".join(item.itertext()).split())


class SelectorsParser:
    """Yields one record a page: `url`, then each field of the rules that apply to it.

    A field without a value is None, or [] with `many`. A page none of whose fields has
    a value gives no record.
    """

    def __init__(self, rules: Mapping[str, Rule], match: re.Pattern[str] | None = None) -> None:
        self._rules = dict(rules)
        self._match = match

    def __repr__(self) -> str:
        return f"<SelectorsParser {', '.join(self._rules)}>"

    def parse(self, page: Page) -> Iterable[Record]:
        """The page's record, if it is markup and a rule finds something."""
        if self._match is not None and not self._match.search(page.url):
            return
        rules = {name: rule for name, rule in self._rules.items() if rule.applies(page.url)}
        if not rules:
            return
        tree = page.tree()
        if tree is None:
            return
        record: dict[str, Any] = {"url": page.url}
        found = False
        for name, rule in rules.items():
            values = rule.values(tree)
            found = found or bool(values)
            record[name] = values if rule.many else (values[0] if values else None)
        if found:
            yield record


def selectors_parser(options: Mapping[str, Any]) -> SelectorsParser:
    """The factory behind the entry point; ConfigError names the rule that cannot be used.

    Options: `match` (regular expression searched in the page's URL) and `rules`, a table
    of field name -> CSS selector, or -> {css or xpath, attr, match, many}.
    """
    for name in options:
        if name not in _OPTIONS:
            raise _refused(str(name), options[name], "is unknown", "it knows: match, rules")
    rules = options.get("rules")
    if not isinstance(rules, Mapping) or not rules:
        raise _refused("rules", rules, "must be a table of fields", 'such as title = "h1"')
    if "url" in rules:
        raise _refused("rules.url", rules["url"], "is the page's own URL", "rename the field")
    return SelectorsParser(
        {str(name): _rule(f"rules.{name}", rule) for name, rule in rules.items()},
        _pattern("match", options.get("match")),
    )


def _rule(key: str, given: Any) -> Rule:
    rule = {"css": given} if isinstance(given, str) else given
    if not isinstance(rule, Mapping):
        raise _refused(key, given, "is neither a CSS selector nor a table")
    for name in rule:
        if name not in _RULE_KEYS:
            known = ", ".join(sorted(_RULE_KEYS))
            raise _refused(f"{key}.{name}", rule[name], "is unknown", f"a rule knows: {known}")
    if ("css" in rule) == ("xpath" in rule):
        raise _refused(key, given, "needs a css selector or an xpath, and not both")
    many, attr = rule.get("many", False), rule.get("attr")
    if not isinstance(many, bool):
        raise _refused(f"{key}.many", many, "must be true or false")
    if attr is not None and not isinstance(attr, str):
        raise _refused(f"{key}.attr", attr, "must be an attribute's name")
    return Rule(_xpath(key, rule), _pattern(f"{key}.match", rule.get("match")), attr, many)


def _xpath(key: str, rule: Mapping[str, Any]) -> str:
    name = "css" if "css" in rule else "xpath"
    text = rule[name]
    if not isinstance(text, str) or not text.strip():
        raise _refused(f"{key}.{name}", text, "must be a non-empty string")
    if name == "xpath":
        return text
    try:
        return HTMLTranslator().css_to_xpath(text)
    except SelectorError as error:
        raise _refused(f"{key}.css", text, f"is no CSS selector: {error}") from error


def _pattern(key: str, text: Any) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise _refused(key, text, f"is no regular expression: {error}") from error


def _refused(key: str, value: Any, why: str, remedy: str | None = None) -> ConfigError:
    return ConfigError(why, key=f"{_KEY}.{key}", value=value, remedy=remedy)
