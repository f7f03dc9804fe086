"""HTML from templates: everything that is put into one is escaped, and a name that a template does
not know is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.apps.web import words
from holdfast.apps.web.page import as_command, filled, url


class Renderer:
    """The templates of the console. Made with the first page: reading them takes a moment."""

    def __init__(self) -> None:
        env = Environment(
            loader=PackageLoader("holdfast.apps.web", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        env.filters.update(words.FILTERS)
        env.globals.update(
            url=url, as_command=as_command, filled=filled, ago=words.ago, some=words.some
        )
        # As a global: a block that is made by itself does not see what its template imports.
        env.globals["ui"] = env.get_template("ui.html").module
        self._env = env

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        return self._env.get_template(template).render(values)

    def parts(
        self, template: str, names: tuple[str, ...], values: Mapping[str, Any]
    ) -> dict[str, str]:
        """Blocks of a template by themselves."""
        found = self._env.get_template(template)
        context = found.new_context(dict(values))
        return {name: "".join(found.blocks[name](context)) for name in names}


def svg(text: str) -> Markup:
    """A drawing that this process has made of numbers and escaped texts."""
    return Markup(text)
