"""Who is answered, and what every answer tells the browser."""

import pytest
from starlette.testclient import TestClient

from pipeline.explore.explorer import Explorer
from tests.pipeline.explore.conftest import HOST, TOKEN, open_client

PAGES = ["/", "/documents", "/documents/00", "/document?name=x", "/static/explore.css", "/nowhere"]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_answered_without_the_token(explorer: Explorer, page: str) -> None:
    client = open_client(explorer, with_cookie=False)
    assert client.get(page).status_code == 403
    mark = "&" if "?" in page else "?"
    for token in ("", "a-toke", TOKEN + "x", "t\xf6ken"):
        assert client.get(f"{page}{mark}token={token}").status_code == 403
    client.cookies.set("wafermill-explore-8642", "another")
    assert client.get(page).status_code == 403
    client.cookies.set("wafermill-explore-1", TOKEN)
    assert client.get(page).status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(explorer: Explorer) -> None:
    client = open_client(explorer, with_cookie=False)
    answer = client.get(f"/documents?state=kept&token={TOKEN}&source=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/documents?state=kept&source=a%26b"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert client.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/%5Cevil.example", "/\\evil.example", "///x"]
)
def test_the_token_leads_to_no_other_site(explorer: Explorer, path: str) -> None:
    client = open_client(explorer, with_cookie=False)
    answer = client.get(f"http://{HOST}{path}?token={TOKEN}")
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location.startswith("/") and location[1:2] not in ("/", "\\")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1", "127.0.0.1:1", ""]
)
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    """As after DNS rebinding: the name is theirs, the address ours, the cookie sent."""
    answer = client.get("/documents", headers={"host": host})
    assert answer.status_code == 421
    assert "<html" not in answer.text


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://{HOST}", "http://127.0.0.1"]
)
def test_another_origin_is_refused(client: TestClient, origin: str) -> None:
    assert client.get("/documents", headers={"origin": origin}).status_code == 403
    assert client.post("/documents/00/text", headers={"origin": origin}).status_code == 403


def test_a_change_needs_an_origin(client: TestClient) -> None:
    assert client.post("/documents/00/text").status_code == 403
    own = {"origin": f"http://{HOST}"}
    assert client.get("/documents", headers=own).status_code == 200
    assert client.post("/documents/00/text", headers=own).status_code == 404
    assert client.post("/documents", headers=own).status_code == 405
    assert client.put("/documents", headers=own).status_code == 405


@pytest.mark.parametrize("page", [*PAGES, "/documents?where=(", "/documents?state=kept"])
def test_every_answer_binds_the_browser(client: TestClient, explorer: Explorer, page: str) -> None:
    for asked in (client, open_client(explorer, with_cookie=False)):
        headers = asked.get(page).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
