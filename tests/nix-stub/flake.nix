# Stands in for nixpkgs where that cannot be had: everything evaluates, and a build writes down what it was asked for.
{
  outputs = _:
    let
      system = "x86_64-linux";
      make = name: more: derivation ({
        inherit name system;
        builder = "/bin/sh";
        args = [ "-c" "echo \"$name\" >$out" ];
      } // more);
      named = name: make name { };
      python = version: named "python3-${version}" // {
        # What packages are chosen is not looked at: nixpkgs alone knows which there are
        withPackages = choose: assert builtins.isFunction choose; named "python3-${version}-env";
      };
      names = [ "cacert" "curl" "docker-client" "git" "gnused" "hadolint" "numactl" "shellcheck" "skopeo" "uv" "zlib" ];
    in
    {
      legacyPackages.${system} = builtins.listToAttrs (map (name: { inherit name; value = named name; }) names) // {
        python311 = python "3.11";
        python312 = python "3.12";
        stdenv.cc.cc.lib = named "gcc-lib";
        lib.makeLibraryPath = packages: builtins.concatStringsSep ":" (map (package: "${package}/lib") packages);
        # A fixed output is not built here; what it would be held to is kept as text
        runCommand = name: more: script: make name {
          inherit script;
          inputs = map toString (more.nativeBuildInputs or [ ]);
          heldTo = more.outputHash or "";
        };
        writeShellScript = name: script: make name { inherit script; };
        mkShell = more: make "shell" (more // { packages = map toString more.packages; });
        dockerTools = {
          fakeNss = named "fake-nss";
          binSh = named "bin-sh";
          buildLayeredImage = more: make (builtins.baseNameOf more.name) {
            imageName = more.name;
            imageTag = more.tag;
            contents = map toString more.contents;
            config = builtins.toJSON more.config;
          };
        };
      };
    };
}
