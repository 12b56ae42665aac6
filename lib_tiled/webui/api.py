"""`GET /tiled-attention/v1/last` and `/history`: what ran, as JSON. Read-only, no prompts, no paths.

Behind `--api-auth` where the WebUI was started with it, with the same names and passwords as its own API.
"""

from __future__ import annotations

import secrets

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic
from modules import shared

from ..report import line as text
from ..report.generation import Generation, history
from .report import without_paths

PREFIX = "/tiled-attention/v1"


def described(generation: Generation) -> dict:
    """A generation with its line and with the badge's few words."""
    found = generation.to_dict()
    found["reasons"] = [without_paths(reason) for reason in found["reasons"]]
    return {**found, "attention": text.short(generation), "line": without_paths(text.line(generation))}


def last():
    """The newest generation that ran attention, null before the first."""
    generation = history.last()
    return described(generation) if generation is not None else None


def every():
    """The last twenty, newest first."""
    return [described(generation) for generation in reversed(history.all())]


def _credentials() -> dict[str, str]:
    """--api-auth "user:password,user:password" as the host reads it; empty where it is not set."""
    given = getattr(shared.cmd_opts, "api_auth", None) or ""
    return dict(pair.split(":", 1) for pair in given.split(",") if ":" in pair)


def _login(credentials: dict[str, str]):
    """A dependency that lets through whoever knows one of the pairs."""
    basic = HTTPBasic(auto_error=False)

    async def login(request: Request) -> None:
        given = await basic(request)
        expected = credentials.get(given.username, "") if given is not None else ""
        if expected and secrets.compare_digest(given.password.encode(), expected.encode()):
            return
        # The page asks in the background and says so: a challenge would open the browser's login window.
        challenge = None if "x-requested-with" in request.headers else {"WWW-Authenticate": "Basic"}
        raise HTTPException(401, "Incorrect username or password", challenge)

    return login


def register(app: FastAPI) -> None:
    """Add the routes to the WebUI's app."""
    credentials = _credentials()
    guard = [Depends(_login(credentials))] if credentials else []
    for name, endpoint in (("last", last), ("history", every)):
        app.add_api_route(f"{PREFIX}/{name}", endpoint, methods=["GET"], dependencies=guard, response_model=None)
