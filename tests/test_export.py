"""Exports: every recipe in every form, what must be in the text, and what must never be."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvproof import export as module
from kvproof import planning
from kvproof.cli import main
from kvproof.connectors import CONNECTORS, lmcache_mp
from kvproof.engines import ENGINES, engine
from kvproof.errors import KvproofError, RecipeError, UsageError
from kvproof.export import FORMS, deployment, export, quoting
from kvproof.image_lock import read_image
from kvproof.loading import load_recipe, recipe_paths
from kvproof.paths import IMAGES, PROJECT
from kvproof.plan import Layout
from kvproof.recipe import Recipe
from kvproof.runtimes import venv
from made_up import RECIPE, recipe

RECIPES = {name: load_recipe(path) for name, path in recipe_paths().items()}
ON_GPUS = [name for name, found in RECIPES.items() if found.hardware.gpus]
SCRIPTS = ("shell", "docker", "slurm")
IN_CONTAINERS = ("docker", "compose", "k8s")
DIGEST = "sha256:" + "a" * 64
IMAGE_LOCK = f"""
[full]
repository = "fixture/engine"
tag = "v1"
index = "{DIGEST}"
contains = {{ vllm = "1.2.3", LMCache = "4.5.6" }}
learned = "reported"
date = "2026-01-01"
sources = []

[engine-only]
repository = "fixture/engine-only"
tag = "v1"
index = "{DIGEST}"
contains = {{ vllm = "1.2.3" }}
learned = "reported"
date = "2026-01-01"
sources = []
prepare = ["touch /prepared"]

[bare]
repository = "fixture/python"
tag = "3"
index = "{DIGEST}"
contains = {{ python = "3.11" }}
learned = "reported"
date = "2026-01-01"
sources = []

[unresolved]
repository = "fixture/lost"
tag = "v1"
contains = {{ vllm = "1.2.3" }}
learned = "unresolved"
date = "2026-01-01"
sources = []
"""
DEFAULTS = {"PORT": "8000", "CACHE_PORT": "5555", "CACHE_HTTP_PORT": "8080", "HOST": "127.0.0.1",
            "PYTHON": "/bin/python", "BIN": "/bin", "KVPROOF_HOME": "/home", "RUN_DIR": "/run"}
ON_A_GPU = {"environment": None, "image": "full",
            "hardware": {"gpus": 1, "gpu_memory_gib": 10, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1}}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An image lock and a locked environment made up for tests."""
    folder = tmp_path / "images"
    (folder / "fixture-env").mkdir(parents=True)
    (folder / "lock.toml").write_text(IMAGE_LOCK)
    (folder / "fixture-env" / "requirements.lock").write_text("first==1\n")
    (folder / "fixture-env" / "environment.toml").write_text(
        'python = "3.11"\nplatform = "linux-x86_64"\nfirst = "first"\nfirst_index = "https://fixture.invalid/cpu"\n'
        'installed_gib = 1\nimage = "bare"\n')
    return folder


def argv_in(text: str, form: str) -> dict[str, list[str]]:
    """Commands of the servers by role, as they stand in a text, with the default of every variable."""
    if form == "compose":
        services = yaml.safe_load(text)["services"]
        found = {n.replace("-", "_"): [*s["entrypoint"], *s["command"]] for n, s in services.items()}
        return {n: [_default(w).replace("$$", "$") for w in words] for n, words in found.items()}
    if form == "k8s":
        pod = next(d for d in yaml.safe_load_all(text) if d["kind"] == "Deployment")["spec"]["template"]["spec"]
        return {c["name"].replace("-", "_"): [*c["command"], *c["args"]]
                for c in [*pod.get("initContainers", []), *pod["containers"]]}
    begin, end = (r"start ([a-z-]+) \S+ env", "wait_ready") if form != "docker" else \
        (r"docker run --detach --name \S*?-(engine|cache-server) ", ">/dev/null")
    found = {}
    for match in re.finditer(begin + rf"(.*?){end}", text, re.DOTALL):
        found[match[1].replace("-", "_")] = [_default(word) for word in shlex.split(match[2].replace("\\\n", " "))]
    return found


def _default(word: str) -> str:
    word = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", word)
    for variable, default in DEFAULTS.items():
        word = re.sub(rf"\${variable}\b|\${{{variable}}}", default, word)
    return word


def planned(of: Recipe, form: str) -> dict[str, tuple[str, ...]]:
    """Commands of the plan with the addresses and folders that a text has by default."""
    on_host = form in ("shell", "slurm")
    has_python = of.environment is not None or engine(of.engine.name).requirements(of) is not None

    def place(checkpoint: Any) -> str:
        if checkpoint.folder:
            return f"{'/home' if on_host else '/kvproof'}/{checkpoint.folder}"
        if checkpoint.build:
            return f"{'/run' if on_host else '/var/lib/kvproof'}/models/{checkpoint.repository.replace('/', '--')}"
        return checkpoint.repository

    layout = Layout(
        python="/bin/python" if on_host and has_python else "python3", model=place(of.model),
        assistant=place(of.speculative.assistant) if of.speculative else None,
        folder=Path("/run" if on_host else "/var/lib/kvproof"), host="127.0.0.1",
        listen="0.0.0.0" if form == "k8s" else None, ports={"engine": 8000, "cache": 5555, "cache_http": 8080})
    return {s.role: s.argv for s in planning.compose(of, layout, runtime=form, proving=False).servers}


# --- every recipe, every form --------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_text_is_the_plan_and_the_same_each_time(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"HF_TOKEN": "hf_secretsecret", "HOME": "/home/somebody", "USER": "somebody"}.items():
        monkeypatch.setenv(variable, value)
    of = RECIPES[name]
    text = export(of, form)
    assert text == export(of, form)
    found = argv_in(text, form)
    plan = planned(of, form)
    assert list(found) == list(plan), "servers, in starting order"
    for role, argv in plan.items():
        assert tuple(found[role][-len(argv):]) == argv or tuple(found[role][-len(argv) + 1:]) == argv[1:], role
    assert of.digest()[:16] in text
    assert f"{of.engine.name} {of.engine.version}" in text
    assert of.title in text
    assert [f"# Caveat: {c.text}" for c in of.caveats if of.applies(c.versions)] == [
        line for line in text.splitlines() if line.startswith("# Caveat: ")]
    assert not [foreign for foreign in (str(PROJECT), "somebody", "hf_secret") if foreign in text]
    assert not re.search(r"@(RUN_DIR|KVPROOF_HOME|HOST|BIN)@|900000000\d", text), "a symbol was left"
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_token_is_named_only_where_the_hub_is_asked(name: str, form: str) -> None:
    of = RECIPES[name]
    text = export(of, form)
    assert ("HF_TOKEN" in text) is (of.model.folder is None and of.model.build is None)


@pytest.mark.parametrize("form", IN_CONTAINERS)
@pytest.mark.parametrize("name", RECIPES)
def test_containers_run_an_image_by_digest(name: str, form: str) -> None:
    of = RECIPES[name]
    image = read_image(of.image or venv.read_lock(of.environment).image)
    text = export(of, form)
    assert image.reference in text
    assert "@sha256:" in image.reference
    if "requirements.lock" in text:
        assert image.contains["python"] == venv.read_lock(of.environment).python


@pytest.mark.parametrize("name", ON_GPUS)
def test_gpus_and_split_are_set_together(name: str) -> None:
    of = RECIPES[name]
    wanted = of.hardware.gpus * 2
    flag = engine(of.engine.name).PARALLEL_FLAG
    for form in FORMS:
        text = export(of, form, gpus=wanted)
        words = argv_in(text, form)["engine"]
        assert words[words.index(f"--{flag}") + 1] == str(wanted), form
        assert words.count(f"--{flag}") == 1
        told = {"shell": f"gpus >= {wanted}", "docker": f"--gpus {wanted} ", "compose": f"count: {wanted},",
                "k8s": f"nvidia.com/gpu: {wanted}", "slurm": f"--gres=gpu:{wanted}"}[form]
        assert told in text
        assert f"nothing was run on {wanted}" in text
        assert "Same plan" not in text
    assert export(of, "docker", gpus=of.hardware.gpus) == export(of, "docker")


@pytest.mark.parametrize("name", RECIPES)
def test_a_pod_is_reached_from_outside_and_its_cache_server_is_not(name: str) -> None:
    servers = argv_in(export(RECIPES[name], "k8s"), "k8s")
    assert "0.0.0.0" in servers["engine"]
    assert "0.0.0.0" not in str(servers.get("cache_server"))


def test_names_fit_a_cluster_and_differ() -> None:
    names = {name: module.prepare(of, "k8s").name for name, of in RECIPES.items()}
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", f"{name}-huggingface") for name in names.values())


def test_exports_know_no_engine_connector_or_recipe_by_name() -> None:
    folders = PROJECT / "src/kvproof/export", PROJECT / "src/kvproof/templates/export"
    texts = [path.read_text() for folder in folders for path in folder.iterdir() if path.suffix in (".py", ".j2")]
    known = {*ENGINES, *CONNECTORS, *RECIPES, "lmcache", "vllm"}
    assert len(texts) > 8
    assert not [name for name in known for text in texts if re.search(rf"\b{re.escape(name)}\b", text, re.I)
                if name != "native"]


def test_the_second_tier_lies_where_connectors_look_for_it() -> None:
    layout = Layout(python="p", model="m", folder=Path("/x"), host="h", ports={})
    assert lmcache_mp.second_tier_folder(layout) == Path("/x") / deployment.SECOND_TIER


# --- images and what they lack -------------------------------------------------------------------


def test_an_image_with_everything_starts_the_server_itself(images: Path) -> None:
    made = module.prepare(recipe(**ON_A_GPU), "docker", images=images)
    assert [part.setup for part in made.parts] == [(), ()]
    assert "--entrypoint python3" in module.render(made)
    assert "install" not in module.render(made).split("--- the plan")[1]


@pytest.mark.parametrize("form", IN_CONTAINERS)
def test_what_an_image_lacks_is_installed_first(form: str, images: Path) -> None:
    made = module.prepare(recipe(**ON_A_GPU | {"image": "engine-only"}), form, images=images)
    for part in made.parts:
        assert part.setup[0] == "touch /prepared"
        assert part.setup[-1] == "install lmcache==4.5.6"
        assert "pip install --no-cache-dir" in part.setup[1]
        assert part.entrypoint[:2] == ("sh", "-ec")
        assert part.start_s > part.server.ready_timeout_s
    text = module.render(made)
    assert text.count("install lmcache==4.5.6") == 2
    assert "requirements.lock" not in text


def test_an_image_with_another_version_gets_the_pinned_one(images: Path) -> None:
    other = RECIPE["connector"] | {"version": "4.5.7"}
    made = module.prepare(recipe(**ON_A_GPU | {"connector": other}), "docker", images=images)
    assert made.engine.setup[-1] == "install lmcache==4.5.7"


def test_an_image_without_the_engine_gets_the_locked_environment_with_hashes(images: Path) -> None:
    made = module.prepare(recipe(), "docker", images=images)
    assert made.image == f"fixture/python:3@{DIGEST}"
    assert made.checkout
    setup = "\n".join(made.engine.setup)
    assert "/kvproof/images/fixture-env/requirements.lock" in setup
    assert "--index-url https://fixture.invalid/cpu -r /tmp/first.txt" in setup
    assert all("--require-hashes" in line and "--no-deps" in line for line in setup.splitlines() if " -r " in line)
    assert '--volume "$KVPROOF_HOME:/kvproof:ro"' in module.render(made)


@pytest.mark.parametrize("form", IN_CONTAINERS)
def test_an_image_without_digest_is_refused(form: str, images: Path) -> None:
    with pytest.raises(RecipeError, match=r"fixture/lost:v1\) has no digest") as caught:
        export(recipe(**ON_A_GPU | {"image": "unresolved"}), form, images=images)
    assert "imagetools inspect fixture/lost:v1" in caught.value.tip


@pytest.mark.parametrize("form", ["shell", "slurm"])
def test_a_host_form_needs_no_image(form: str, images: Path) -> None:
    assert "pip install" in export(recipe(**ON_A_GPU | {"image": "unresolved"}), form, images=images)


def test_an_environment_without_image_is_named(images: Path) -> None:
    about = images / "fixture-env" / "environment.toml"
    about.write_text(about.read_text().replace('image = "bare"\n', ""))
    with pytest.raises(RecipeError, match="neither does its environment fixture-env") as caught:
        export(recipe(), "docker", images=images)
    assert "images/fixture-env/environment.toml" in caught.value.tip


# --- what else a text must have ------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_what_only_a_proof_needs_is_left_out_and_said(form: str) -> None:
    of = RECIPES["gemma4-nano-31b"]
    layout = Layout(python="p", model="m", folder=Path("f"), host="h",
                    ports={"engine": 1, "baseline": 4, "cache": 2, "cache_http": 3})
    proving, using = (planning.compose(of, layout, runtime=form, proving=how).server("engine") for how in (True, False))
    only = proving.proof_only
    assert only == proving.environment.keys() - using.environment.keys() != set()
    for name in only:
        assert [line for line in export(of, form).splitlines() if name in line] == [
            f"# Left out of the plan, because only a proof needs it: {name}."]


def test_gpu_memory_is_shared_only_where_two_containers_need_it(images: Path) -> None:
    two, cpu = recipe(**ON_A_GPU), recipe()
    one = recipe(**ON_A_GPU | {"connector": {"name": "native"}})
    assert export(two, "docker", images=images).count("--ipc host") == 2
    assert "--ipc" not in export(one, "docker", images=images)
    assert "--shm-size 1g" in export(one, "docker", images=images)
    assert "--ipc container:kvproof-fixture-recipe-cache-server" in export(cpu, "docker", images=images)
    pods = {name: yaml.safe_load_all(export(of, "k8s", images=images))
            for name, of in (("two", two), ("one", one), ("cpu", cpu))}
    specs = {name: next(d for d in docs if d["kind"] == "Deployment")["spec"]["template"]["spec"]
             for name, docs in pods.items()}
    assert specs["two"]["hostIPC"] is True
    sidecar = specs["two"]["initContainers"][0]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in sidecar["env"]
    assert sidecar["restartPolicy"] == "Always"
    for name in ("one", "cpu"):
        assert "hostIPC" not in specs[name]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in specs[name]["volumes"]
    assert "initContainers" not in specs["one"]


def test_a_title_cannot_leave_its_comment() -> None:
    for form in FORMS:
        text = export(RECIPES["gemma4-nano-31b"].model_copy(update={"title": "a\nrm -rf /\u2028b"}), form)
        assert "a rm -rf / b" in text.splitlines()[1 if form in SCRIPTS else 0]


def test_a_name_served_with_quotes_stays_one_word() -> None:
    of = RECIPES["gemma4-nano-31b"]
    name = "it's $HOME `x` \"y\" \\ $(z)"
    odd = of.model_copy(update={"model": of.model.model_copy(update={"served_name": name})})
    for form in FORMS:
        words = argv_in(export(odd, form), form)["engine"]
        assert words[words.index("--served-model-name") + 1] == (name.replace("$(", "$$(") if form == "k8s" else name)


# --- bad input -----------------------------------------------------------------------------------


def test_an_unknown_form_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no form is called 'kubernets'"):
        export(recipe(), "kubernets")
    with pytest.raises(UsageError, match="did you mean compose"):
        export(recipe(), "composer")


@pytest.mark.parametrize(("name", "gpus", "said"), [
    ("gemma4-31b", 1, "--gpus is 1, but gemma4-31b takes 2 to 1024"),
    ("gemma4-31b", 6, "--gpus is 6, but gemma4-31b takes 2, 4, 8 and so on"),
    ("gemma4-12b", 3, "--gpus is 3, but gemma4-12b takes 1, 2, 4 and so on"),
    ("gemma4-31b", 0, "takes 2 to 1024"),
    ("gemma4-31b", 99999, "takes 2 to 1024"),
    ("gemma4-nano-31b", 2, "gemma4-nano-31b runs on a CPU and takes none"),
])
def test_gpus_that_do_not_fit_are_refused(name: str, gpus: int, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        export(RECIPES[name], "shell", gpus=gpus)


def test_a_file_is_written_whole_and_scripts_can_be_executed(tmp_path: Path) -> None:
    made = module.prepare(RECIPES["gemma4-nano-31b"], "shell")
    file = tmp_path / "new" / "serve.sh"
    for _ in range(2):
        assert module.write(made, file) == file.resolve()
        assert file.read_text() == module.render(made)
        assert file.stat().st_mode & 0o111
        file.chmod(0o644)
    (tmp_path / "link").symlink_to(file)
    manifest = module.prepare(RECIPES["gemma4-nano-31b"], "k8s")
    assert module.write(manifest, tmp_path / "link") == file.resolve()
    assert (tmp_path / "link").is_symlink()
    assert not file.stat().st_mode & 0o111
    assert [p.name for p in file.parent.iterdir()] == ["serve.sh"], "nothing half-written is left"


def test_what_is_no_file_is_not_written_to(tmp_path: Path) -> None:
    made = module.prepare(RECIPES["gemma4-nano-31b"], "shell")
    with pytest.raises(UsageError, match="is a folder, expected the name of a file") as caught:
        module.write(made, tmp_path)
    assert caught.value.tip == f"--out {tmp_path / 'gemma4-nano-31b.sh'}"
    with pytest.raises(UsageError, match="neither a file nor a new name"):
        module.write(made, Path("/dev/null"))
    (tmp_path / "file").write_text("")
    with pytest.raises(KvproofError, match="could not be written"):
        module.write(made, tmp_path / "file" / "below")


# --- the command line ----------------------------------------------------------------------------


def inv(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["inv", "export", *words])
    except SystemExit as exited:
        code = int(exited.code or 0)
    return code, *capsys.readouterr()


def test_the_task_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inv(capsys, "gemma4-nano-31b", "--to", "docker")
    assert (code, err) == (0, "")
    assert out == export(RECIPES["gemma4-nano-31b"], "docker")
    assert inv(capsys, "gemma4-nano-31b", "--to", "docker", "--out", "-")[1] == out


def test_the_task_as_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = inv(capsys, "gemma4-31b", "--to", "k8s", "--gpus", "4", "--json")
    data = json.loads(out)
    assert data.pop("text") == export(RECIPES["gemma4-31b"], "k8s", gpus=4)
    image = read_image(RECIPES["gemma4-31b"].image, IMAGES).reference
    assert data == {"recipe": "gemma4-31b", "recipe_digest": RECIPES["gemma4-31b"].digest(), "form": "k8s", "gpus": 4,
                    "image": image}
    file = tmp_path / "pod.yaml"
    _, out, _ = inv(capsys, "gemma4-31b", "--to", "k8s", "--json", "--out", str(file))
    assert json.loads(out)["file"] == str(file)
    assert file.read_text() == export(RECIPES["gemma4-31b"], "k8s")


@pytest.mark.parametrize(("words", "said"), [
    ([], "--to is missing, expected one of shell, docker, compose, k8s, slurm"),
    (["--to", "helm"], "no form is called 'helm'"),
    (["--to", "k8s", "--gpus", "two"], "--gpus is 'two', expected a whole number"),
    (["--to", "k8s", "--gpus", "2"], "runs on a CPU"),
    (["--to", "k8s", "--out", ""], "--out is empty"),
    (["--to", "k8s", "--out", "/dev/full"], "neither a file nor a new name"),
])
def test_bad_words_are_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inv(capsys, "gemma4-nano-31b", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


# --- quoting -------------------------------------------------------------------------------------

ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0@"), max_size=40)


@given(ANY)
def test_a_shell_word_stays_itself(text: str) -> None:
    assert shlex.split(quoting.bash(text)) == [text]


@given(ANY, st.sampled_from([0, 6]))
def test_a_yaml_scalar_stays_itself(text: str, indent: int) -> None:
    assert yaml.safe_load(f"a:\n  b: {quoting.yaml(text, indent)}\nc: 1\n") == {"a": {"b": text}, "c": 1}


@pytest.mark.parametrize("text", ["a\nb", "a\nb\n", "a\n\nb", " a\nb", "a\n b\n", "a\n\n", "\n", "\na", "a\n ",
                                  "é\nb", "a: b\n# c"])
def test_lines_in_yaml_stay_themselves(text: str) -> None:
    assert yaml.safe_load(f"a:\n  b: {quoting.yaml(text, 4)}\nc: 1\n") == {"a": {"b": text}, "c": 1}


@pytest.mark.parametrize(("text", "escaped"), [("$(A)", "$$(A)"), ("$$(A)", "$$$$(A)"), ("$$", "$$$"),
                                               ("$A $@ $", "$A $@ $")])
def test_a_manifest_has_no_variables_but_its_own(text: str, escaped: str) -> None:
    """Kubernetes takes $$ for $, and $(NAME) for a variable."""
    assert quoting.k8s(text) == f'"{escaped}"'


def test_a_number_that_contains_a_port_is_no_port() -> None:
    port = quoting.PORTS["engine"]
    assert quoting.variables([f"1{port}", f"{port}1"]) == set()
    assert quoting.bash(f"x:{port}") == '"x:$PORT"'
    assert quoting.bash(f"@HOST@:{port}/") == '"$HOST:$PORT/"'
    assert quoting.bash("@RUN_DIR@x") == '"${RUN_DIR}x"'
    assert quoting.bash("@BIN@/python") == '"$PYTHON"'
    assert quoting.plain(f"http://@HOST@:{port}") == "http://127.0.0.1:8000"
