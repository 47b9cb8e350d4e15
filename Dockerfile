# The daemon in a container: docs/install.md ("Container") says when that makes sense, and how it is run.
#
# Four stages: cargo-chef, the recipe of the dependencies, the build (dependencies first: they change least), the image.
# Checked by scripts/container-check.sh with a real engine, and by hadolint where it is.
ARG RUST=1.95
ARG DEBIAN=bookworm

FROM docker.io/library/rust:${RUST}-slim-${DEBIAN} AS chef
# What scripts/deps.sh would install. Versions are those of the Debian release above.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libhwloc-dev make pkg-config \
    && rm -rf /var/lib/apt/lists/*
RUN cargo install cargo-chef --version 0.1.78 --locked
WORKDIR /src

FROM chef AS planner
COPY . .
RUN cargo chef prepare --recipe-path recipe.json

FROM chef AS builder
# `dev` builds faster, for a check of these steps.
ARG PROFILE=release
COPY --from=planner /src/recipe.json recipe.json
RUN cargo chef cook --locked --profile "$PROFILE" --recipe-path recipe.json \
    --package evenkeeld --package evenkeel-cli --package evenkeel-gpu
COPY . .
RUN cargo build --locked --profile "$PROFILE" --package evenkeeld --package evenkeel-cli --package evenkeel-gpu \
        --bin evenkeeld --bin evenkeel --bin evenkeel-gpu \
    && mkdir /out \
    && find target -maxdepth 2 -type f \( -name evenkeeld -o -name evenkeel -o -name evenkeel-gpu \) \
        -exec mv {} /out/ \; \
    && strip /out/*

FROM docker.io/library/debian:${DEBIAN}-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libhwloc15 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 964 evenkeel \
    && useradd --system --uid 964 --gid evenkeel --home-dir /var/lib/evenkeel --no-create-home \
        --shell /usr/sbin/nologin evenkeel \
    && install -d -o evenkeel -g evenkeel -m 0700 /var/lib/evenkeel \
    && install -d -o evenkeel -g evenkeel -m 0755 /run/evenkeel
COPY --from=builder /out/ /usr/bin/
COPY config/evenkeeld.toml /etc/evenkeel/evenkeeld.toml

# Without root: enough for a synthetic pool, for an emulated GPU, and for workers of this user in this container.
# Binding and ending other users' processes takes the host's pids and four capabilities, and Docker gives capabilities to
# root only: --user 0 --pid host --cap-drop ALL --cap-add SYS_NICE --cap-add KILL --cap-add SYS_PTRACE
# --cap-add DAC_READ_SEARCH (and --cap-add DAC_OVERRIDE, or a volume that is root's).
USER 964:964
# The ledger must outlive the container; the socket is where clients outside find it.
VOLUME ["/var/lib/evenkeel", "/run/evenkeel"]
STOPSIGNAL SIGTERM
# Says what is wrong, too: docker inspect --format '{{json .State.Health}}' NAME.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["evenkeel", "doctor"]
ENTRYPOINT ["evenkeeld"]
