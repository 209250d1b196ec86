"""GET /: one page that shows what /v1/tr/state tells; no build step, nothing from elsewhere."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from tr.serve.service import Service

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
)


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    html = (files("tr.serve") / "assets" / "index.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(html, headers=headers)

    return router
