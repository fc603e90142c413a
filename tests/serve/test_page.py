"""The page in a real browser: Chromium, driven by Playwright."""

import re
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
SENTENCE = "Der Mann sieht die Frau und das Haus"
HTML = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script><b>rot</b>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def open_page(browser):
    """Open a service's page; whatever the console says, or a request elsewhere, is a failure."""
    contexts, trouble = [], []

    def open_page(running, **settings):
        context = browser.new_context(viewport={"width": 1200, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "console",
            lambda said: (
                said.type == "error"
                and "Failed to load resource" not in said.text  # a 401 or 422, as asked for
                and trouble.append(said.text)
            ),
        )
        page.on(
            "request",
            lambda asked: asked.url.startswith(running.address) or trouble.append(asked.url),
        )
        page.goto(running.address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def translated(page, running, text, **asked):
    """Wait until the page shows what the service says."""
    beam = {"beam": 5, "n_best": 5}
    [expected] = running.translate(text, **beam, **asked).json()["translations"]
    playwright.expect(page.locator("#target")).to_have_text(expected["text"])
    return expected


def test_typing_translates_and_shows_candidates_and_branches(served, open_page):
    page = open_page(served)
    source = page.locator("#source")
    playwright.expect(source).to_be_focused()
    page.keyboard.type(SENTENCE, delay=5)
    expected = translated(page, served, SENTENCE)
    others = [one["text"] for one in expected["hypotheses"][1:]]
    assert len(others) > 1
    playwright.expect(page.locator("#list .text")).to_have_text(others)
    maps = page.locator("#maps svg")
    playwright.expect(maps).to_have_count(3)
    with served.client() as client:
        seen = client.post("/inspect", json={"text": SENTENCE, "beam": 5}).json()
    tokens = maps.first.locator("text").all_text_contents()
    assert tokens == [*seen["columns"], *seen["rows"]]
    # More words: the translation follows without a click.
    page.keyboard.type(" . Ein Hund")
    translated(page, served, f"{SENTENCE} . Ein Hund")
    page.locator("#clear").click()
    playwright.expect(page.locator("#target")).to_have_text("")
    playwright.expect(page.locator("#attention")).to_be_hidden()


def wait_until(page, condition: str) -> None:
    """As wait_for_function, which the page's content policy forbids."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(10)
    raise AssertionError(f"never so: {condition}")


def test_an_answer_that_is_being_read_when_the_text_goes_is_forgotten(served, open_page):
    page = open_page(served)
    page.evaluate("""() => {
        const read = Response.prototype.json;
        Response.prototype.json = async function () {
            const content = await read.call(this);
            if (this.url.endsWith("/inspect")) {
                window.reading = true;
                await new Promise((done) => setTimeout(done, 400));
                window.reading = false;
            }
            return content;
        };
    }""")
    page.locator("#source").fill(SENTENCE)
    wait_until(page, "window.reading === true")
    page.locator("#clear").click()
    wait_until(page, "window.reading === false")
    page.wait_for_timeout(100)
    playwright.expect(page.locator("#attention")).to_be_hidden()
    playwright.expect(page.locator("#said")).to_have_text("")


def test_switching_a_branch_off_changes_the_translation(served, open_page):
    page = open_page(served)
    page.locator("#source").fill(SENTENCE)
    whole = translated(page, served, SENTENCE)["text"]
    switches = page.get_by_role("switch")
    playwright.expect(switches).to_have_count(3)
    switches.nth(1).click()
    without = translated(page, served, SENTENCE, branches=[1, 3])["text"]
    assert without != whole
    playwright.expect(page.locator("#before")).to_have_text(f"With all branches: {whole}")
    playwright.expect(page.locator("#maps svg")).to_have_count(2)
    playwright.expect(page.locator("#maps .off")).to_contain_text("Branch 2")
    assert page.locator("#target mark").count() > 0
    switches.nth(0).click()
    translated(page, served, SENTENCE, branches=[3])
    # One must stay on.
    assert switches.nth(2).get_attribute("aria-disabled") == "true"
    switches.nth(2).click(force=True)
    assert switches.nth(2).get_attribute("aria-checked") == "true"
    switches.nth(0).click()
    switches.nth(1).click()
    translated(page, served, SENTENCE)
    playwright.expect(page.locator("#before")).to_be_hidden()


def test_a_layer_that_the_other_side_does_not_have_gives_way_to_all(
    tmp_path, save_model_directory, start, open_page
):
    from multibranch.serve.engine import Engine

    save_model_directory(tmp_path / "deep", encoder_layers=3, decoder_layers=2)
    page = open_page(start(engine=Engine.load(tmp_path / "deep", device="cpu")))
    page.locator("#source").fill(SENTENCE)
    maps = page.locator("#maps svg")
    playwright.expect(maps).to_have_count(2)
    page.get_by_role("button", name="Within the source").click()
    page.get_by_role("button", name="Layer 3").click()
    playwright.expect(maps).to_have_count(2)
    page.get_by_role("button", name="Translation → source").click()
    layers = page.locator("#layers button")
    playwright.expect(layers).to_have_text(["All layers", "Layer 1", "Layer 2"])
    playwright.expect(layers.first).to_have_attribute("aria-pressed", "true")
    playwright.expect(maps).to_have_count(2)


def test_branches_that_only_some_layers_have_are_shown_too(
    tmp_path, save_model_directory, start, open_page
):
    from multibranch.serve.engine import Engine

    save_model_directory(
        tmp_path / "uneven", encoder_layers=2, decoder_layers=2, branches=[2, 2, 3, 2]
    )
    page = open_page(start(engine=Engine.load(tmp_path / "uneven", device="cpu")))
    playwright.expect(page.locator("#model")).to_contain_text("2 to 3 branches")
    page.locator("#source").fill(SENTENCE)
    figures, maps = page.locator("#maps figure"), page.locator("#maps svg")
    playwright.expect(maps).to_have_count(3)
    playwright.expect(page.get_by_role("switch")).to_have_count(2)
    page.get_by_role("button", name="Layer 2").click()
    playwright.expect(maps).to_have_count(2)
    playwright.expect(figures.last).to_have_text("Branch 3This layer does not have it.")
    page.get_by_role("switch", name="Branch 2").click()  # leaves every layer its first alone
    playwright.expect(maps).to_have_count(1)
    playwright.expect(figures).to_have_count(2)
    playwright.expect(figures.last).to_have_text("Branch 2Switched off.")


def test_it_can_be_used_with_the_keyboard_alone(served, open_page):
    page = open_page(served)
    page.keyboard.type("Der Mann")
    translated(page, served, "Der Mann")
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    focused = []
    for _ in range(20):
        page.keyboard.press("Tab")
        role = "document.activeElement.getAttribute('role')"
        focused.append(page.evaluate(f"{role} || document.activeElement.textContent"))
        if focused[-1] == "switch":
            page.keyboard.press("Space")
            translated(page, served, "Der Mann", branches=[2, 3])
            playwright.expect(page.locator("#maps svg")).to_have_count(2)  # drawn after the text
            assert page.evaluate(role) == "switch"  # the focus has stayed
            page.keyboard.press("Space")
            translated(page, served, "Der Mann")
            playwright.expect(page.locator("#maps svg")).to_have_count(3)
            break
    assert focused[-1] == "switch"
    while page.evaluate("document.activeElement.tagName") != "svg":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    wanted = re.compile(r"Branch 1: .+ looks at .+ with \d+ % of its attention\.")
    playwright.expect(page.locator("#pointed")).to_have_text(wanted)


def test_html_comes_out_as_text(start, open_page):
    one = start(limits={"inspect_tokens": 256})
    page = open_page(one)
    page.locator("#source").fill(HTML)
    expected = translated(page, one, HTML)
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    assert page.title() == "multibranch"
    assert page.locator("main img, main script, main b:not(#pointed b)").count() == 0
    tokens = page.locator("#maps svg").first.locator("text").all_text_contents()
    assert any("&lt;" in token or "<" in token or "lt" in token for token in tokens)
    assert expected["text"] == page.locator("#target").text_content()


def test_a_translation_that_is_html_comes_out_as_text(served, open_page, monkeypatch):
    """The model cannot be made to write HTML at will, so its detokeniser is."""
    text = served.service.engine.text
    monkeypatch.setattr(text, "detokenise", lambda words, side: HTML)
    page = open_page(served)
    page.locator("#source").fill("rot")
    playwright.expect(page.locator("#target")).to_have_text(HTML)
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    page.get_by_role("switch").first.click()
    playwright.expect(page.locator("#before")).to_contain_text("The same as with all branches.")
    assert page.title() == "multibranch"
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_s_width_needs_no_scrolling_aside_and_colours_can_be_read(
    served, open_page, scheme
):
    page = open_page(served, color_scheme=scheme)
    page.set_viewport_size({"width": 375, "height": 812})
    page.locator("#source").fill("Der Mann sieht die Frau, und das Haus? " * 3)
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    for selector in ("body", ".faint", "#target", ".switch .name", "#list .score"):
        assert contrast(page, selector) >= 4.5, selector
    page.goto(f"{served.address}/docs")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    beyond = """() => Math.max(...[...document.querySelectorAll(".scroll")]
        .map((table) => table.scrollWidth - table.clientWidth))"""
    assert page.evaluate(beyond) == 0


def test_a_phone_shows_the_head_of_the_page_in_one_line(served, open_page):
    page = open_page(served)
    page.set_viewport_size({"width": 360, "height": 800})
    playwright.expect(page.locator("#model")).to_have_text("de → en · 3 branches")
    boxes = [page.locator(place).bounding_box() for place in (".brand", ".top nav")]
    assert boxes[1]["y"] < boxes[0]["y"] + boxes[0]["height"]


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_wide_letters_beside_a_heat_map_are_not_cut(served, open_page, width):
    words = ["woman", "WWWWWWWWWWWWWW", "mmmmmmmm", "日本語日本語日本語"]
    page = open_page(served)
    page.set_viewport_size({"width": width, "height": 800})

    def wide(route):
        seen = route.fetch().json()
        for side in ("rows", "columns"):
            seen[side] = [words[place % len(words)] for place in range(len(seen[side]))]
        route.fulfill(json=seen)

    page.route("**/inspect", wide)
    page.locator("#source").fill(SENTENCE)
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    ends = """() => [...document.querySelectorAll("#maps svg")].flatMap((map) => {
      const whole = map.getBoundingClientRect();
      return [...map.querySelectorAll("text")].map((text) => {
        text.classList.add("on"); // bold, as where one points
        const box = text.getBoundingClientRect();
        return Math.min(box.left - whole.left, box.top - whole.top);
      });
    })"""
    assert min(page.evaluate(ends)) >= 0


def test_on_phones_a_heat_map_fits_or_is_plainly_scrolled(served, open_page):
    page = open_page(served)
    page.locator("#source").fill(f"{SENTENCE} {SENTENCE}")
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    fitted = 0
    for width in range(320, 480, 10):
        page.set_viewport_size({"width": width, "height": 812})
        page.wait_for_timeout(200)  # it is drawn anew a moment later
        beyond = page.evaluate("""() => Math.max(...[...document.querySelectorAll("#maps .scroll")]
            .map((map) => map.scrollWidth - map.clientWidth))""")
        assert beyond <= 0 or beyond >= 30, f"{beyond} pixels are cut at {width}"
        fitted += beyond <= 0
    assert fitted >= 8


def contrast(page, selector: str) -> float:
    """WCAG's contrast between an element's colour and the paper or page behind it."""
    colours = page.evaluate(
        """(selector) => {
          const node = document.querySelector(selector);
          let behind = node;
          while (/rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(behind).backgroundColor))
            behind = behind.parentElement;
          return [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor];
        }""",
        selector,
    )
    lights = sorted(_luminance(colour) for colour in colours)
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_token_is_asked_for_and_never_kept(start, open_page):
    one = start(token="open-sesame")
    page = open_page(one)
    page.locator("#token").fill("wrong")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#said")).to_have_text("That is not the token.")
    page.locator("#token").fill("open-sesame")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#unlock")).to_be_hidden()
    page.locator("#source").fill("rot")
    playwright.expect(page.locator("#target")).not_to_have_text("")
    assert (
        page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    )


def test_a_token_that_no_header_can_hold_is_not_the_token(start, open_page):
    page = open_page(start(token="geheim"))
    page.locator("#token").fill("„geheim“")
    page.get_by_role("button", name="Unlock").click()
    playwright.expect(page.locator("#said")).to_have_text("That is not the token.")
    page.locator("#token").fill("geheim")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#unlock")).to_be_hidden()


def test_what_is_wrong_is_said_and_nothing_of_another_text_is_left_beside_it(start, open_page):
    one = start(limits={"tokens": 5, "inspect_tokens": 5})
    page = open_page(one)
    page.locator("#source").fill("der Mann")
    translated(page, one, "der Mann")
    playwright.expect(page.locator("#maps svg")).to_have_count(3)
    page.locator("#source").fill("der " * 9)
    playwright.expect(page.locator("#said")).to_contain_text("9 tokens; 5 are the most")
    playwright.expect(page.locator("#target")).to_have_text("")
    for part in ("#nbest", "#attention", "#copy"):
        playwright.expect(page.locator(part)).to_be_hidden()


def test_a_text_too_long_for_heat_maps_is_still_translated(start, open_page):
    one = start(limits={"inspect_tokens": 5})
    page = open_page(one)
    page.locator("#source").fill("der " * 9)
    playwright.expect(page.locator("#said")).to_contain_text("Too long to show")
    playwright.expect(page.locator("#target")).not_to_have_text("")
    playwright.expect(page.locator("#attention")).to_be_hidden()


def test_an_exported_model_has_no_branches_to_show(folder, tmp_path, start, open_page):
    pytest.importorskip("ctranslate2")
    from multibranch.export import export
    from multibranch.serve.engine import Engine

    export(folder, tmp_path / "exported", format="ctranslate2")
    one = start(engine=Engine.load(tmp_path / "exported", engine="ctranslate2", device="cpu"))
    page = open_page(one)
    page.locator("#source").fill(SENTENCE)
    translated(page, one, SENTENCE)
    playwright.expect(page.locator("#model")).to_contain_text("CTranslate2")
    playwright.expect(page.locator("#switches")).to_be_hidden()
    playwright.expect(page.locator("#attention")).to_be_hidden()
