# images/lock.toml and images/*/environment.toml, as Nix reads them.
{ root }:
let
  images = builtins.fromTOML (builtins.readFile (root + "/images/lock.toml"));
  resolved = builtins.filter (name: images.${name}.learned != "unresolved") (builtins.attrNames images);

  # The index where there is one, and else the only platform on record
  digest = image: image.index or (builtins.head (builtins.attrValues image.platforms));
  reference = image: "${image.repository}:${image.tag}@${digest image}";
in
{
  references = builtins.listToAttrs (map (name: { inherit name; value = reference images.${name}; }) resolved);

  # A locked environment: its files, its digest, and the Python that it is for
  environment = name:
    let
      folder = root + "/images/${name}";
      about = builtins.fromTOML (builtins.readFile (folder + "/environment.toml"));
    in
    about // {
      file = folder + "/requirements.lock";
      digest = builtins.hashFile "sha256" (folder + "/requirements.lock");
      attribute = "python" + builtins.replaceStrings [ "." ] [ "" ] about.python;
    };
}
