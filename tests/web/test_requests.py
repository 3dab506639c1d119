"""Every request and answer: hosts, headers, methods, users."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.testclient import TestClient

from seekpoint.admin import Admin
from seekpoint.errors import ConfigError
from seekpoint.web import Access, Right, create_app
from seekpoint.web.guard import HEADERS
from support.browser import LOCAL
from support.every_row import for_each
from support.ledger_worker import LedgerWorker
from web.conftest import PAGES, Console

pytestmark = pytest.mark.usefixtures("worker")


@for_each(["localhost", "localhost:8484", "127.0.0.1:8484", "[::1]:8484", "Console.Example:443"])
def test_known_hosts_are_answered(host: str, console: Console) -> None:
    assert console(hosts=["console.example"]).get("/", headers={"host": host}).status_code == 200


@for_each(["attacker.example", "localhost.attacker.example", "192.0.2.1", "", "localhost@attacker.example", "[::1"])
def test_other_hosts_are_refused(host: str, console: Console) -> None:
    """A site whose name resolves to 127.0.0.1 (DNS rebinding) reads nothing."""
    browser = console()
    for path in ("/", "/api/", "/static/console.css"):
        answer = browser.get(path, headers={"host": host})
        assert answer.status_code == 421, path
        assert "group" not in answer.text, path


@pytest.mark.parametrize("header", ["Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"])
def test_users_of_a_proxy_are_not_those_of_this_machine(console: Console, header: str) -> None:
    """The proxy itself is: with access= it may say who they are."""
    passed_on = {header: "for=192.0.2.1"}
    assert console(allow_actions=True).get("/", headers=passed_on).status_code == 403
    known = console(access=lambda _: Access("ada", Right.READ))
    assert known.get("/", headers=passed_on).status_code == 200


def test_every_answer_has_the_headers(console: Console) -> None:
    def fails(_: HTTPConnection) -> Access:
        raise RuntimeError("no user store")

    browser, failing = console(allow_actions=True), console(access=fails)
    paths = [f"/{page}" for page in PAGES] + [f"/api/{page}" for page in PAGES]
    answers = [browser.get(path) for path in [*paths, "/static/console.css", "/static/none.css", "/none", "/group"]]
    answers += [
        browser.get("/plan?action=pause&group=g"),
        browser.get("/plan?action=none&group=g"),
        browser.post("/apply"),
        browser.get("/", headers={"host": "attacker.example"}),
        failing.get("/"),
    ]
    assert {answer.status_code for answer in answers} == {200, 400, 403, 404, 421, 500}
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, answer.url
        assert answer.headers["cache-control"] == "no-store", answer.url
        assert not [name for name in answer.headers if name.startswith("access-control-")], answer.url
    assert "no user store" not in answers[-1].text


def test_no_page_has_script_or_style_of_its_own(console: Console) -> None:
    """The content security policy would not run it."""
    browser = console(allow_actions=True, payloads="full")
    for path in [*PAGES, "plan?action=pause&group=g"]:
        text = browser.get(f"/{path}").text
        assert "<style" not in text
        assert " style=" not in text
        assert text.count("<script") == text.count("<script src=") == 2
        assert not [word for word in text.split() if word.lower().startswith("on") and "=" in word], path


def test_the_api_answers_get_alone(console: Console) -> None:
    browser = console(allow_actions=True)
    same = {"origin": LOCAL, "sec-fetch-site": "same-origin"}
    for page in PAGES:
        path = f"/api/{page}"
        assert browser.get(path).headers["content-type"] == "application/json"
        for method in ("HEAD", "POST", "PUT", "PATCH", "DELETE"):
            assert browser.request(method, path, headers=same).status_code == 405
            if method != "HEAD":  # which changes nothing
                assert browser.request(method, path, headers={"origin": "http://attacker.example"}).status_code == 403
        answer = browser.options(path, headers={"origin": "http://attacker.example"})
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert browser.get("/apply").status_code == 405


def test_actions_by_other_names_need_access(admin: Admin) -> None:
    """As on the command line: all who reach the proxy would act as the user of this machine."""
    with pytest.raises(ConfigError, match=r"could act as the user of this machine; mount seekpoint.web.create_app"):
        create_app(admin, allow_actions=True, hosts=["console.example"])
    create_app(admin, allow_actions=True, hosts=["console.example"], access=lambda _: Access("ada", Right.OPERATE))
    create_app(admin, hosts=["console.example"])


def test_without_access_requests_of_this_machine_read(console: Console) -> None:
    browser = console()
    assert browser.get("/group?group=g").status_code == 200
    assert "Pause…" not in browser.get("/group?group=g").text
    assert browser.get("/plan?action=pause&group=g").status_code == 403


@pytest.mark.parametrize("address", ["192.0.2.7", "10.0.0.1", "testclient"])
def test_without_access_other_machines_see_nothing(console: Console, address: str) -> None:
    browser = console(client=(address, 50_000), allow_actions=True)
    for path in [*PAGES, *(f"api/{page}" for page in PAGES), "plan?action=pause&group=g"]:
        answer = browser.get(f"/{path}")
        assert answer.status_code == 403
        assert ">g<" not in answer.text


@pytest.mark.parametrize("is_async", [False, True])
def test_access_says_who_may_what(console: Console, admin: Admin, is_async: bool) -> None:
    def sync(request: HTTPConnection) -> Access:
        name = request.headers.get("user", "")
        return Access(name, {"ada": Right.OPERATE, "bob": Right.READ}.get(name, Right.NONE))

    async def later(request: HTTPConnection) -> Access:
        return sync(request)

    browser = console(access=later if is_async else sync, allow_actions=True, client=("192.0.2.7", 50_000))
    got = {
        name: [
            browser.get(path, headers={"user": name}).status_code
            for path in ("/", "/api/", "/plan?action=pause&group=g")
        ]
        for name in ("ada", "bob", "eve")
    }
    assert got == {"ada": [200, 200, 200], "bob": [200, 200, 403], "eve": [403, 403, 403]}
    browser.headers["user"] = "ada"
    form = browser.plan("pause", group="g")
    browser.headers["user"] = "bob"
    assert browser.apply(form).status_code == 403
    browser.headers["user"] = "ada"
    assert browser.apply(form, "maintenance").status_code == 303
    (action,) = admin.history("g")
    assert (action.action, action.actor, action.reason) == ("pause", "ada", "maintenance")


def test_access_without_allow_actions_reads(console: Console) -> None:
    browser = console(access=lambda _: Access("ada", Right.OPERATE))
    assert browser.get("/plan?action=pause&group=g").status_code == 403


def test_it_can_be_mounted_below_a_prefix(admin: Admin, worker: LedgerWorker) -> None:
    app = Starlette(routes=[Mount("/ops/console", app=create_app(admin, allow_actions=True))])
    with TestClient(app, base_url=LOCAL, client=("127.0.0.1", 50_000)) as client:
        for path in [*PAGES, *(f"api/{page}" for page in PAGES), "static/console.css", "static/htmx.min.js"]:
            assert client.get(f"/ops/console/{path}").status_code == 200, path
        text = client.get("/ops/console/group?group=g").text
        assert not [word for word in text.split() if word.startswith(('href="/', 'src="/', 'action="/'))]
        assert 'hx-get="group?group=g"' in text
    assert worker.positions() == {0: 5, 1: 7, 2: 0}
