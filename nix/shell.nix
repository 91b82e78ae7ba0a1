# What ./inv and the tests start. ./inv then makes .venv with the pinned packages, out of this Python.
{ pkgs, lock }:
let
  python = pkgs.${(lock.environment "vllm-cpu").attribute};
in
pkgs.mkShell {
  packages = [
    python
    pkgs.curl
    pkgs.docker-client
    pkgs.git
    pkgs.hadolint
    pkgs.shellcheck
    pkgs.skopeo
    pkgs.uv
  ];
  KVPROOF_PYTHON = "${python}/bin/python3";
  # Wheels for other Linux systems look for these
  LD_LIBRARY_PATH = pkgs.lib.makeLibraryPath [ pkgs.stdenv.cc.cc.lib pkgs.zlib pkgs.numactl ];
}
