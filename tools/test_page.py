#!/usr/bin/env python3
"""test_page.py HYDRAHEAD MODEL: the chat page in headless Chromium, as a person uses it: by keyboard, light and dark, on a phone. For `make test-clients`; needs
the playwright package and Debian's chromium."""
import subprocess
import sys

from playwright.sync_api import expect, sync_playwright


def serve(model):
    server = subprocess.Popen([sys.argv[1], "serve", model, "--port", "0", "--ctx", "2048", "-q"], stdout=subprocess.PIPE, text=True)
    return server, f"http://127.0.0.1:{int(server.stdout.readline())}/"


server, address = serve(sys.argv[2])
completing, plain = serve("nano")  # a model without a chat template
try:
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for scheme, size in (("light", (1200, 800)), ("dark", (390, 800))):
            page = browser.new_page(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
            faults, foreign = [], []
            page.on("pageerror", lambda e: faults.append(str(e)))
            page.on("console", lambda m: m.type == "error" and faults.append(m.text))
            page.on("request", lambda r: r.url.startswith(address) or foreign.append(r.url))
            page.goto(address)
            page.evaluate("localStorage.setItem('hydrahead.temperature', '0')")
            page.reload()
            expect(page.locator("#input")).to_be_focused()

            page.keyboard.type("What is the capital of France?")
            page.keyboard.press("Enter")
            answer = page.locator("article.assistant").first
            expect(answer).to_contain_text("Paris", timeout=60000)
            expect(answer.get_by_text("Regenerate")).to_be_visible(timeout=60000)
            expect(page.locator("#used")).to_contain_text("of 2048 tokens")
            expect(page.locator("#speed")).to_contain_text("tokens/s")
            first = answer.locator(".text").inner_text()

            answer.get_by_text("Regenerate").click()  # the prompt is known: nothing is read again
            expect(page.locator("#cached")).to_contain_text("37 of 37", timeout=60000)
            expect(page.locator("article.assistant .text")).to_have_text(first, timeout=60000)

            page.locator("article.user").get_by_text("Edit").click()
            expect(page.locator("#input")).to_have_value("What is the capital of France?")
            page.locator("#input").fill("Write a very long story about a fox.")
            page.keyboard.press("Enter")
            expect(page.locator("#stop")).to_be_visible()
            expect(page.locator("article.assistant .text")).not_to_be_empty(timeout=60000)
            page.keyboard.press("Escape")
            expect(page.locator(".error")).to_have_text("stopped")
            expect(page.locator("article")).to_have_count(2)

            page.keyboard.press("Alt+n")
            expect(page.locator("article")).to_have_count(0)

            page.keyboard.type("Write a very long story about a cat.")  # a new conversation in the middle of an answer
            page.keyboard.press("Enter")
            expect(page.locator("article.assistant .text")).not_to_be_empty(timeout=60000)
            page.get_by_text("New").click()
            expect(page.locator("#send")).to_be_visible()
            expect(page.locator("article")).to_have_count(0)

            page.get_by_text("Settings").click()
            page.get_by_label("Longest answer").fill("5")
            page.get_by_text("Done").click()
            page.keyboard.type("Tell me of rivers.")
            page.keyboard.press("Enter")
            expect(page.locator("article.assistant")).to_contain_text("5 tokens", timeout=60000)
            expect(page.locator("article.assistant")).to_contain_text("cut off")
            assert page.get_by_text("Regenerate").bounding_box()["height"] < 30  # a word stays in one piece on a phone
            page.evaluate("""Object.defineProperty(navigator, 'clipboard', {value: undefined}); window.copied = '';
                document.execCommand = what => { window.copied = what + ' ' + document.activeElement.value; }""")
            page.get_by_text("Copy").click()  # as from another machine over plain HTTP
            said = page.locator("article.assistant .text").inner_text()
            assert page.evaluate("window.copied") == "copy " + said, (said, page.evaluate("window.copied"))
            expect(page.locator("article")).to_have_count(2)
            wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert wide and not faults and not foreign, (wide, faults, foreign)
            page.close()

        page = browser.new_page()
        page.goto(plain)
        expect(page.get_by_placeholder("A text that the model goes on with")).to_be_focused()
        page.keyboard.type("The old man stopped and looked at")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Regenerate")).to_be_visible(timeout=60000)
        expect(page.locator("article.assistant .text")).not_to_be_empty()
        expect(page.locator(".error")).to_have_count(0)
        browser.close()
    print("the chat page does as it should, light and dark, wide and narrow")
finally:
    for s in (server, completing):
        s.terminate()
        assert s.wait(30) == 0
