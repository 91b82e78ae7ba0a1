# What must hold of the pins; all of it is known before anything is built.
{ pkgs, root, lock }:
let
  folders = builtins.filter (name: builtins.pathExists (root + "/images/${name}/Dockerfile"))
    (builtins.attrNames (builtins.readDir (root + "/images")));
  lines = file: builtins.filter builtins.isString (builtins.split "\n" (builtins.readFile file));
  base = name:
    let
      found = builtins.filter (match: match != null)
        (map (builtins.match "ARG BASE=(.+)") (lines (root + "/images/${name}/Dockerfile")));
    in
    builtins.head (builtins.head found);

  # Dockerfiles start from what the lock says
  mistaken = builtins.filter (name: base name != lock.references.${(lock.environment name).image}) folders;
in
{
  pins =
    if mistaken != [ ]
    then throw "images/lock.toml has another base than the Dockerfile of ${builtins.concatStringsSep ", " mistaken}"
    else pkgs.runCommand "kvproof-pins" { } "echo ${builtins.concatStringsSep " " folders} >$out";
}
