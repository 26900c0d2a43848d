#!/bin/sh
# MuJoCo renders DeepMind Control without a screen through EGL. Installs the libraries where we may, else says what to install.
ldconfig -p 2>/dev/null | grep -q 'libEGL\.so\.1' && ls /usr/share/glvnd/egl_vendor.d/*.json >/dev/null 2>&1 && exit 0
[ "$(uname)" = Linux ] || exit 0
packages="libegl1 libgl1 libgl1-mesa-dri"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing $packages for headless rendering"
  apt-get update -qq && apt-get install -qq -y --no-install-recommends $packages >/dev/null && exit 0
fi
echo "DeepMind Control needs the GL libraries of the packages $packages (or libosmesa6 with MUJOCO_GL=osmesa): please install them" >&2
exit 0
