"""The status page in a real browser."""

import os
import threading
from pathlib import Path

import pytest

from tests.serve import browser
from tests.serve.texts import USER
from tr.serve.auth import rules

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed")
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": USER}
CONTRAST = 4.5  # of text, by WCAG 2 level AA
COLOURS = """(() => {
  const lum = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(c)) return c;
    }
  };
  return [...document.querySelectorAll("body *")]
    .filter(e => e.offsetParent && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .map(e => {
      const [a, b] = [lum(getComputedStyle(e).color), lum(ground(e))];
      return [e.textContent.trim().slice(0, 20), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
    });
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    made = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def quiet(page):
    """The page, which must have complained of nothing in the end."""
    page.complaints.clear()
    yield page
    assert page.complaints == []


def test_figures_follow_the_engine(world, quiet):
    reached, go_on = threading.Event(), threading.Event()
    world.says("A first answer.")
    world.http.post(CHAT, json=BODY)
    quiet.open(world.url)
    quiet.until(lambda: quiet.text("status") == "serving")
    assert quiet.value("document.title") == quiet.text("model") == "tiny"
    first = quiet.text("context-text")
    speed, per_step = float(quiet.text("speed").replace(",", "")), float(quiet.text("per-step"))
    assert speed > 0 and per_step > 1
    answered = "document.querySelector('#totals dd').textContent"
    count = int(quiet.value(answered))

    def script(request):
        yield world.tokenizer.encode("a b ")
        reached.set()
        assert go_on.wait(20)
        yield world.tokenizer.encode("c d e f g h i j k ")

    world.engine.script = script
    asking = [threading.Thread(target=world.http.post, args=(CHAT,), kwargs={"json": BODY})]
    asking += [threading.Thread(target=world.http.post, args=(CHAT,), kwargs={"json": BODY})]
    for thread in asking:
        thread.start()
    assert reached.wait(20)
    quiet.until(lambda: (quiet.text("phase"), quiet.text("waiting")) == ("decode", "1"))
    go_on.set()
    for thread in asking:
        thread.join(20)
    quiet.until(lambda: int(quiet.value(answered)) == count + 2)
    quiet.until(lambda: (quiet.text("phase"), quiet.text("waiting")) == ("idle", "0"))
    assert quiet.text("context-text") != first
    assert float(quiet.text("per-step")) != per_step
    state = world.http.get("/v1/tr/state").json()
    used = state["context"]["tokens"]
    assert quiet.text("context-text") == f"{used:,} of 4,096 tokens"
    bars = quiet.value("[...document.querySelectorAll('.places i')].map(i => i.clientHeight)")
    (draft,) = state["last"]["drafts"]
    shares = zip(draft["accepted_by_position"], draft["proposed_by_position"], strict=True)
    assert [height > 0 for height in bars] == [kept > 0 and n > 0 for kept, n in shares]
    assert any(bars)


@pytest.mark.parametrize("width", [1000, 360])
def test_both_schemes_can_be_read(world, quiet, tmp_path, width):
    """Pictures go to TR_PICTURES, where that names a folder."""
    world.says("An answer.")
    world.http.post(CHAT, json=BODY)
    folder, pictures = Path(os.environ.get("TR_PICTURES") or tmp_path), []
    for scheme in ("light", "dark"):
        quiet.open(world.url, width=width, scheme=scheme)
        quiet.until(lambda: quiet.text("status") == "serving")
        low = [(text, ratio) for text, ratio in quiet.value(COLOURS) if ratio < CONTRAST]
        assert not low
        assert quiet.value("document.documentElement.scrollWidth") <= width, "it is cut off"
        pictures.append(quiet.picture(folder / f"{scheme}_{width}.png"))
    assert pictures[0] != pictures[1] and pictures[0].startswith(b"\x89PNG")


def test_a_key_is_asked_for(other, page):
    world = other(rules("127.0.0.1", "secret"))
    page.open(world.url)
    page.until(lambda: page.text("status") == "needs the API key")
    assert page.value("document.getElementById('login').hidden") is False
    page.value("document.getElementById('key').value = 'secret'")
    page.value("document.querySelector('#login button').click()")
    page.until(lambda: page.text("status") == "serving")
    assert page.value("document.getElementById('login').hidden") is True


def test_a_server_that_is_gone(other, page):
    world = other()
    page.open(world.url)
    page.until(lambda: page.text("status") == "serving")
    world.server.close()
    page.until(lambda: page.text("status") == "no answer")
    assert page.value("document.getElementById('status').className") == "bad"
