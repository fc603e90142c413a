"""Serve translations over HTTP, with a page to try the model.

  multibranch serve runs/mat                         at http://127.0.0.1:8000
  multibranch serve runs/mat --precision int8        faster for large models
  multibranch serve exported --engine ctranslate2    what `export` wrote
  multibranch serve runs/mat --host 0.0.0.0 --token-file token

  curl localhost:8000/translate --json '{"text": "Ein Hund läuft."}'

POST /translate takes one text or several, /translate/stream a document, and /inspect returns the
attention of every branch. GET /health, /metrics (Prometheus) and /model describe the service, /docs
the API, and / is the page. Texts of different clients are translated in common batches.

The service listens on the local machine only, unless --host says otherwise. It requires a bearer
token if --token-file or the environment variable MULTIBRANCH_TOKEN gives one. Of each request, only
endpoint, status, sizes and times are logged. SIGTERM and Ctrl-C finish requests in flight.
"""

import argparse

from multibranch.cli.searching import add_device, add_precision
from multibranch.serve.options import Limits

_LIMITS = {
    "body_bytes": "bytes of a request's body",
    "sentences": "texts in one request",
    "tokens": "tokens of a text",
    "inspect_tokens": "tokens of a text to inspect",
    "characters": "characters of a text",
    "beam": "beam size",
    "queue": "texts that wait or are being translated; beyond that, the answer is 503",
    "seconds": "seconds that a request may take",
    "body_seconds": "seconds that sending a body may take",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="DIR", help="a model directory, or an exported folder")
    parser.add_argument(
        "--engine",
        default="torch",
        choices=["torch", "ctranslate2"],
        help="inference engine; ctranslate2 takes what `multibranch export` wrote (default: torch)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any free one (default: 8000)"
    )
    add_device(parser)
    add_precision(parser)
    parser.add_argument(
        "--token-file", metavar="FILE", help="a file with the bearer token that clients must send"
    )
    parser.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin call the service, such as https://example.org; repeatable",
    )
    parser.add_argument(
        "--batch-milliseconds",
        type=float,
        default=5.0,
        metavar="MS",
        help="how long a text waits for others to share a batch with (default: 5)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="source tokens translated together (default: 1024 per core; 8192 on a GPU)",
    )
    parser.add_argument(
        "--branch-choices",
        type=int,
        default=8,
        metavar="N",
        help="choices of branches kept in memory, each with a copy of the weights (default: 8)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="how long requests in flight may still take after SIGTERM (default: 30)",
    )
    parser.add_argument("--quiet", action="store_true", help="do not log requests")
    group = parser.add_argument_group("limits", "what a request may ask for")
    limits = Limits()
    for name, what in _LIMITS.items():
        default = getattr(limits, name)
        group.add_argument(
            f"--max-{name.replace('_', '-')}",
            dest=f"max_{name}",
            type=type(default),
            default=default,
            metavar="N",
            help=f"{what} (default: {default:,.10g})",
        )


def run(args: argparse.Namespace) -> None:
    from multibranch.errors import UserError

    try:
        from multibranch.serve.running import read_token, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "uvicorn", "pydantic"):
            raise
        raise UserError(
            f"serving needs the package {error.name}: pip install 'multibranch[serve]'"
        ) from None
    from multibranch.serve.options import ServeOptions

    options = ServeOptions(
        limits=Limits(**{name: getattr(args, f"max_{name}") for name in _LIMITS}),
        token=read_token(args.token_file),
        origins=tuple(args.cors),
        batch_milliseconds=args.batch_milliseconds,
        batch_tokens=args.batch_tokens,
        branch_choices=args.branch_choices,
        grace_seconds=args.grace_seconds,
        log=not args.quiet,
    )
    serve(
        args.model,
        engine=args.engine,
        host=args.host,
        port=args.port,
        device=args.device,
        precision=args.precision,
        options=options,
    )
