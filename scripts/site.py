"""MkDocs hook: the README is the home page, and files outside of docs/ that pages link to are part of the site.

GitHub resolves a link such as ../benchmarks/HISTORY.md relative to the repository. The site has no
repository, so linked files are copied into it, and links to folders become plain text.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")
ATTRIBUTE = re.compile(r'(src|srcset)="docs/')


def on_files(files: Files, config) -> Files:
    """Add the README as index.md and every linked file outside of docs/."""
    readme = ATTRIBUTE.sub(r'\1="', (ROOT / "README.md").read_text(encoding="utf-8"))
    readme = LINK.sub(lambda link: _rewritten(link, ROOT), readme)
    files.append(File.generated(config, "index.md", content=readme))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / link[2]).resolve()
            name = target.relative_to(ROOT)
            if (
                target.is_file()
                and name.parts[0] != "docs"
                and files.get_file_from_path(_path(target)) is None
            ):
                files.append(File.generated(config, _path(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    return (
        markdown
        if page.file.src_uri == "index.md"
        else LINK.sub(lambda link: _rewritten(link, ROOT / "docs"), markdown)
    )


def _rewritten(link: re.Match, folder: Path) -> str:
    target = (folder / link[2]).resolve()
    if not target.exists():
        return link[0]  # the strict build reports it
    if target.is_dir():
        return link[1]
    return f"[{link[1]}]({_path(target)}{link[3] or ''})"


def _path(target: Path) -> str:
    """The path of a file in the site. Markdown outside of docs/ is shown as text, not as a page."""
    name = target.relative_to(ROOT)
    if name.parts[0] == "docs":
        return name.relative_to("docs").as_posix()
    path = f"files/{name.as_posix()}"
    return path + ".txt" if name.suffix in (".md", ".py") or not name.suffix else path
