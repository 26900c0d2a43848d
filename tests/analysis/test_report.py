"""`cclf report`, opened in a real browser: its content, its layout on wide and narrow screens, and
escaping of text from runs."""

import csv
import json
from pathlib import Path

import pytest

from browser import Page
from cclf import cli
from cclf.analysis import load, report, report_files
from cclf.analysis.table import Cell, Entry, Table
from cclf.errors import ConfigError
from tiny_rows import TASK, row, runs_of, write_run

CARTPOLE = "dmc/cartpole-swingup"
EMPTY = "minigrid/Empty-16x16, entropy-0.01"
TRAIN = "env_steps,curiosity_mean,bonus_mean\n" + "".join(
    f"{s},{1 - s / 5e5},{0.1 / s}\n" for s in range(10_000, 400_001, 10_000)
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniGrid and DeepMind Control, five seeds each, one of them failed and one unfinished."""
    out = tmp_path_factory.mktemp("reported") / "my runs"
    for seed in range(1, 6):
        for method, value in (("re3", 0.3), ("cclf", 0.9)):
            failed = (method, seed) == ("re3", 5)
            steps = (100_000, 200_000, 300_000, 400_000)
            evaluations = {n: value * n / 400_000 + 0.01 * seed for n in steps}
            evaluations = {100_000: 0.1} if failed else evaluations
            log = TRAIN if method == "cclf" else ""
            for task in (TASK, "minigrid/Empty-16x16"):
                run = {"task": task, "evaluations": evaluations, "failed": failed, "train": log}
                write_run(out, method, seed, **run)
        evaluations = {50_000: 300.0, 100_000: 700.0 + 10 * seed}
        write_run(out, "cclf", seed, task=CARTPOLE, evaluations=evaluations)
    write_run(out, "drq", 1, task=CARTPOLE, evaluations={50_000: 300.0})
    return out


@pytest.fixture(scope="module")
def shown(runs: Path) -> Path:
    out = runs.parent / "report.html"
    words = ["report", str(runs), "--out", str(out), "--tables", str(runs.parent / "tables")]
    assert cli.main(words) == 0
    return out


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_page_fits_each_screen_and_color_scheme(
    tab: Page, shown: Path, width: int, dark: bool
) -> None:
    tab.open(shown, width, dark=dark)
    assert tab.problems == []
    assert tab.requests == [shown.as_uri()], "a report asks for nothing but itself"
    if width > 1000:
        height = tab.evaluate("document.documentElement.scrollHeight")
        assert height < 5 * 900, "long parts are folded"
    tab.open_details()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, (
        "the page must not scroll sideways"
    )
    boxes = "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect())"
    sizes = tab.evaluate(f"{boxes}.map(r => [r.width, r.height])")
    assert len(sizes) == 3 + 3 + 4, (
        "learning curves, panels across MiniGrid, curiosity and bonus on each of its tasks"
    )
    assert all(200 < across <= width and across / 5 < down for across, down in sizes), sizes
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = tab.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    assert background == ("rgb(22, 24, 29)" if dark else "rgb(251, 250, 247)")
    assert ink == ("rgb(230, 228, 222)" if dark else "rgb(29, 35, 48)"), "of the page"
    cells = "[...document.querySelectorAll('td.held, td.undecided, td.did-not-hold')]"
    edges = tab.evaluate(f"{cells}.map(cell => cell.getBoundingClientRect().right)")
    assert len(edges) > 3
    assert max(edges) <= width, "verdicts are read without scrolling"


def text_of(tab: Page, selector: str = "body") -> str:
    return " ".join(tab.evaluate(f"document.querySelector({selector!r}).innerText").split())


def test_the_page_holds_verdicts_tables_and_what_failed(tab: Page, shown: Path) -> None:
    tab.open(shown, 1100)
    tab.open_details()
    titles = (
        "[...document.querySelectorAll('details[id] > summary')].map(s => s.firstChild.textContent)"
    )
    assert tab.evaluate(titles) == [
        "Verdicts",
        "Learning curves",
        "Returns and steps",
        "Across tasks",
        "Curiosity",
        "Cost",
        "Failed and unfinished runs",
        "Origin",
    ]
    text = text_of(tab)
    assert "Report on my runs" in text
    assert (
        "DoorKey-6x6: CCLF's final return is 1.63 times RE3's CCLF (IJCAI 2022) section on "
        "MiniGrid held" in text
    )
    assert "730 ± 15.8 [718, 742] published 799 ± 61.0" in text
    assert "All: 5 seeds." in text
    assert "5 seeds, some failed" in text
    assert "2 of 26 runs failed: 7.7%" in text
    assert "value_loss was nan" in text
    assert "unfinished" in text
    labels = "[...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))"
    assert all(tab.evaluate(labels))
    sections = tab.evaluate("[...document.querySelectorAll('details[id]')].map(d => d.id)")
    links = "[...document.querySelectorAll('nav a')].map(a => document.querySelector(a.hash).id)"
    assert tab.evaluate(links) == sections
    edges = tab.evaluate(
        "[...document.querySelectorAll('figure.table:has(figcaption)')].map(f => "
        "[f.querySelector('figcaption').getBoundingClientRect().bottom, "
        "f.querySelector('table').getBoundingClientRect().top])"
    )
    assert len(edges) > 5
    assert all(caption <= table for caption, table in edges), "captions are above their tables"


def test_only_tables_that_are_too_wide_show_a_hint_to_scroll(tab: Page, tmp_path: Path) -> None:
    """The page needs no script: the hint has the height of a line, or no height."""
    tables = [
        Table("t", [Entry((Cell("0.930 ± 0.011"),) * n, {})] * 3, ("method",) * n)
        for n in range(1, 16)
    ]
    section = report.Section("tables", tables=tables, is_open=True)
    part = report.ReportPart("", {}, {}, [section])
    out = tmp_path / "tables.html"
    out.write_text(report_files.to_html(report.ReportContent("t", [part])))
    for width, fitting in ((1100, 8), (390, 2)):
        tab.open(out, width)
        found = tab.evaluate(
            "[...document.querySelectorAll('.wide')].map(w => [w.scrollWidth > w.clientWidth, "
            "w.querySelector('.hint').getBoundingClientRect().height])"
        )
        assert [wide for wide, _ in found[:fitting]] == [False] * fitting
        assert found[-1][0]
        assert all(height > 15 if wide else height == 0 for wide, height in found), found
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_panels_of_a_task_have_the_same_axes(tmp_path: Path) -> None:
    rows = [row("cclf", 1, n, n / 1e6) for n in (200_000, 400_000)]
    rows += [row("cclf", 1, n, n / 1e5, profile="entropy-0.001") for n in (200_000, 2_400_000)]
    rows += [row("cclf", 1, n, 0.1, task="minigrid/Empty-16x16") for n in (200_000, 300_000)]
    load.write_results(rows, tmp_path)
    (part,) = report.build_report(tmp_path).parts
    axes = {title: draw().axes[0] for title, draw in part.sections[0].figures[0].panels.items()}
    first, second, other = (
        (axes[title].get_xlim(), axes[title].get_ylim())
        for title in (f"{TASK}, entropy-0.01", f"{TASK}, entropy-0.001", EMPTY)
    )
    assert first == second
    assert first != other
    assert first[0][1] > 2_400_000
    assert first[1][1] > 24.0
    assert other[0][1] < 400_000


def test_report_shows_only_methods_and_claims_with_results(tmp_path: Path) -> None:
    other = row("re3", 1, 400_000, 0.5, task="minigrid/Empty-16x16")
    rows = [row("cclf", 1, n, 0.5) for n in (200_000, 400_000)] + [other]
    load.write_results(rows, tmp_path / "first")
    (part,) = report.build_report(tmp_path).parts
    assert list(part.sections[0].figures[0].styles) == ["cclf"], "re3 has no curve"
    rows = runs_of("cclf", [0.9] * 5) + runs_of("re3", [0.5] * 5)
    load.write_results([*rows, row("cclf", 1, profile="entropy-0.001")], tmp_path / "first")
    (part,) = report.build_report(tmp_path).parts
    assert part.tables[0].header == ("MiniGrid", "entropy-0.01"), "no claim can be evaluated"
    missing = "Claims that need further runs: 10 on MiniGrid, 3 on curiosity"
    assert missing in part.sections[0].text
    mixed = runs_of("cclf", [0.9]) + runs_of("re3", [0.5], repeat=2)
    load.write_results(mixed, tmp_path / "second")
    with pytest.raises(ConfigError, match=r"^second: .* differ in env steps per agent step"):
        report.build_report(tmp_path)


def test_a_report_of_some_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("cclf", "re3", "a2c")
    both = [one for name in names for one in runs_of(name, [0.5] * 5)]
    load.write_results(both, tmp_path / "results" / "first")
    load.write_results(runs_of("curl", [0.5] * 5), tmp_path / "results" / "second")
    (part,) = report.build_report(tmp_path / "results", ("re3", "cclf")).parts
    assert part.name == "first", "a part without them is left out"
    assert {key.method for key in part.runs} == {"cclf", "re3"}
    returns = next(table for table in part.tables if table.name.startswith("returns"))
    assert returns.header == ("task", "re3", "cclf")
    words = ["report", str(tmp_path / "results"), "--out", str(tmp_path / "r.html")]
    assert cli.main([*words, "--methods", "cclf", "re33"]) == 2
    error = capsys.readouterr().err
    assert "holds no results of re33; did you mean re3?" in error
    assert error.count("\n") == 1
    assert cli.main([*words, "--methods", "curl"]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "second" in text
    assert "first" not in text.partition("<body>")[2]


def test_folders_of_results_are_parts_of_one_report(tab: Page, tmp_path: Path) -> None:
    """The same run may be in two folders, as for controls that were trained later."""
    rows = runs_of("cclf", [0.9] * 5) + runs_of("re3", [0.5] * 5)
    load.write_results(rows, tmp_path / "results" / "first")
    load.write_results(rows, tmp_path / "results" / "second")
    (tmp_path / "results" / "empty").mkdir()
    out, tables = tmp_path / "r.html", tmp_path / "tables"
    words = ["report", str(tmp_path / "results"), "--out", str(out), "--tables", str(tables)]
    assert cli.main(words) == 0
    assert (tables / "first" / "verdicts-minigrid.csv").exists()
    assert (tables / "second" / "verdicts-minigrid.csv").exists()
    tab.open(out, 390)
    assert tab.problems == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    parts = "[...document.querySelectorAll('h2.part')].map(h => h.firstChild.textContent.trim())"
    assert tab.evaluate(parts) == ["first", "second"]
    places = tab.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(places)) == len(places) == 2 + 2 + 2 * 4
    ups = "[...document.querySelectorAll('a.up')].map(a => document.querySelector(a.hash).tagName)"
    assert tab.evaluate(ups) == ["NAV", "NAV"], "the title of each part leads back to the contents"
    assert "20 runs" in text_of(tab)


HOSTILE = '$\\frac$"><img src=x onerror="window.hacked=1"><b>{x}'


def test_html_in_the_names_of_a_run_is_escaped(
    tab: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(
        tmp_path / "runs",
        evaluations={200: 0.5, 400: 0.7},
        train="env_steps,curiosity_mean,bonus_mean\n200,0.5,0.1\n400,0.4,0.1\n",
        manifest={
            "commit": HOSTILE,
            "device": HOSTILE,
            f"</td><script>window.hacked=2</script>{HOSTILE}": HOSTILE,
        },
        failed=True,
        name='a "run" <svg onload=window.hacked=3>',
    )
    config = load.read_json(folder / "config.json")
    config |= {
        "task": f"minigrid/{HOSTILE}</svg><script>window.hacked=4</script>",
        "method_name": f"{HOSTILE}<i>",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "failure" / "failure.json").write_text(
        json.dumps({"metric": HOSTILE, "value": "<script>"})
    )
    out = tmp_path / "<b>.html"
    files = ["--tables", str(tmp_path / "t"), "--png", str(tmp_path / "p")]
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(out), *files]) == 0
    tab.open(out, 1100)
    tab.open_details()
    assert tab.problems == []
    assert tab.requests == [out.as_uri()]
    assert tab.evaluate("window.hacked === undefined")
    live = "script, img, [onerror], [onload], main > b, td b, td i"
    assert tab.evaluate(f"document.querySelectorAll('{live}').length") == 0
    assert tab.evaluate("document.querySelectorAll('svg').length") == 3, (
        "its curve, its curiosity and its bonus are drawn"
    )
    assert HOSTILE in tab.evaluate("document.body.innerText")
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.parent for path in written} == {tmp_path, tmp_path / "t", tmp_path / "p"}
    tex = next(
        path for path in written if path.name.startswith("returns") and path.suffix == ".tex"
    ).read_text()
    assert "\\textbackslash{}frac" in tex
    assert "\\frac" not in tex


@pytest.mark.parametrize(
    ("key", "value"),
    [("method_name", "../../up"), ("method_name", ""), ("task", "a\nb"), ("task", "\ud800")],
)
def test_names_that_cannot_be_shown_are_refused(tmp_path: Path, key: str, value: str) -> None:
    folder = write_run(tmp_path, evaluations={200: 0.5})
    (folder / "config.json").write_text(
        json.dumps(load.read_json(folder / "config.json") | {key: value})
    )
    with pytest.raises(ConfigError, match="cannot be"):
        report.build_report(tmp_path)


def test_figures_are_written_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load.write_results([row("cclf", 1, n) for n in (200_000, 400_000)], tmp_path)
    options = ["--pdf", str(tmp_path / "pdf"), "--png", str(tmp_path / "png")]
    words = ["report", str(tmp_path), "--out", str(tmp_path / "r.html"), *options]
    assert cli.main(words) == 0
    page, pdf, png = (Path(line) for line in capsys.readouterr().out.splitlines())
    assert page.read_bytes().startswith(b"<!doctype html>")
    assert pdf == tmp_path / "pdf" / "learning-curves.pdf"
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_tables_are_written_as_csv_and_latex(shown: Path) -> None:
    folder = shown.parent / "tables"
    with (folder / "returns-dmc-released.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    expected = {"task": CARTPOLE, "method": "cclf", "mean": "730.0", "published_mean": "799.0"}
    assert line | expected | {"clock": "env_steps", "steps": "100000", "seeds": "5"} == line
    assert r"730 $\pm$ 15.8" in (folder / "returns-dmc-released.tex").read_text()
    for path in folder.glob("*.tex"):
        text = path.read_text()
        assert text.count("{") == text.count("}")
        assert text.isascii()
        words = (r"\caption{", r"\label{", "{tabular}", "toprule", "midrule", "bottomrule")
        places = [text.index(word) for word in words]
        assert places == sorted(places)
        inside = text.partition("\\toprule\n")[2].partition("\\bottomrule")[0].splitlines()
        rows = [line for line in inside if line not in (r"\midrule", r"\addlinespace")]
        assert len({line.count(" & ") for line in rows}) == 1


def test_results_files_are_reported_as_runs_are(tmp_path: Path) -> None:
    rows = runs_of("cclf", [0.9] * 5) + runs_of("re3", [0.5, 0.4, 0.5, 0.4, 0.5])
    load.write_results(rows, tmp_path)
    titles = [section.title for section in report.build_report(tmp_path).parts[0].sections]
    assert "Learning curves" not in titles, "one evaluation makes no curve"
    load.write_results(
        [*rows, *(row._replace(env_steps=200_000, agent_steps=200_000) for row in rows)], tmp_path
    )
    composed = report.build_report(tmp_path)
    assert [section.title for section in composed.parts[0].sections] == [
        "Verdicts",
        "Learning curves",
        "Returns and steps",
        "Cost",
        "Origin",
    ]
    assert ("2", "verdicts: held", "held") in report_files.tiles(composed)


def test_atari_shows_the_last_agent_and_the_best_evaluation_apart(tmp_path: Path) -> None:
    """CURL's published scores are best evaluations of training, so the report compares them with
    our best evaluations."""
    rows = []
    once = row("curl", 1, 400_000, 2.0, task="atari/Breakout", repeat=4, episodes=10)
    load.write_results([once], tmp_path)
    names = [table.name for table in report.build_report(tmp_path).parts[0].tables]
    assert not any("best" in name for name in names), "a single evaluation is no best"
    for game in ("atari/Pong", "atari/Freeway", "atari/SpaceInvaders"):
        for seed, best in ((1, 9.0), (2, 7.0)):
            halfway, end = (
                row("curl", seed, n, v, task=game, repeat=4, episodes=10)
                for n, v in ((200_000, best), (400_000, 5.0))
            )
            rows += [halfway, end, end._replace(return_mean=4.0, episodes=100)]
    load.write_results(rows, tmp_path)
    found = {table.name: table for table in report.build_report(tmp_path).parts[0].tables}

    def cell(table: str, task: str, method: str) -> Cell:
        (line,) = (line for line in found[table].rows if line[0].text == task)
        return line[found[table].header.index(method)]

    last, best_ones = "returns-atari-entropy-0.01", "best-evaluations-atari-entropy-0.01"
    assert cell(last, "Freeway", "curl") == Cell("4.00 ± 0.000", ("[4.00, 4.00]", "2 seeds"))
    assert cell(last, "Freeway", "curl-rliable-final").notes == ("published 28.3 ± 1.40",)
    published = ("[7.00, 9.00]", "2 seeds", "published 26.7")
    assert cell(best_ones, "Freeway", "curl") == Cell("8.00 ± 1.41", published)
    assert cell(best_ones, "Freeway", "curl-rliable-best-of-10").notes == ("published 28.5",)
    finals, bests = (
        found[f"across atari entropy-0.01 {when}"].rows
        for when in ("at 100,000 agent steps", "best evaluation of each run")
    )
    assert finals[0][0].notes == ("2 seeds × 2 tasks",), "without the game that has no scale"
    assert {line[0].text for line in finals} >= {"cclf", "curl-rliable-final"}
    assert "curl-rliable-final" not in {line[0].text for line in bests}


def test_invalid_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    load.write_results(runs_of("cclf", [0.9]), tmp_path / "results")
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "does not exist"),
        ([str(tmp_path / "results"), "--out", str(tmp_path / "r.txt")], "must end in .html"),
        ([str(tmp_path / "results"), "--out", str(tmp_path / "taken" / "r.html")], "cannot write"),
    ):
        assert cli.main(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
