# The image for training and for every other job: docs/deploy.md.
#   docker build -t dali_pipes --build-arg REVISION="$(git rev-parse HEAD)" .
#   docker run --rm --gpus all --read-only -v /imagenet:/data:ro -v "$PWD/runs:/runs" dali_pipes train data.root=/data
#
# BASE_IMAGE is any Debian with Python 3.11 to 3.13 as python3, venv and ca-certificates. A tag moves: to build the same image again, pin
# the digest that `docker buildx imagetools inspect python:3.12-slim-bookworm` prints, --build-arg BASE_IMAGE=python:3.12-slim-bookworm@sha256:…
ARG BASE_IMAGE=python:3.12-slim-bookworm
# The packages, requirements/LOCK.txt: CUDA 12, or CUDA 13 with --build-arg LOCK=train-cu13.
ARG LOCK=train

# What the packages are installed with; nothing of it ends in the image but tini.
FROM ${BASE_IMAGE} AS kit
ARG LOCK
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Debian keeps one version of a package; which one, the base image decides.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY requirements/uv.txt /kit/
# Two secrets, both optional, for a mirror of PyPI: `index`, lines such as `export PIP_INDEX_URL=… UV_DEFAULT_INDEX=…`, and `ca`, a bundle
# of certificates.
RUN --mount=type=secret,id=index --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    if [ -f /run/secrets/index ]; then source /run/secrets/index; fi; \
    python3 -m venv /venv; \
    /venv/bin/pip install --no-cache-dir --require-hashes --requirement /kit/uv.txt; \
    cp /venv/bin/uv /usr/bin/tini-static /kit/
COPY requirements/build.txt scripts/container/slim.py /kit/
COPY requirements/${LOCK}.txt /kit/lock.txt

# The code, with its configurations in the package.
FROM kit AS code
WORKDIR /checkout
COPY pyproject.toml README.md LICENSE ./
COPY dali_pipes dali_pipes
COPY conf conf
RUN --mount=type=secret,id=index --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    if [ -f /run/secrets/index ]; then source /run/secrets/index; fi; \
    /kit/uv pip install --python /venv --no-deps --build-constraints /kit/build.txt --target /opt/dali_pipes .
COPY scripts/gpu_check /opt/dali_pipes/scripts/gpu_check
COPY scripts/container/run scripts/container/healthy /opt/dali_pipes/scripts/container/
RUN rm -r /opt/dali_pipes/.lock /opt/dali_pipes/bin; \
    python3 -m compileall -q /opt/dali_pipes; \
    chmod -R u=rwX,go=rX /opt/dali_pipes; \
    chmod +x /opt/dali_pipes/scripts/container/*

FROM ${BASE_IMAGE}
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /cache --shell /usr/sbin/nologin dali \
    && install -d -m 1777 /cache /runs && install -d /data
# The hash-locked packages. They hold CUDA, so that the host needs NVIDIA's driver and nothing else. What is mounted is so on folders that
# every Debian has, and leaves none behind.
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN --mount=type=bind,from=kit,source=/kit,target=/mnt \
    --mount=type=cache,target=/srv \
    --mount=type=secret,id=index,target=/run/lock/index \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_CACHE_DIR=/srv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never; \
    if [ -f /run/lock/index ]; then source /run/lock/index; fi; \
    /mnt/uv venv --python python3 /opt/venv; \
    /mnt/uv pip install --python /opt/venv --require-hashes --build-constraints /mnt/build.txt --requirement /mnt/lock.txt; \
    rm /opt/venv/.lock; \
    python3 /mnt/slim.py /opt/venv; \
    python3 -m compileall -q -j 0 /opt/venv/lib
COPY --from=kit /kit/tini-static /usr/bin/tini
COPY --from=code /opt/dali_pipes /opt/dali_pipes
# Without `video` the container has no hardware JPEG decoder.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video \
    PATH=/opt/dali_pipes/scripts/container:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/dali_pipes \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    USER=dali \
    DALI_PIPES_HEARTBEAT=/tmp/heartbeat
ARG REVISION=unknown
ARG VERSION=0.3.0
ENV DALI_PIPES_COMMIT=${REVISION}
LABEL org.opencontainers.image.title="dali_pipes" \
      org.opencontainers.image.description="Image loading for GPU training: NVIDIA DALI against a CPU DataLoader, on one plan" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Volumes are writable on a read-only root as well. A run writes to runs/ of the working directory.
VOLUME ["/cache", "/runs", "/tmp"]
WORKDIR /
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=10s --start-period=120s CMD ["healthy"]
ENTRYPOINT ["tini", "--", "run"]
