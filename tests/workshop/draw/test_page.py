"""Pages in a real browser: they draw themselves, answer mouse and keyboard, and run nothing of a file."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from browser import PROGRAM, Browser
from helpers import ROOT

import t7bridge
from t7bridge import Table, Tensor, TorchObject

MODELS = ROOT / "testfiles" / "models"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")]
LABELS = "[...document.querySelectorAll('svg.view text.t')].map(e => e.textContent)"
SCALE = "Number(/scale\\(([\\d.]+)/.exec(document.querySelector('svg.view > g').getAttribute('transform'))[1])"
MOVED = "/translate\\(([^)]*)/.exec(document.querySelector('svg.view > g').getAttribute('transform'))[1]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with Browser() as opened:
        yield opened


def layer(kind: str, /, **fields: Any) -> TorchObject:
    """A layer of Lua."""
    return TorchObject(f"nn.{kind}", 1, Table.of(fields))


def sequence(*layers: TorchObject, kind: str = "Sequential") -> TorchObject:
    """A container of Lua."""
    return layer(kind, modules=Table.from_list(list(layers)))


def linear(takes: int, returns: int) -> TorchObject:
    """An `nn.Linear`."""
    weight = Tensor.from_numpy(np.zeros((returns, takes), np.float32))
    return layer("Linear", weight=weight, bias=Tensor.from_numpy(np.zeros(returns, np.float32)))


def place(browser: Browser, text: str) -> tuple[float, float, float]:
    """The middle of a text in the window, and its height."""
    found = browser.run(
        f"(() => {{ const e = [...document.querySelectorAll('svg.view text')].find(e => e.textContent === {text!r});"
        "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.height]; })()"
    )
    return float(found[0]), float(found[1]), float(found[2])


def drawn(model: object, folder: Path, **options: Any) -> Path:
    """The page of a model."""
    t7bridge.draw(model, folder / "x.html", force=True, **options)
    return folder / "x.html"


class Residual(torch.nn.Module):
    """Six residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add each convolution to its input."""
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return x


def test_repeated_parts_of_graphs(browser: Browser, tmp_path: Path) -> None:
    """They are drawn once, with their number; a click opens them."""
    t7bridge.save_module(Residual(), tmp_path / "x.t7", torch.zeros(1, 4, 8, 8))
    browser.open(drawn(tmp_path / "x.t7", tmp_path))
    convolutions = f"{LABELS}.filter(t => t.includes('Conv2d')).length"
    assert browser.run(convolutions) == 1
    assert "×6" in browser.run(LABELS)
    rect = browser.run("(r => [r.x + 5, r.y + 5])(document.querySelector('.repeat .fold').getBoundingClientRect())")
    browser.click(*rect)
    assert browser.run(convolutions) == 6


def test_mouse(browser: Browser, tmp_path: Path) -> None:
    """The wheel zooms where the mouse is, a drag moves the picture, a click selects, and the sign in a corner folds."""
    browser.open(drawn(MODELS / "siamese_shared.t7", tmp_path))
    before, (x, y, _) = browser.run(SCALE), place(browser, "1: PairwiseDistance")
    browser.wheel(x, y, -400)
    assert browser.run(SCALE) > 1.5 * before
    assert place(browser, "1: PairwiseDistance")[:2] == pytest.approx((x, y), abs=3)
    moved = browser.run(MOVED)
    browser.drag((200, 400), (260, 340))
    by = [float(a) - float(b) for a, b in zip(browser.run(MOVED).split(","), moved.split(","))]
    assert by == pytest.approx([60, -60])
    browser.press("0")
    x, y, _ = place(browser, "1: PairwiseDistance")
    browser.click(x, y)
    panel = browser.run("document.querySelector('.panel').textContent")
    assert "nn.PairwiseDistance" in panel
    assert "PyTorch class" in panel
    count = len(browser.run(LABELS))
    rect = browser.run("(r => [r.x + 5, r.y + 5])(document.querySelectorAll('.fold')[1].getBoundingClientRect())")
    browser.click(*rect)
    assert len(browser.run(LABELS)) < count - 5  # the container is closed
    assert browser.errors == []


def test_keyboard_and_search(browser: Browser, tmp_path: Path) -> None:
    """`/` searches classes, names and paths; Enter goes there; arrows walk, `e` unfolds, `c` folds, `t`: the theme."""
    stages = [sequence(linear(4, 4), layer("Tanh")) for _ in range(9)]
    browser.open(drawn(sequence(*stages, layer("Sigmoid")), tmp_path))
    assert "0 … 8: Sequential  ×9" in browser.run(LABELS)
    browser.press("e")
    assert browser.run(LABELS).count("0: Linear") == 1  # of nine equal blocks
    browser.press("/")
    for letter in "sigm":
        browser.press(letter)
    assert "1 found" in browser.run("document.querySelector('.hits').textContent")
    browser.press("Enter")
    assert "nn.Sigmoid" in browser.run("document.querySelector('.panel').textContent")
    browser.run("document.activeElement.blur()")
    browser.press("ArrowUp")
    assert "8: Sequential" in browser.run("document.querySelector('.panel h2').textContent")
    browser.press("ArrowRight")
    assert "0: Linear" in browser.run("document.querySelector('.panel h2').textContent")
    browser.press("Escape")
    assert browser.run("document.querySelector('.panel').hidden")
    browser.press("c")
    assert browser.run(LABELS) == ["Sequential", "−", "0 … 8: Sequential  ×9", "+", "9: Sigmoid"]
    color = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.press("t")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != color
    assert browser.errors == []


@pytest.mark.parametrize("width", [1400, 400])
def test_the_panel_covers_nothing(tmp_path: Path, width: int) -> None:
    """The drawing ends where it begins, what was clicked stays in sight, and Escape closes it, also from the search."""
    with Browser(width, 900) as own:
        _check_panel(own, drawn(MODELS / "char_lstm_nngraph.t7", tmp_path))


def _check_panel(browser: Browser, page: Path) -> None:
    browser.open(page)
    area = "(r => [r.left, r.top, r.right, r.bottom])(document.querySelector('{}').getBoundingClientRect())"
    whole = browser.run(area.format("svg.view"))
    for text in ("36: LogSoftmax", "1: LookupTable"):
        x, y, _ = place(browser, text)
        browser.click(x, y)
        left, top, right, bottom = browser.run(area.format("svg.view"))
        panel = browser.run(area.format(".panel"))
        assert right <= panel[0] or bottom <= panel[1]
        x, y, _ = place(browser, text)
        assert left < x < right
        assert top < y < bottom
        if text == "1: LookupTable":
            browser.press("/")
        browser.press("Escape")
        assert browser.run("document.querySelector('.panel').hidden")
        assert browser.run(area.format("svg.view")) == whole
    legend = browser.run("document.querySelector('.legend').textContent")
    assert "#0 first input of a block" in legend
    assert "[0] first element of a list" in legend
    assert browser.run("document.querySelector('.legend').offsetHeight") > 0
    assert "LSTM 6 → 6" in browser.run(LABELS)
    browser.press("e")
    assert browser.run(LABELS).count("7: SplitTable") == 1  # cells open to their layers
    assert browser.errors == []


@pytest.mark.parametrize("kind", ["Linear", "Sequential"])
def test_every_key(browser: Browser, tmp_path: Path, kind: str) -> None:
    """Keys work in every model, also in one of a single layer, whatever is selected."""
    model = linear(2, 3) if kind == "Linear" else sequence(sequence(linear(2, 3)), layer("Tanh"))
    browser.open(drawn(model, tmp_path))
    keys = [
        "e",
        "c",
        "0",
        "+",
        "-",
        "t",
        "n",
        "p",
        "Enter",
        "ArrowDown",
        "ArrowRight",
        "ArrowLeft",
        "ArrowUp",
        "Escape",
    ]
    for key in [*keys, *reversed(keys)]:
        browser.press(key)
        assert browser.run("document.querySelectorAll('svg.view rect.b').length") > 0
    assert browser.errors == []


def test_branches_stand_in_their_order(browser: Browser, tmp_path: Path) -> None:
    """The branches of a container, and the nodes of a graph on one level, are drawn from left to right in order."""
    names = ("Tanh", "Sigmoid", "ReLU", "Identity")
    browser.open(drawn(sequence(*[layer(name) for name in names], kind="ConcatTable"), tmp_path))
    places = [place(browser, f"{number}: {name}")[0] for number, name in enumerate(names)]
    assert places == sorted(places)
    browser.open(drawn(MODELS / "char_lstm_nngraph.t7", tmp_path), "#unfold=all")
    assert place(browser, "8: Sigmoid")[1] == place(browser, "11: Sigmoid")[1]
    inputs = [place(browser, text)[0] for text in ("2: Linear", "4: Linear")]
    assert inputs == sorted(inputs)
    assert browser.errors == []


def test_large_models_open_at_once(browser: Browser, tmp_path: Path) -> None:
    """Models of a thousand layers open in proportion, unfolded too, and their pages weigh less than 2 MB."""
    kinds = ("Tanh", "Sigmoid", "ReLU")
    chain = sequence(
        *[linear(3 + n % 7, 3 + (n + 1) % 7) if n % 2 else layer(kinds[n * n % 5 % 3]) for n in range(1200)]
    )
    deep = layer("Tanh")
    for _ in range(300):
        deep = sequence(deep, layer("ReLU"), linear(2, 2))
    one = drawn(layer("Tanh"), tmp_path)
    usual = max(browser.open(one), browser.open(one))  # seconds
    for model in (chain, deep):
        page = drawn(model, tmp_path)
        assert page.stat().st_size < 2_000_000
        for fragment in ("", "#unfold=all"):
            seconds = min(browser.open(page, fragment), browser.open(page, fragment))  # the machine may be busy
            assert seconds < 100 * usual
    assert browser.errors == []


def test_nothing_of_a_file_runs(browser: Browser, tmp_path: Path) -> None:
    """Names that are markup, script or quotes are text everywhere: labels, panel, search, title; nothing is loaded."""
    hostile = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"&\\u003c\u202e\x1b[31m"
    model = sequence(layer(hostile[:75], name=hostile, **{hostile: hostile}), linear(2, 3))
    model["modules"][1][hostile] = hostile
    t7bridge.save(Table.of({hostile: model}), tmp_path / "x.t7")
    page = tmp_path / "<img src=x onerror=window.hit=1>.html"
    t7bridge.draw(tmp_path / "x.t7", page)
    for fragment in ("", "#select=<img src=x onerror=window.hit=1>&theme=<b>"):
        browser.open(page, fragment)
        browser.press("e")
        browser.run("document.querySelector('.search').value = '<'; document.querySelector('.search').oninput()")
        browser.run("document.querySelectorAll('svg.view .n').forEach(e => e.dispatchEvent(new MouseEvent('click')))")
        assert browser.run("window.hit") is None
        assert browser.run("document.querySelectorAll('img, iframe, object, link').length") == 0
        assert browser.run("document.scripts.length") == 4
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read(browser: Browser, tmp_path: Path, dark: bool) -> None:
    """In light and dark, every text has a contrast of 4.5 to 1 or more with its box, as WCAG 2.1 requires."""
    browser.dark(dark)
    browser.open(drawn(MODELS / "resnet_small.t7", tmp_path))
    ratios = browser.run("""(() => {
      const parse = text => text.match(/[\\d.]+/g).map(Number).slice(0, 3);
      const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
      const over = (top, share, under) => top.map((v, i) => v * share + under[i] * (1 - share));
      return [...document.querySelectorAll('svg.view g.n > text')].map(text => {
        const box = text.parentNode.querySelector('rect.b'), tint = text.parentNode.querySelector('rect.tint');
        let back = parse(getComputedStyle(box).fill);
        const style = tint && getComputedStyle(tint);
        if (tint) back = over(parse(style.fill), Number(style.fillOpacity), back);
        const [a, b] = [light(parse(getComputedStyle(text).fill)), light(back)];
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      });
    })()""")
    browser.dark(False)
    assert len(ratios) > 20
    assert min(ratios) >= 4.5


def test_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    """A notebook's cell shows the page in a frame, which cannot reach the notebook."""
    html = t7bridge.draw(MODELS / "unet_nngraph.t7")._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{html}")
    browser.open(tmp_path / "cell.html")
    time.sleep(0.3)
    assert browser.run("document.querySelector('iframe').contentDocument") is None
    assert browser.errors == []


FAULTS = """(() => {
  const frame = g => [...g.children].filter(e => e.matches('rect.b')).pop();
  const boxes = [...document.querySelectorAll('svg.view g.n')].map(frame).map(r => {
    const [x, y, w, h] = ['x', 'y', 'width', 'height'].map(name => Number(r.getAttribute(name)));
    return { x, y, right: x + w, low: y + h, text: r.parentNode.querySelector('text').textContent };
  }).sort((a, b) => a.y - b.y);
  const faults = [], within = (a, b) => a.x > b.x && a.y > b.y && a.right < b.right && a.low < b.low;
  boxes.forEach((a, i) => {
    for (const b of boxes.slice(i + 1)) {
      if (b.y > a.low - .2) break;
      if (a.x < b.right - .2 && b.x < a.right - .2 && !within(b, a)) faults.push(a.text + ' is over ' + b.text);
    }
  });
  const meets = (x, y, side) => boxes.some(b => x > b.x && x < b.right && Math.abs(y - b[side]) < .3);
  document.querySelectorAll('svg.view path.f').forEach(line => {
    const numbers = line.getAttribute('d').match(/-?[\\d.]+/g).map(Number);
    const ends = [...numbers.slice(0, 2), ...numbers.slice(-2)];
    if (!meets(ends[0], ends[1], 'low') || !meets(ends[2], ends[3], 'y')) faults.push('an arrow ends at ' + ends);
  });
  const texts = [...document.querySelectorAll('svg.view text')].map(e => [e.getBBox(), e.textContent]);
  texts.sort((a, b) => a[0].y - b[0].y);
  texts.forEach(([a, text], i) => {
    for (const [b, other] of texts.slice(i + 1)) {
      if (b.y + 3 > a.y + a.height) break;
      if (a.x + 2 < b.x + b.width && b.x + 2 < a.x + a.width) faults.push(text + ' is written over ' + other);
    }
  });
  return faults;
})()"""


@pytest.mark.parametrize("name", ["models/resnet_small", "models/siamese_shared", "found_nets", "residual"])
def test_whatever_is_open(browser: Browser, tmp_path: Path, name: str) -> None:
    """Nothing overlaps and arrows end at their boxes, whichever containers are opened and closed."""
    model = ROOT / "testfiles" / f"{name}.t7"
    if name == "residual":
        model = tmp_path / "x.t7"
        t7bridge.save_module(torch.nn.Sequential(*[Residual() for _ in range(3)]), model, torch.zeros(1, 4, 8, 8))
    browser.open(drawn(model, tmp_path))
    random, counts = Random(name), set()
    for _ in range(20):
        assert browser.run(FAULTS) == []
        count = browser.run("document.querySelectorAll('svg.view .fold').length")
        counts.add(count)
        click = "dispatchEvent(new MouseEvent('click', { bubbles: true }))"
        browser.run(f"document.querySelectorAll('svg.view .fold')[{random.randrange(count)}].{click}")
        if random.random() < 0.2:
            browser.press(random.choice("ec"))
    assert len(counts) > 1
    assert browser.errors == []


def test_closing_gives_the_room_back(browser: Browser, tmp_path: Path) -> None:
    """A container that is closed inside a repeated pair leaves no room behind."""
    inner = [sequence(linear(4, 4), layer("Tanh"), linear(4, 4)) for _ in range(4)]
    browser.open(drawn(sequence(*[each for one in inner for each in (one, layer("ReLU"))]), tmp_path))
    height = "Math.max(...[...document.querySelectorAll('svg.view g.n > rect.b')].map(e => e.getBBox().height))"
    before = browser.run(height)
    signs = "[...document.querySelectorAll('svg.view .fold')]"
    # of the model, of the pair that repeats, and of the container in it
    assert browser.run(f"{signs}.map(e => e.textContent)") == ["−", "×", "−"]
    browser.run(f"{signs}[2].dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))")
    assert browser.run(height) < before - 100
    assert browser.run(FAULTS) == []
    assert browser.errors == []


def test_pages_and_pictures_are_the_same(browser: Browser, tmp_path: Path) -> None:
    """A page shows at first what the still picture shows: the same boxes, arrows and texts at the same places."""
    parts = """((root, names) => names.map(name => [...root.querySelectorAll(name)].map(e =>
      ['x', 'y', 'width', 'height', 'd', 'rx'].map(key => e.getAttribute(key)).concat(
        e.matches('text') ? [e.textContent, e.classList[0]] : []))))"""
    kinds = ["g.n > rect", "g.n > text", "path.f", "text.l"]
    for path in sorted(MODELS.glob("*.t7")):
        if path.name.endswith(".io.t7"):
            continue
        drawing = t7bridge.draw(path, tmp_path / f"{path.stem}.html")
        browser.open(tmp_path / f"{path.stem}.html")
        page = browser.run(f"{parts}(document.querySelector('svg.view'), {kinds})")
        parse = f"new DOMParser().parseFromString({json.dumps(drawing.svg())}, 'image/svg+xml').documentElement"
        picture = browser.run(f"{parts}({parse}, {kinds})")
        assert len(page[0]) > 1
        for shown, still in zip(page, picture):
            left = [parts_of(each, 0) for each in still]
            for part in shown:
                words, numbers = parts_of(part, 12)
                left.remove(
                    next(each for each in left if each[0] == words and each[1] == pytest.approx(numbers, abs=0.3))
                )
            assert left == []


def parts_of(attributes: list[str | None], shift: float) -> tuple[list[str | None], list[float]]:
    """Texts and positions of a part of a drawing, moved by some pixels."""
    x, y, width, height, line, *words = attributes
    places = [float(each) + shift for each in re.findall(r"-?[\d.]+", line or f"{x} {y}")]
    return words, places + [float(each) for each in (width, height) if each is not None]


OVERLAPS = """(() => {
    const texts = [...document.querySelectorAll('svg.view text')].map(e => [e.getBoundingClientRect(), e]);
    const isSeen = r => r.width && r.x < innerWidth && r.right > 0 && r.y < innerHeight && r.bottom > 54;
    const seen = texts.filter(([r]) => isSeen(r));
    const sizes = seen.map(([r, e]) => parseFloat(getComputedStyle(e).fontSize));
    let crossed = [];
    for (const [r, e] of texts) for (const [q, o] of texts)
        if (e !== o && r.x + 2 < q.right && q.x + 2 < r.right && r.y + 3 < q.bottom && q.y + 3 < r.bottom)
            crossed.push(e.textContent + ' / ' + o.textContent);
    return [seen.length, Math.min(...sizes), crossed];
})()"""


def test_the_first_view_is_readable(browser: Browser, tmp_path: Path) -> None:
    """Every model opens with text of at least 11 pixels that nothing is written over; what does not fit is in a map."""
    chain = [each for number in range(200) for each in (linear(8 + number % 3, 8 + (number + 1) % 3), layer("Tanh"))]
    models = [path for path in sorted(MODELS.glob("*.t7")) if not path.name.endswith(".io.t7")]
    for model in [*models, sequence(*chain)]:
        browser.open(drawn(model, tmp_path))
        count, size, crossed = browser.run(OVERLAPS)
        assert count > 5
        assert size * browser.run(SCALE) > 10.99, model
        assert crossed == [], model
        picture = browser.run(
            "(r => [r.width, r.height])(document.querySelector('svg.view > g').getBoundingClientRect())"
        )
        mapped = browser.run("getComputedStyle(document.querySelector('.map')).display") != "none"
        assert mapped == (picture[0] > 1280 or picture[1] > 800 - 54 - 44), model


def test_the_map_moves_the_picture(browser: Browser, tmp_path: Path) -> None:
    """A click in the map of a model that does not fit shows that place; the arrows carry one element each."""
    browser.open(drawn(MODELS / "char_lstm_nngraph.t7", tmp_path), "#unfold=all")
    before = browser.run(MOVED)
    browser.click(
        *browser.run(
            "(r => [r.x + r.width / 2, r.bottom - 10])(document.querySelector('.map').getBoundingClientRect())"
        )
    )
    assert browser.run(MOVED) != before
    labels = browser.run("[...document.querySelectorAll('svg.view text.l')].map(e => e.textContent)")
    assert "[3] 1×6" in labels
    assert "#0 1×24" in labels
    assert not any("1×6, 1×6" in label for label in labels)


def test_sizes_in_the_head_of_the_page(browser: Browser, tmp_path: Path) -> None:
    """Sizes of lists in lists, some of them not known, are those in the box of the graph."""
    t7bridge.draw(ROOT / "testfiles/architectures.t7", tmp_path / "m.html", at="root.word_lstm.module")
    browser.go((tmp_path / "m.html").as_uri())
    assert "input 1, (?, 1×4, ?, 1×4) (a guess)" in browser.run("document.body.textContent")
