"""The HTTP interface: what can be asked, what is answered, and its OpenAPI description."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from multibranch import __version__
from multibranch.decoding import Hypothesis
from multibranch.decoding.attention import Inspection
from multibranch.errors import UserError
from multibranch.serve import metrics as prometheus
from multibranch.serve.batching import Closed, QueueFull
from multibranch.serve.guard import STOPPING, Guard
from multibranch.serve.messages import (
    DocumentBody,
    EndLine,
    HealthAnswer,
    HypothesisAnswer,
    InspectAnswer,
    InspectBody,
    LayerAnswer,
    ModelAnswer,
    Problem,
    SentenceLine,
    TranslateAnswer,
    TranslateBody,
    TranslationAnswer,
    problem,
)
from multibranch.serve.mistakes import mistake
from multibranch.serve.reference import reference_page
from multibranch.serve.service import ClientGone, Service, TooLong, since, while_connected
from multibranch.serve.streaming import Document

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_ABOUT = """Translates with a multi-branch attentive Transformer.

Texts of many clients are translated in common batches. Every problem is answered with a status and
`{"error": "a sentence"}`. Nothing of a request is kept or logged but sizes and times."""

_NO_JSON = "the body is no JSON"
_UNAUTHORISED = problem(
    401, "The service has a bearer token, and it was not sent.", WWW_Authenticate="Bearer"
)
_PROBLEMS = {
    **problem(400, "The body is no JSON."),
    **_UNAUTHORISED,
    **problem(408, "The body did not arrive in time."),
    **problem(413, "The body is too large."),
    **problem(415, "The Content-Type of the body is not application/json."),
    **problem(422, "What is asked for cannot be done; the sentence says why."),
    **problem(
        503,
        "The queue is full, or the service is stopping.",
        Retry_After="Seconds after which to try again.",
    ),
    **problem(504, "It took too long."),
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "NDJSON: a SentenceLine for every sentence, then an EndLine.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}
_PLAIN: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


def make_app(service: Service) -> FastAPI:
    """The service as an ASGI application; when it ends, so does the service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # Meanwhile whoever is still there is told that the service is stopping.
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="multibranch",
        description=_ABOUT,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # behind a proxy it would name http://, for the token too
    )
    _add_handlers(app, service)
    _add_api(app, service)
    _add_pages(app)
    _describe(app, service)
    app.add_middleware(Guard, options=service.options, metrics=service.metrics)
    if service.options.origins:  # added last, it is outermost: pages may read the guard's refusals
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.options.origins),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    # The guard checks the token; this is its description.
    secured: dict[str, Any] = {}
    if service.options.token is not None:
        secured["openapi_extra"] = {"security": [{"bearer": []}]}
    _add_translation(app, service, secured)
    _add_attention(app, service, secured)
    _add_state(app, service, secured)


def _add_translation(app: FastAPI, service: Service, secured: dict[str, Any]) -> None:
    """Texts and documents."""

    @app.post("/translate", responses=_PROBLEMS, tags=["translation"], **secured)
    async def translate(body: TranslateBody, request: Request) -> TranslateAnswer:
        """Translate a text, or many. Each is taken as one sentence; a blank one stays blank."""
        began = time.monotonic()
        texts = [body.text] if isinstance(body.text, str) else body.text
        key = service.translation(**_search(body))
        found = await while_connected(service.translate(texts, key), request.receive)
        return TranslateAnswer(
            translations=[_translation(hypotheses) for hypotheses in found], seconds=since(began)
        )

    @app.post(
        "/translate/stream",
        responses={**_STREAM, **_PROBLEMS},
        response_class=StreamingResponse,
        tags=["translation"],
        **secured,
    )
    async def stream(body: DocumentBody) -> StreamingResponse:
        """Translate a document, sentence by sentence, each line sent as soon as it is ready.

        A sentence that cannot be translated has an `error` instead of a `text`, and the others go
        on. The last line says whether all was done.
        """
        key = service.translation(**_search(body))
        document = Document(service, body.text, key, lambda found: _translation(found).model_dump())
        await document.begin()
        return StreamingResponse(document.lines(), media_type="application/x-ndjson")


def _add_attention(app: FastAPI, service: Service, secured: dict[str, Any]) -> None:
    """What the branches look at."""
    not_here = problem(501, "The engine does not show attention.")

    @app.post("/inspect", responses={**_PROBLEMS, **not_here}, tags=["attention"], **secured)
    async def inspect(body: InspectBody, request: Request) -> InspectAnswer:
        """Translate a text and show what every branch of every layer looked at."""
        if service.engine.model is None:
            raise HTTPException(
                501,
                "an exported model has its branches folded into heads and does not show its "
                "attention: serve the model directory with --engine torch",
            )
        asked = body.model_dump(include={"beam", "length_penalty", "branches", "target"})
        key = service.examination(**asked)
        seen = await while_connected(service.examine(body.text, key), request.receive)
        numbers = body.branches or list(range(1, max(service.engine.layers) + 1))
        return _inspection(seen, body.kind, sorted(numbers))


def _add_state(app: FastAPI, service: Service, secured: dict[str, Any]) -> None:
    """What is served, and how it fares."""

    # HEAD is GET without the body, which the server leaves out; it needs no description.
    @app.head("/model", include_in_schema=False)
    @app.get("/model", responses=_UNAUTHORISED, tags=["service"], **secured)
    async def model() -> ModelAnswer:
        """What is served, and what may be asked of it."""
        return _model(service)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["service"])
    async def health() -> HealthAnswer:
        """Whether the service is up; needs no token."""
        return HealthAnswer(
            status="ok",
            waiting=service.batcher.admitted,
            seconds_up=round(time.time() - service.metrics.started, 1),
        )

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", responses={**_PLAIN, **_UNAUTHORISED}, response_class=Response,
             tags=["service"], **secured)  # fmt: skip
    async def metrics() -> Response:
        """Counts, sizes and times in Prometheus' text format."""
        return Response(service.metrics.render(), media_type=prometheus.CONTENT_TYPE)


def _add_pages(app: FastAPI) -> None:
    folder = resources.files("multibranch.serve").joinpath("page")
    for path, (name, kind) in _PAGE.items():
        content = folder.joinpath(name).read_bytes()
        answer = _file(content, kind)
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(reference_page(app.openapi()), media_type="text/html; charset=utf-8")


def _file(content: bytes, kind: str) -> Any:
    async def answer() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return answer


def _add_handlers(app: FastAPI, service: Service) -> None:
    """Every problem as a sentence."""

    def say(status: int, error: str, **headers: str) -> JSONResponse:
        return JSONResponse({"error": error}, status, headers or None)

    @app.exception_handler(UserError)
    async def user_error(_: Request, error: UserError) -> Response:
        return say(422, " ".join(str(error).split()))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return say(*_invalid(error, _body(app, request)))

    @app.exception_handler(QueueFull)
    async def full(_: Request, error: QueueFull) -> Response:
        service.metrics.refused.add()
        wait = str(error.retry_after)
        return say(503, f"the queue is full; try again in {wait} s", **{"Retry-After": wait})

    @app.exception_handler(Closed)
    async def closed(_: Request, __: Closed) -> Response:
        return say(503, STOPPING, **{"Retry-After": "5"})

    @app.exception_handler(TooLong)
    async def too_long(_: Request, error: TooLong) -> Response:
        service.metrics.timed_out.add()
        return say(504, str(error))

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it; the count of requests shows it

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        said = _NO_JSON if error.status_code == 400 else str(error.detail)
        if error.status_code == 404:
            described = (route for route in _routes(app) if route.include_in_schema)
            listed = ", ".join(sorted(f"{_methods(route)} {route.path}" for route in described))
            said = f"there is nothing at this path; there are {listed}: see /docs"
        elif error.status_code == 405:
            here = [r for r in _routes(app) if r.matches(request.scope)[0] is not Match.NONE]
            headers["Allow"] = ", ".join(_methods(route) for route in here)
            said = f"{here[0].path} answers to {headers['Allow']} only: see /docs"
        return say(error.status_code, said, **headers)


def _routes(app: FastAPI) -> list[Route]:
    return [route for route in app.routes if isinstance(route, Route)]


def _methods(route: Route) -> str:
    return ", ".join(sorted(route.methods or ()))


def _describe(app: FastAPI, service: Service) -> None:
    """Bring the description in line with what this service allows."""
    limits = service.limits

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        made = get_openapi(
            title=app.title, version=app.version, description=_ABOUT, routes=app.routes
        )
        parts = made.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for extra in (SentenceLine, EndLine, Problem):
            own = extra.model_json_schema(ref_template="#/components/schemas/{model}")
            own.pop("$defs", None)
            schemas[extra.__name__] = own
        one, many = schemas["TranslateBody"]["properties"]["text"]["anyOf"]
        for text in (one, many["items"], schemas["InspectBody"]["properties"]["text"]):
            text["maxLength"] = limits.characters
        many["maxItems"] = limits.sentences
        for name in ("TranslateBody", "DocumentBody", "InspectBody"):
            for field, shape in schemas[name]["properties"].items():
                if field in ("beam", "n_best"):
                    shape.get("anyOf", [shape])[0]["maximum"] = limits.beam
        if service.options.token is not None:
            parts["securitySchemes"] = {"bearer": HTTPBearer().model.model_dump(
                by_alias=True, exclude_none=True, mode="json")}  # fmt: skip
        app.openapi_schema = made
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _search(body: TranslateBody | DocumentBody) -> dict[str, Any]:
    return body.model_dump(include={"n_best", "beam", "length_penalty", "branches"})


def _translation(hypotheses: list[Hypothesis]) -> TranslationAnswer:
    listed = [
        HypothesisAnswer(
            text=one.text,
            score=round(one.score, 6),
            log_probability=round(one.log_probability, 6),
        )
        for one in hypotheses
    ]
    return TranslationAnswer(text=listed[0].text if listed else "", hypotheses=listed)


def _inspection(seen: Inspection, kind: str, branches: list[int]) -> InspectAnswer:
    layers = [
        LayerAnswer(
            layer=layer.layer,
            branches=(layer.branches.double() * 1e4).round().div(1e4).tolist(),
            in_common=None if layer.mean_overlap is None else round(layer.mean_overlap, 4),
        )
        for layer in seen.of_kind(kind)
    ]
    return InspectAnswer(
        source=seen.source,
        target=seen.target,
        text=seen.target_text,
        kind=kind,
        rows=seen.rows(kind),
        columns=seen.columns(kind),
        branches=branches,
        layers=layers,
    )


def _model(service: Service) -> ModelAnswer:
    engine, settings = service.engine, service.engine.text.settings
    return ModelAnswer(
        engine="torch" if engine.name == "torch" else "ctranslate2",
        precision=engine.precision,
        device=engine.translator.device.type,
        source_language=settings.source,
        target_language=settings.target,
        branches=engine.branches,
        layers=engine.layers,
        can_inspect=engine.model is not None,
        beam=service.beam,
        length_penalty=engine.options().length_penalty,
        limits=dict(vars(service.limits)),
        version=__version__,
    )


def _body(app: FastAPI, request: Request) -> dict[str, Any]:
    """The description of what the body of a request holds."""
    description = app.openapi()
    operation = description["paths"][request.scope["route"].path][request.method.lower()]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return description["components"]["schemas"][name.rpartition("/")[2]]


def _invalid(error: RequestValidationError, body: dict[str, Any]) -> tuple[int, str]:
    """The status and one problem of a body that is described by `body`."""
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        return 400, _NO_JSON
    if error.body in (None, b""):
        return 422, "the body is empty: send a JSON object; /docs shows what is in it"
    if isinstance(error.body, bytes):  # it was not read as JSON
        return 415, "send the body as JSON, with the header Content-Type: application/json"
    return 422, mistake(body, errors)
