# redrive as a container: not root, a file system that nothing writes to but /data, a health check.
# Your application goes into an image of its own: FROM redrive, COPY shop.py /app/, CMD ["worker", "shop:app"].
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY src ./src
COPY service ./service
# The versions of the lock, for the extras that a service needs.
RUN sed -e '/^ /d' -e 's/ \\$//' requirements.lock > constraints.txt \
    && python -m venv /opt/redrive \
    && /opt/redrive/bin/pip install --no-cache-dir --constraint constraints.txt '.[postgres,service,rabbitmq,commands,uvloop]' ./service

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /app redrive \
    && mkdir /app /data \
    && chown redrive /data
COPY --from=build /opt/redrive /opt/redrive
ENV PATH=/opt/redrive/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LOG_FORMAT=json \
    HTTP_HOST=0.0.0.0 \
    DATABASE_URL=sqlite:////data/redrive.db
WORKDIR /app
USER 10001
VOLUME /data
EXPOSE 8086
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8086/health', timeout=2)"]
ENTRYPOINT ["redrive"]
CMD ["serve"]
