# docker build --target cpu -t cclf:cpu .       docker run -v "$PWD/runs:/runs" cclf:cpu train toy/reach-1d
# docker build --target gpu -t cclf:gpu .       docker run --gpus all -v "$PWD/runs:/runs" cclf:gpu train dmc/cartpole-swingup
FROM python:3.12-slim AS base
RUN apt-get update -qq \
  && apt-get install -qq -y --no-install-recommends gcc libc6-dev libegl1 libgl1 libgl1-mesa-dri \
  && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 MUJOCO_GL=egl
WORKDIR /cclf
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY scripts/torch-cpu.sh scripts/
COPY src src
VOLUME /runs
WORKDIR /

FROM base AS cpu
RUN sh /cclf/scripts/torch-cpu.sh python \
  && pip install --constraint /cclf/constraints.txt "/cclf[all]"
ENTRYPOINT ["cclf"]

FROM base AS gpu
# The NVIDIA container toolkit enables compute only; rendering needs graphics, and EGL the name of NVIDIA's library.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics
RUN mkdir -p /usr/share/glvnd/egl_vendor.d \
  && echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' \
    > /usr/share/glvnd/egl_vendor.d/10_nvidia.json \
  && pip install --constraint /cclf/constraints.txt "/cclf[all]"
ENTRYPOINT ["cclf"]
