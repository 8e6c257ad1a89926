"""The HTML report: drawn without a network, complete without scripts, inert with hostile names."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import (
    InvalidInputError,
    LakelogWarning,
    MissingDependencyError,
    Table,
    UnavailableError,
)
from lakelog.demo import make_table
from lakelog.storage.local import LocalStore
from lakelog.testing import InjectingStore
from perf import generate
from tests.handmade import Handmade, add, field, info, metadata, protocol, remove
from tests.report.conftest import Shown

FIGURES = 8
HOSTILE = [
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg onload=document.title='owned'>",
    "]]>--><b>&amp;",
    "\u202egnp.exe",
    "{{constructor}}${7*7}",
]


class Texts(HTMLParser):
    """Texts and elements of a page, without its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden = tag in {"script", "style"}
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.texts.append(data)


def parsed(page: Path) -> Texts:
    found = Texts()
    found.feed(page.read_text("utf-8"))
    return found


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return lakelog.open(make_table(tmp_path_factory.mktemp("report") / "orders"))


@pytest.fixture(scope="session")
def page(demo: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the demo table, which a test copies to change it."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    written = demo.report(page)
    assert (written.path, written.size_bytes) == (str(page), page.stat().st_size)
    assert written.health.findings == demo.doctor().findings
    return page


def changed(page: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of a page with other text."""
    text = page.read_text("utf-8")
    assert old in text
    copy = folder / "changed.html"
    copy.write_text(text.replace(old, new), "utf-8")
    return copy


def test_the_figures_are_drawn_without_errors(page: Path, browse: Callable[..., Shown]) -> None:
    for scheme in (0, 1):  # dark, light
        shown = browse(page, f"--blink-settings=preferredColorScheme={scheme}")
        assert shown.console == []
        assert f'data-drawn="{FIGURES}"' in shown.dom
        assert len(re.findall(r"<svg[^>]*class=\"marks\"", shown.dom)) == FIGURES
        assert "cannot be drawn" not in shown.dom.partition("<script")[0]


def test_page_without_scripts_has_all_numbers(demo: Table, page: Path) -> None:
    found = parsed(page)
    text = " ".join(found.texts)
    snapshot = demo.snapshot()
    assert f"{snapshot.num_files():,}" in found.texts
    assert f"lakelog cleanup {demo.path} --apply --quarantine" in found.texts
    assert "column coupon added (string)" in text
    assert "delta.logRetentionDuration = interval 60 days" in text
    assert "`customer` = 'c" in text
    assert found.tags.count("table") == 11
    assert found.links == ["data:,"]  # nothing is loaded
    largest = snapshot.files(flatten=True).group_by("partition.day", "partition.region")
    row = largest.agg(pl.col("size").sum()).collect().sort("size").row(-1)
    assert f"day={row[0]}, region={row[1]}" in found.texts


def hostile(root: Path) -> Table:
    """A table whose columns, partition values, users, operations and properties are hostile."""
    names = [f"{text}{n}" for n, text in enumerate(HOSTILE)]
    properties = {text: text for text in HOSTILE}
    fields = [field(name, "string") for name in names]
    made = Handmade(root)
    made.start()
    made.commit(1, metadata(*fields, partitioned=names[:2], properties=properties, name=HOSTILE[1]))
    for version, text in enumerate(HOSTILE, 2):
        values = {names[0]: text, names[1]: HOSTILE[0]}
        made.commit(
            version,
            info(text, userName=text, operationParameters={"predicate": text}),
            add(f"{version}", 5, partitionValues=values),
            *([remove(f"{version - 1}", partitionValues=values)] if version > 2 else []),
        )
    return made.table


def test_hostile_names_are_escaped(browse: Callable[..., Shown], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    hostile(tmp_path / "<b>t").report(page)
    shown = browse(page)
    assert "owned" not in re.findall(r"<title>(.*?)</title>", shown.dom, re.DOTALL)[0]
    assert shown.console == []
    assert f'data-drawn="{FIGURES}"' in shown.dom
    found = parsed(page)
    assert not {"img", "b"} & set(found.tags[found.tags.index("section") :])
    assert HOSTILE[0] in found.texts  # shown as text
    assert found.tags.count("script") == FIGURES + 3


def test_content_security_policy_blocks_an_unescaped_script(
    page: Path, browse: Callable[..., Shown], tmp_path: Path
) -> None:
    script = "<script>document.title='owned'</script><h1>"
    shown = browse(changed(page, tmp_path, "<h1>", script))
    assert "<title>owned" not in shown.dom
    assert any("Content Security Policy" in line for line in shown.console)
    assert f'data-drawn="{FIGURES}"' in shown.dom


def test_a_table_sorts_by_value(page: Path, browse: Callable[..., Shown], tmp_path: Path) -> None:
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', page.read_text("utf-8"))
    assert policy is not None
    click = (
        "<script>const heads = [...document.querySelectorAll('th button')];"
        "const sizes = heads.filter((head) => head.textContent === 'deleted size')[0];"
        "sizes.click(); document.title = [...sizes.closest('table').tBodies[0].rows]"
        ".map((row) => row.cells[6].dataset.v).join(' ');</script>"
    )
    free = changed(page, tmp_path, policy[0], "")
    free = changed(free, tmp_path, "</body>", f"{click}</body>")
    title = re.findall(r"<title>(.*?)</title>", browse(free).dom)[0]
    sizes = [int(size) for size in title.split()]
    assert len(sizes) > 5
    assert sizes == sorted(sizes)


def test_page_size_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    sizes = []
    for files in (1_000, 50_000):
        generate.generate("checkpoint_1m_files", tmp_path / f"{files}", files / 1_000_000)
        table = lakelog.open(tmp_path / f"{files}")
        sizes.append(table.report(tmp_path / "report.html").size_bytes)
        assert table.snapshot().num_files() == files + 10
    assert max(sizes) < 1_500_000
    assert sizes[1] - sizes[0] < 50_000  # a byte per file


def test_a_table_without_files_has_a_report(browse: Callable[..., Shown], tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    table.report(tmp_path / "report.html")
    shown = browse(tmp_path / "report.html")
    assert shown.console == []
    assert "Nothing needs doing" in shown.dom


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_every_format_has_a_report(tmp_path: Path, form: str) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format=form, upkeep=False)
    for number in range(3):
        with table.transaction() as tx:
            tx.add(path=f"{number}", size=1)
    table.report(tmp_path / "report.html")
    assert f"{form} table, version" in (tmp_path / "report.html").read_text("utf-8")


def test_each_commit_is_read_once(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    for number in range(3):
        table.append(pl.DataFrame({"id": [number]}))
    store = InjectingStore(LocalStore(str(tmp_path / "t")))
    written = lakelog.open(store=store).report(tmp_path / "report.html")
    assert written.health.measures.tail_commits == 4
    read = [path for kind, path in store.operations if kind == "read" and path.endswith(".json")]
    # The last one is the name of the next commit, which has to be free.
    assert sorted(read) == [f"_delta_log/{version:020}.json" for version in range(5)]


def test_unwritable_report_raises_unavailable_error(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    with pytest.raises(UnavailableError, match="the report cannot be written"):
        table.report(tmp_path / "missing" / "report.html")
    with pytest.raises(InvalidInputError, match="path of the report is invalid"):
        table.report("a\0b")


def test_a_report_that_cannot_be_completed_leaves_the_earlier_one(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    page = tmp_path / "r" / "page.html"
    page.parent.mkdir()
    page.write_text("earlier")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UnavailableError, match="cannot be written"):
            table.report(page)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(each.name, each.read_text()) for each in page.parent.iterdir()] == [
        ("page.html", "earlier")
    ]
    assert table.report(page).size_bytes == page.stat().st_size > 10_000


@pytest.mark.parametrize("name", lakelog.plot.__all__)
def test_figure_has_few_points_and_axis_titles(demo: Table, name: str) -> None:
    spec = getattr(lakelog.plot, name)(demo).to_dict()
    for chart in spec.get("vconcat", [spec]):
        assert 0 < len(spec["datasets"][chart["data"]["name"]]) < 600
        titles = [chart["encoding"][axis].get("title") for axis in "xy"]
        assert all(titles), "an axis has a title with its unit"
        assert chart["encoding"]["tooltip"]


def test_lines_have_every_commit(demo: Table) -> None:
    spec = lakelog.plot.size_and_files(demo).to_dict()
    for chart in spec["vconcat"]:
        points = spec["datasets"][chart["data"]["name"]]
        assert [each["version"] for each in points] == list(range(demo.version() + 1))


def test_a_line_of_many_commits_shows_a_short_deletion(tmp_path: Path) -> None:
    made = Handmade(tmp_path)
    made.commit(0, protocol(), metadata(), *(add(f"f{i}") for i in range(9)))
    for version in range(1, 600):
        made.commit(version, info())
    made.commit(301, info(), *(remove(f"f{i}") for i in range(9)))
    made.commit(302, info(), *(add(f"f{i}") for i in range(9)))
    spec = lakelog.plot.size_and_files(made.table).to_dict()
    points = spec["datasets"][spec["vconcat"][1]["data"]["name"]]
    assert len(points) < 300
    assert {each["version"]: each["files"] for each in points}[301] == 0


def test_legends_fit_a_narrow_page(page: Path, browse: Callable[..., Shown]) -> None:
    shown = browse(page, "--window-size=500,900")
    figures = re.split(r'<svg (?=[^>]*class="marks")', shown.dom)[1:]
    background = r'"Symbol legend[^>]*><g [^>]*><path class="background"[^>]*d="M0,0h([\d.]+)'
    legends = [(each, width) for each in figures for width in re.findall(background, each)]
    assert len(legends) == 3
    for figure, width in legends:
        svg = re.search(r'width="(\d+)"', figure)
        assert svg is not None
        assert float(width) + 45 < int(svg[1]), "the legend begins right of the axis"


def test_commits_are_counted_by_operation_or_user(demo: Table) -> None:
    for by, column in (("operation", "operation"), ("user", "userName")):
        spec = lakelog.plot.commits(demo, by).to_dict()  # type: ignore[arg-type] # one of the names
        rows = pl.DataFrame(spec["datasets"][spec["data"]["name"]])
        drawn = rows.group_by(by).agg(pl.col("commits").sum())
        counted = demo.history().group_by(pl.col(column).alias(by)).agg(pl.len().alias("commits"))
        assert sorted(drawn.rows()) == sorted(counted.rows())
        assert rows["bucket"].n_unique() > 10
    with pytest.raises(InvalidInputError, match="by"):
        lakelog.plot.commits(demo, "table")  # type: ignore[arg-type] # invalid on purpose


@pytest.mark.parametrize("name", lakelog.plot.__all__)
def test_missing_altair_error_names_the_extra(
    demo: Table, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingDependencyError) as raised:
        getattr(lakelog.plot, name)(demo)
    assert raised.value.hint == "pip install 'lakelog[plot]'"
    with pytest.raises(MissingDependencyError):
        demo.report("report.html")


def test_partition_values_before_year_1_are_drawn(tmp_path: Path) -> None:
    fields = field("id"), field("at", "timestamp"), field("local", "timestamp_ntz")
    values = {"at": "-9999-12-31T23:59:59.999999Z", "local": "-0044-03-15 12:00:00"}
    for partitioned in (["at"], ["at", "local"]):
        made = Handmade(tmp_path / str(len(partitioned)))
        kept = {name: values[name] for name in partitioned}
        made.commit(0, protocol(), metadata(*fields, partitioned=partitioned))
        made.commit(1, *(add(f"{n}", 1, partitionValues=kept) for n in range(2)))
        page = tmp_path / "page.html"
        made.table.report(page)
        texts = "".join(parsed(page).texts)
        assert "at=-9999-12-31 23:59:59.999999+00:00" in texts
        assert ("local=-0044-03-15 12:00:00" in texts) == (len(partitioned) > 1)
        assert "-9999-12-31" in made.table.doctor().measures.largest_partition


def test_partitions_of_one_column_are_bars_of_the_largest(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(partitioned=["name"])
    made.commit(1, *(add(f"{n}", n, partitionValues={"name": f"{n}"}) for n in range(1, 60)))
    spec = lakelog.plot.partitions(made.table).to_dict()
    values = [row["partition"] for row in spec["datasets"][spec["data"]["name"]]]
    assert values == [f"name={n}" for n in range(59, 34, -1)]


def test_title_of_a_folder_with_an_odd_name_is_printable(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t\udcff\n\x1b").start()
    page = tmp_path / "page.html"
    made.table.report(page)
    (title,) = re.findall("<title>(.*?)</title>", page.read_text("utf-8"), re.DOTALL)
    assert "t\\udcff\\n\\x1b" in title


def test_image_in_the_docs_is_small() -> None:
    image = Path(__file__).resolve().parents[2] / "docs/images/report.png"
    assert image.stat().st_size < 200_000


def test_history_of_the_page_begins_above_a_commit_that_cannot_be_read(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start()
    for version in range(1, 7):
        made.commit(version, info("WRITE"), add(str(version)))
    made.table.checkpoint(4)
    for version in (1, 2):
        commit = made.log / f"{version:020d}.json"
        commit.write_bytes(commit.read_bytes()[:50])
    page = tmp_path / "report.html"
    with pytest.warns(LakelogWarning, match="the history begins above version 2: "):
        made.table.report(page)
    texts = parsed(page).texts
    (line,) = (text for text in texts if text.startswith("The history begins above version 2: "))
    assert f"{2:020d}.json" in line
    assert texts[texts.index("commits in the log") - 1] == "4"


def test_retention_figure_has_the_in_commit_timestamp_of_the_oldest_commit(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.commit(
        0,
        info("CREATE TABLE", inCommitTimestamp=1_600_000_000_000),
        protocol(1, 7, writerFeatures=["inCommitTimestamp"]),
        metadata(properties={"delta.enableInCommitTimestamps": "true"}),
    )
    page = tmp_path / "report.html"
    made.table.report(page)
    text = page.read_text("utf-8")
    assert '{"what":"commits in the log","start":"2020-09-13T12:26:40Z"' in text
    assert "2020-09-13 12:26:40 UTC" in parsed(page).texts
