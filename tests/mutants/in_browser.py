"""The breakages of the console that only a browser notices; left out where there is none."""

from __future__ import annotations

from mutants.breakages import Breakage, breakage

LIVE = "tests/ui/test_live.py"
PAGES = "tests/ui/test_pages.py"

IN_BROWSER: tuple[Breakage, ...] = (
    breakage(
        "a page of the console loses what is typed when it is read again",
        "web/templates/base.html",
        'hx-swap="outerMorph"',
        'hx-swap="outerHTML"',
        f"{LIVE}::test_lag_falls_while_one_looks_and_types",
    ),
    breakage(
        "a page of the console does not say that there is no answer",
        "web/static/live.js",
        'document.addEventListener("htmx:error", () => answered(false));',
        "",
        f"{LIVE}::test_a_page_says_that_the_database_or_the_console_is_away",
    ),
    breakage(
        "a page of the console is replaced by what a proxy answers",
        "web/static/live.js",
        "event.preventDefault();\n    answered(false);",
        "answered(false);",
        f"{LIVE}::test_an_answer_that_is_no_page_of_the_console_changes_nothing_on_it",
    ),
    breakage(
        "an error page of the console stays when the database is back",
        "web/site.py",
        "is_live=found.status == HTTPStatus.SERVICE_UNAVAILABLE",
        "is_live=False",
        f"{LIVE}::test_a_page_says_that_the_database_or_the_console_is_away",
    ),
    breakage(
        "a pause of the console's reading ends with the page",
        "web/static/live.js",
        'sessionStorage.getItem("paused") === "yes"',
        "false",
        f"{LIVE}::test_reading_again_can_be_paused",
    ),
    breakage(
        "focus is not seen on the console",
        "web/static/console.css",
        ":focus-visible { outline: 2px solid var(--accent);",
        ":focus-visible { outline: none;",
        f"{PAGES}::test_a_group_is_paused_by_keyboard_alone",
    ),
    breakage(
        "one who reads sees buttons on the console",
        "web/templates/group.html",
        "{% if may_operate %}<h2>Reset positions</h2>",
        "{% if true %}<h2>Reset positions</h2>",
        f"{PAGES}::test_one_who_reads_sees_no_button_and_no_form",
    ),
)
