# The translation service on a CPU, as an ordinary user.
#
#   docker build -t multibranch .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs/demo/mat:/model:ro" multibranch
#
# A token for clients: docker run -e MULTIBRANCH_TOKEN=… ; an exported model: add after the image's
# name  serve /model --engine ctranslate2 --host 0.0.0.0 . Nothing is written: --read-only works.
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# PyTorch's builds without CUDA have an index of their own; name it here to save gigabytes:
#   docker build --build-arg TORCH_INDEX=… -t multibranch .
ARG TORCH_INDEX=""

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
# Before the source, so that a change of it does not install PyTorch again.
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY src ./src
# The compiler is for the kernels of `--precision int8`, and leaves again.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev \
    && pip install --constraint constraints.txt ".[serve,export]" && rm -rf /app/src \
    && apt-get purge -qq -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin multibranch
USER 10001
WORKDIR /

EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["multibranch"]
# Inside its container the service must listen to all addresses; -p decides who reaches it.
CMD ["serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
