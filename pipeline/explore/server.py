"""The pages of the explorer: what is asked for by an address, and the answer as HTML.

Only requests of this machine's user to this very address are answered. The address that is printed
has a random token, which becomes a cookie of this port and leaves the address. A request without
either is refused; so is one for another host (a name that was made to point here) and one that
another site's page makes. Answers load nothing from outside, run only the script of this package
and are kept by nobody.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipeline.core.errors import ConfigError, InputError, PrepError, escape_text
from pipeline.explore.compare import Change
from pipeline.explore.conditions import ListFilters, parse_filters
from pipeline.explore.distributions import list_columns, make_distribution
from pipeline.explore.document import mark_lines, mark_tokens, open_document, release_text
from pipeline.explore.explorer import ChangedRunError, Explorer
from pipeline.report.page import report_environment

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN = "token"
_POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
        "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers then name no origin with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Gate:
    """The application behind its checks: `hosts` are the values of Host that name this server."""

    app: App
    token: str
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1").lower()
        origin = headers.get("origin")
        is_change = scope["method"] not in ("GET", "HEAD")
        if host not in self.hosts:
            return await _say(send, 421, "this server answers to its own address only")
        if (origin is not None or is_change) and origin != f"http://{host}".encode():
            return await _say(send, 403, "a page of another origin may not ask here")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == TOKEN), None)
        cookie = f"wafermill-explore-{host.rpartition(':')[2]}"
        if given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != TOKEN])
            place = quote("/" + scope["path"].lstrip("/"))
            return await _say(
                send,
                303,
                "",
                ("location", f"{place}?{rest}" if rest else place),
                ("set-cookie", f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"),
            )
        if not self._is_token(_read_cookie(headers.get("cookie", b""), cookie)):
            return await _say(
                send, 403, "no valid token; open the address that `prep explore` printed"
            )
        return await self.app(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def _read_cookie(header: bytes, name: str) -> str:
    try:
        cookies = SimpleCookie(header.decode("latin-1"))
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""


def _with_headers(send: Send) -> Send:
    async def add(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return add


async def _say(send: Send, status: int, text: str, *headers: tuple[str, str]) -> None:
    body = f"{text}\n".encode() if text else b""
    every = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))]
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in (*every, *headers)]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


_PACKAGE = "pipeline.explore"
_FACET_VALUES = 30
"""Values of a label that are listed."""
_STATIC = {
    "explore.css": "text/css",
    "explore.js": "text/javascript",
    "explore.svg": "image/svg+xml",
}
Page = Callable[[Explorer, Request], Response]


def make_app(explorer: Explorer) -> Starlette:
    """The application, without its gate (`pipeline.explore.server`)."""

    def page(path: str, answer: Page, method: str = "GET") -> Route:
        def respond(request: Request) -> Response:
            # A plain function: Starlette runs it in a thread.
            try:
                explorer.check_unchanged()
                return answer(explorer, request)
            except PrepError as error:
                return _show_problem(explorer, error)

        return Route(path, respond, methods=[method])

    return Starlette(
        routes=[
            page("/", _go_to_list),
            page("/documents", _show_list),
            page("/compare", _show_comparison),
            page("/document", _find_document),
            page("/documents/{key}/text", _show_released, "POST"),
            page("/documents/{key:path}", _show_document),
            Route("/static/{name}", _send_static, methods=["GET"]),
        ]
    )


def _render(template: str, explorer: Explorer, status: int = 200, **values: Any) -> Response:
    environment = report_environment(_PACKAGE)
    environment.filters.setdefault("lines", mark_lines)
    text = environment.get_template(template).render(
        run=str(explorer.directory), explorer=explorer, **values
    )
    return Response(text, status, media_type="text/html")


def _show_problem(explorer: Explorer, error: PrepError) -> Response:
    status = 409 if isinstance(error, ChangedRunError) else 400
    status = 404 if isinstance(error, InputError) and status == 400 else status
    status = status if isinstance(error, ConfigError | InputError) else 500
    return _render("problem.html.j2", explorer, status, message=str(error))


def _go_to_list(_: Explorer, request: Request) -> Response:
    query = request.url.query
    return RedirectResponse(f"/documents?{query}" if query else "/documents", 303)


def _show_list(explorer: Explorer, request: Request) -> Response:
    filters = parse_filters(request.query_params.multi_items())
    columns = list_columns(explorer)
    column = request.query_params.get("chart") or columns[0]
    after, before = _read_row(request, "after"), _read_row(request, "before")
    chart = make_distribution(explorer, filters, column)
    return _render(
        "documents.html.j2",
        explorer,
        filters=filters,
        none_at_all=ListFilters(),
        list=explorer.list_documents(filters, column, -1 if after is None else after, before),
        columns=columns,
        chart=chart,
        facet_values=_FACET_VALUES,
    )


def _find_document(_: Explorer, request: Request) -> Response:
    """Goes to a document that a person named."""
    name = request.query_params.get("name", "").strip()
    if not name:
        raise ConfigError("name: expected a key, FILE:LINE or SHARD[ROW]")
    return RedirectResponse(f"/documents/{quote(name, safe='')}", 303)


def _show_document(explorer: Explorer, request: Request) -> Response:
    page = open_document(explorer, request.path_params["key"])
    tokens = mark_tokens(page.tokens) if page.tokens else None
    return _render(
        "document.html.j2", explorer, page=page, e=page.explanation, tokens=tokens, released=None
    )


def _show_released(explorer: Explorer, request: Request) -> Response:
    """The same with the text of a document in quarantine, which is recorded."""
    page = open_document(explorer, request.path_params["key"])
    text = release_text(explorer, page.explanation.record.place.key)
    return _render(
        "document.html.j2", explorer, page=page, e=page.explanation, tokens=None, released=text
    )


def _show_comparison(explorer: Explorer, request: Request) -> Response:
    comparison = explorer.comparison
    if comparison is None:
        raise InputError("nothing to compare with; `prep explore RUN --compare OTHER` does")
    query = request.query_params
    change = Change(query.get("was"), query.get("is"))
    after = _read_row(request, "after")
    return _render(
        "compare.html.j2",
        explorer,
        comparison=comparison,
        change=change,
        page=comparison.list_differences(change, -1 if after is None else after),
    )


def _send_static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return Response("no such file\n", 404, media_type="text/plain")
    return Response(resources.files(_PACKAGE).joinpath(name).read_bytes(), media_type=_STATIC[name])


def _read_row(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 12:
        raise ConfigError(f"{name}={escape_text(text, 40)}: expected the number of a row")
    return int(text)
