"""`prep explore`: its options, and the server of the pages."""

import secrets
import socket
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import LocalGenerationArgument
from pipeline.commands.streams import StopSignal
from pipeline.commands.terminal import print_line
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from pipeline.explore.explorer import Explorer

_LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 24
_MOST_REQUESTS = 32
_NEEDED = ("starlette", "uvicorn", "duckdb")


def explore(
    directory: LocalGenerationArgument,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
    by: str = "",
    compare: Path | None = None,
) -> None:
    """Look at a run in the browser: its documents, filters, distributions, and each document whole.

    The pages are read-only and for this machine only; the address that is printed has a token.
    Ctrl-C ends it.

    --port: the port on 127.0.0.1 [default: a free one]
    --compare DIR: another run of the same documents; a page shows what became of them in both
    --by NAME: who looks; quarantined texts can then be opened, and each look is recorded

    Examples:
    prep explore runs/quickstart
    prep explore runs/pile --port 8642 --by 'J. Doe'
    prep explore runs/pile --compare runs/pile-stricter
    """
    _check_installed()
    from pipeline.engine.progress import Progress
    from pipeline.explore.explorer import Explorer

    try:
        with closing(Explorer(directory, by.strip(), Progress(), compare)) as explorer:
            Thread(target=explorer.warm_up, daemon=True).start()
            _serve(explorer, port)
    except StopSignal as stop:  # the way in which it ends: there is no work that is kept
        raise typer.Exit(stop.exit_code) from None


register = commands(explore)


def _check_installed() -> None:
    """Raises ConfigError when what the pages need is not installed."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"prep explore: needs {', '.join(missing)}, which is not installed; "
            "pip install 'wafermill[explore]'"
        )


def _serve(explorer: "Explorer", port: int) -> None:
    import uvicorn

    from pipeline.explore.server import Gate, make_app

    listener = _listen(port)
    place = listener.getsockname()[1]
    hosts = frozenset(f"{name}:{place}" for name in (_LOOPBACK, "localhost"))
    gate = Gate(make_app(explorer), secrets.token_urlsafe(_TOKEN_BYTES), hosts)
    config = uvicorn.Config(
        gate,
        log_level="warning",
        access_log=False,  # it would show the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=_MOST_REQUESTS,
        timeout_graceful_shutdown=1,
    )
    print_line(f"http://{_LOOPBACK}:{place}/?token={gate.token}")
    print_line("open this address in a browser of this machine; Ctrl-C ends it")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    """A socket on the loopback interface. Raises ResourceError where the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        listener.listen()  # before the address is printed
    except OSError as error:
        listener.close()
        raise ResourceError(
            f"--port {port}: cannot listen on {_LOOPBACK} ({error.strerror}); choose another port"
        ) from error
    return listener
