# kvproof itself: its dependencies in nixpkgs' versions (pyproject.toml's are what ./inv installs), and this checkout.
{ pkgs, root, commit }:
let
  project = (builtins.fromTOML (builtins.readFile (root + "/pyproject.toml"))).project;
  name = requirement: builtins.head (builtins.match "([A-Za-z0-9._-]+).*" requirement);
  python = pkgs.python312.withPackages (ps: map (requirement: ps.${name requirement}) project.dependencies);
  folders = [ "src" "recipes" "images" "models" "evidence" ];
  checkout = pkgs.runCommand "kvproof-checkout" { } ''
    mkdir -p $out/kvproof
    cp ${root + "/tasks.py"} $out/kvproof/tasks.py
    ${builtins.concatStringsSep "\n" (map (name: "cp -r ${root + "/${name}"} $out/kvproof/${name}") folders)}
  '';
in
{
  # A run writes evidence beside the recipes, so it wants a checkout and not the copy in the store
  recipe = pkgs.writeShellScript "kvproof-recipe" ''
    root=''${KVPROOF_ROOT:-$PWD}
    if [ ! -f "$root/tasks.py" ]; then
      echo "$root is no checkout of kvproof; run this in one, or name it in KVPROOF_ROOT" >&2
      exit 2
    fi
    PYTHONPATH=$root/src exec ${python}/bin/python -m kvproof.cli recipe "$@"
  '';

  # The recipes load with these versions
  check = pkgs.runCommand "kvproof-recipes" { } ''
    cd ${checkout}/kvproof
    PYTHONPATH=src HOME=$TMPDIR ${python}/bin/python -m kvproof.cli recipes --json >$out
  '';

  image = pkgs.dockerTools.buildLayeredImage {
    name = "kvproof/harness";
    tag = project.version;
    contents = [ python checkout pkgs.git pkgs.cacert pkgs.dockerTools.fakeNss pkgs.dockerTools.binSh ];
    extraCommands = "mkdir -p -m 1777 tmp && mkdir -p -m 0777 home/kvproof";
    config = {
      User = "10001:0";
      WorkingDir = "/kvproof";
      Env = [
        "HOME=/home/kvproof"
        "PATH=/bin"
        "PYTHONPATH=/kvproof/src"
        "SSL_CERT_FILE=/etc/ssl/certs/ca-bundle.crt"
        "USER=kvproof"
      ];
      Entrypoint = [ "python3" "-m" "kvproof.cli" ];
      Labels."org.opencontainers.image.title" = "kvproof/harness";
      Labels."org.opencontainers.image.revision" = commit;
    };
  };
}
