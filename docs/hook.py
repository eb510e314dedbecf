"""mkdocs hook: pages that are made at build time, links into the repository, formulas."""

from __future__ import annotations

import re

from generate import algorithms, commands, configuration, drawings, formula, repository
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MADE = {**algorithms.pages(), **configuration.pages()}  # uri -> Markdown
ORIGINS: dict[str, str] = {}  # uri of a page that shows a file of the repository -> its path


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """An entry of the navigation that ends in / is all pages that are made below it."""
    for tab in config.nav:
        for entries in tab.values():
            for entry in entries:
                if isinstance(entry, dict):
                    entry.update({name: _below(at) for name, at in entry.items() if at[-1] == "/"})
    return config


def _below(folder: str) -> list[str]:
    return sorted(uri for uri in MADE if uri.startswith(folder))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, text in MADE.items():
        files.append(File.generated(config, uri, content=text))
    pages = {
        f"{repository.DOCS}/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
    }
    for path, text in repository.follow_links(pages).items():
        uri = repository.uri_of(path)
        if files.get_file_from_path(uri) is not None:
            continue
        ORIGINS[uri] = repository.origin_of(path)
        if uri.endswith(".md"):
            files.append(File.generated(config, uri, content=text))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(repository.ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    origin = ORIGINS.get(uri, f"{repository.DOCS}/{uri}")
    if uri == "algorithms.md":
        markdown = algorithms.link_presets(markdown)
    return repository.relink(markdown, origin, uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """No page may ask the network for anything when it is read."""
    if asked := re.search(
        r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', output
    ):
        raise PluginError(f"{page.file.src_uri} asks the network: {asked[0]}")
    return output


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return drawings.inline_drawings(commands.wrap_lines(formula.render_formulas(html)))
