"""Who is answered: requests of this machine's user to this very address, and what every answer says
to the browser.

The address that is printed has a random token, which becomes a cookie of this port and leaves the
address. A request without either is refused; so is one for another host (a name that was made to
point here) and one that another site's page makes. Answers load nothing from outside, run only the
script of this package and are kept by nobody.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

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
