"""Writing of a page: content rendered into one HTML file that needs no network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from phalanx.errors import UserError
from phalanx.records.files import cache_folder, write_atomically
from phalanx.report.build import Content, content_of
from phalanx.report.content import sources
from phalanx.report.theme import CONFIG
from phalanx.report.trace.chrome import write_missing_trace

PAGE_NAME = "report.html"
LIBRARIES = "window.vegaEmbed = vegaEmbed;"


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Draw the page of a study, a run or measured collectives and return its path.

    Raises UserError when the records cannot be read or the page cannot be written.
    """
    return write_page(content_of(folder), folder, output)


def write_page(content: Content, folder: Path, output: Path | None = None) -> Path:
    """Draw a page and return its path (`<folder>/report.html` by default).

    Raises UserError when it cannot be written.
    """
    path = output or folder / PAGE_NAME
    page = render(content)
    write_missing_trace(folder)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise UserError(f"the report cannot be written to {path}: {error.strerror}") from error
    return path


def render(content: Content) -> str:
    """The page as text."""
    charts = {f.name: {"spec": f.spec, **f.table} for f in content.figures}
    return (
        _template_environment()
        .get_template("report.html")
        .render(
            content=content,
            sources=sources(content.figures),
            data={"config": CONFIG, "figures": charts},
            **_inlined(),
        )
    )


def _template_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("phalanx.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _inlined() -> dict[str, object]:
    """Style and scripts, and the policy that lets only these scripts run and nothing be loaded."""
    folder = Path(__file__).parent / "page"
    scripts = {
        "theme_script": (folder / "theme.js").read_text(),
        "library_script": _library_script(),
        "page_script": (folder / "report.js").read_text(),
    }
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts.values())
    policy = (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    style = (folder / "report.css").read_text()
    marked: dict[str, object] = {name: Markup(script) for name, script in scripts.items()}
    return {"policy": policy, "style": Markup(style), **marked}


@cache
def _library_script() -> str:
    """Cost: a second or more, the first time on a machine: it is kept among the user's caches."""
    name = f"{hashlib.sha256(LIBRARIES.encode()).hexdigest()[:8]}-{version('vl-convert-python')}.js"
    path = cache_folder() / "pages" / name
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest, _, script = path.read_text().partition("\n")
        is_own = path.stat().st_uid == os.getuid()  # a temporary folder is open to others
        if is_own and digest == _sha256(script):
            return script
    script = inside_script(vl_convert.javascript_bundle(LIBRARIES))
    with contextlib.suppress(OSError):
        write_atomically(path, f"{_sha256(script)}\n{script}".encode())
    return script


def inside_script(source: str) -> str:
    """The same JavaScript, without the character sequences that would end its element."""
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
