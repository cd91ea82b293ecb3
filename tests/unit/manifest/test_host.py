"""What ``tailcut serve`` is given: one manifest, several, a folder of models, a host.toml; and each error's way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.host_kit import add_model, add_models

from tailcut.errors import ManifestError
from tailcut.manifest.host import HostManifest, load_host


def loaded(*paths: Path, overrides: tuple[str, ...] = (), **environment: str) -> HostManifest:
    return load_host(paths, environment=environment, overrides=overrides)


def refused(*paths: Path, overrides: tuple[str, ...] = (), **environment: str) -> tuple[str, str]:
    """The message and the hint with which a host is refused."""
    with pytest.raises(ManifestError) as caught:
        loaded(*paths, overrides=overrides, **environment)
    return caught.value.message, caught.value.hint


def names(host: HostManifest) -> list[str]:
    return [hosted.name for hosted in host.models]


def required(host: HostManifest) -> dict[str, bool]:
    return {hosted.name: hosted.required for hosted in host.models}


# -- Forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["file", "folder"])
def test_one_manifest_alone_is_a_host_of_one_with_its_own_server(tmp_path: Path, named: str) -> None:
    file = add_model(tmp_path, "m", more='[server]\nport = 9001\ntokens = "tokens.txt"\n')
    host = loaded(file if named == "file" else file.parent)
    assert (host.name, names(host), host.is_single, host.folder) == ("m", ["m"], True, None)
    assert (host.server.port, host.server.tokens) == (9001, "tokens.txt")
    assert host.directory == file.parent
    assert host.look() == []
    assert host.models[0].file == file


def test_several_manifests_are_served_in_the_order_given(tmp_path: Path) -> None:
    b, a = add_model(tmp_path, "b"), add_model(tmp_path, "a")
    host = loaded(b, a.parent)
    assert (names(host), host.is_single, host.folder) == (["b", "a"], False, None)
    assert required(host) == {"b": True, "a": True}
    assert [hosted.file for hosted in host.models] == [b, a]


def test_a_folder_of_models_is_in_the_order_of_the_alphabet(tmp_path: Path) -> None:
    add_models(tmp_path, c=1.0, a=1.0, b=1.0)
    add_model(tmp_path, "hidden", directory=".hidden")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    host = loaded(tmp_path)
    assert names(host) == ["a", "b", "c"]
    assert required(host) == {"a": True, "b": True, "c": True}
    assert (host.folder, host.directory, host.is_single) == (tmp_path, tmp_path, False)


def test_a_folder_of_one_model_is_no_host_of_one_because_others_may_come(tmp_path: Path) -> None:
    host = loaded(add_models(tmp_path, a=1.0))
    assert not host.is_single
    add_model(tmp_path, "b")
    assert [(found.name, found.required) for found in host.look()] == [("b", False)]


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_host_file_names_models_and_sets_the_server(tmp_path: Path, named: str) -> None:
    add_model(tmp_path / "elsewhere", "a")
    add_model(tmp_path, "b")
    file = tmp_path / "host.toml"
    file.write_text(
        '[server]\nport = 9002\naccess_log = "access.log"\n'
        '[[models]]\npath = "elsewhere/a"\n[[models]]\npath = "b/tailcut.toml"\nrequired = false\n'
    )
    host = loaded(file if named == "file" else tmp_path)
    assert required(host) == {"a": True, "b": False}
    assert (host.server.port, host.directory, host.folder) == (9002, tmp_path, None)
    assert all(hosted.manifest is not None for hosted in host.models)
    manifest = host.models[0].manifest
    assert manifest is not None
    assert manifest.deployment.server.port == 9002, "of the server that serves it"


def test_a_host_file_without_models_is_for_the_folders_beside_it(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)
    (tmp_path / "host.toml").write_text("[server]\nport = 9003\n")
    host = loaded(tmp_path)
    assert (names(host), host.server.port, host.folder) == (["a"], 9003, tmp_path)
    add_model(tmp_path, "b")
    assert [found.name for found in host.look()] == ["b"]


def test_an_empty_host_file_is_one(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)
    (tmp_path / "host.toml").write_text("")
    assert names(loaded(tmp_path / "host.toml")) == ["a"]


def test_a_folder_with_a_manifest_is_that_model_whatever_is_beside_it(tmp_path: Path) -> None:
    add_model(tmp_path, "m", directory=".")
    add_models(tmp_path, a=1.0)
    (tmp_path / "host.toml").write_text("")
    host = loaded(tmp_path)
    assert (names(host), host.is_single) == (["m"], True)


def test_relative_paths_start_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_models(tmp_path, a=1.0, b=1.0)
    monkeypatch.chdir(tmp_path)
    assert loaded(Path()).folder == tmp_path
    host = loaded(Path("a"), Path("b/tailcut.toml"))
    assert host.directory == tmp_path
    assert [hosted.file for hosted in host.models] == [tmp_path / "a" / "tailcut.toml", tmp_path / "b" / "tailcut.toml"]


def test_flags_and_variables_set_the_server_once_and_all_models_alike(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=1.0)
    (tmp_path / "host.toml").write_text("[server]\nport = 9004\nmax_body = '2MB'\n")
    overrides = ("server.port=9005", "batching.max_rows=2")
    host = loaded(tmp_path, overrides=overrides, TAILCUT_SERVER__HOST="127.0.0.2", TAILCUT_SLO__TIMEOUT="7s")
    assert (host.server.port, host.server.host, int(host.server.max_body_bytes)) == (9005, "127.0.0.2", 2_000_000)
    for hosted in host.models:
        assert hosted.manifest is not None
        deployment = hosted.manifest.deployment
        assert (deployment.batching.max_rows, float(deployment.slo.timeout_s)) == (2, 7.0)
        assert deployment.server == host.server


def test_a_model_of_a_folder_may_be_linked_from_elsewhere(tmp_path: Path) -> None:
    add_model(tmp_path / "store", "a")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a").symlink_to(tmp_path / "store" / "a")
    (hosted,) = loaded(folder).models
    assert hosted.file == folder / "a" / "tailcut.toml", "which may lead elsewhere when it is read again"
    assert hosted.manifest is not None
    assert hosted.manifest.directory == folder / "a"


def test_a_link_beside_the_folder_that_it_leads_to_is_no_second_model(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    for name in ("A", "current"):
        (tmp_path / name).symlink_to("a")
    host = loaded(tmp_path)
    assert [hosted.file.parent.name for hosted in host.models] == ["a", "b"]
    assert host.look() == []


def test_relative_paths_of_a_linked_host_file_start_where_the_link_is(tmp_path: Path) -> None:
    add_models(tmp_path / "models", a=1.0)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "host.toml").write_text('[[models]]\npath = "a"\n')
    (tmp_path / "models" / "host.toml").symlink_to(tmp_path / "kept" / "host.toml")
    host = loaded(tmp_path / "models" / "host.toml")
    assert host.directory == tmp_path / "models"
    assert [hosted.file for hosted in host.models] == [tmp_path / "models" / "a" / "tailcut.toml"]


# -- A folder, one of whose models is broken -------------------------------------------------------------------------


def test_a_broken_model_of_a_folder_is_kept_with_its_error_and_read_again(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)
    broken = add_model(tmp_path, "b", more="[slo]\np95 = 5\n")
    host = loaded(tmp_path)
    a, b = host.models
    assert a.error is None
    assert (b.name, b.manifest, b.required) == ("b", None, True)
    assert b.error is not None
    assert b.error.message == f'{broken}: slo.p95: 5 has no unit; write "5s" or "5ms"'
    still = host.read_again(b)
    assert (still.manifest, still.required) == (None, True)
    broken.write_text(broken.read_text().replace("p95 = 5", 'p95 = "5ms"'))
    mended = host.read_again(b)
    assert (mended.error, mended.required, mended.manifest is not None) == (None, True, True)
    broken.unlink()
    gone = host.read_again(mended)
    assert gone.manifest is None
    assert gone.error is not None
    assert gone.error.message == f"{broken}: no manifest found"


def test_a_folder_of_broken_models_only_is_refused_with_the_first_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        add_model(tmp_path, name, more="[slo]\np95 = 5\n")
    message, hint = refused(tmp_path)
    assert message.endswith('slo.p95: 5 has no unit; write "5s" or "5ms"')
    assert str(tmp_path / "a") in message, "of which model"
    assert "p95" in hint


def test_a_broken_model_that_is_named_is_refused_by_its_file(tmp_path: Path) -> None:
    a, b = add_model(tmp_path, "a"), add_model(tmp_path, "b", more="[slo]\np95 = 5\n")
    message, _ = refused(a, b)
    assert message == f'{b}: slo.p95: 5 has no unit; write "5s" or "5ms"'
    (tmp_path / "host.toml").write_text('[[models]]\npath = "a"\n[[models]]\npath = "b"\n')
    assert refused(tmp_path)[0] == message


def test_a_broken_folder_with_the_name_of_another_model_is_kept_under_its_path(tmp_path: Path) -> None:
    """A folder's name is all there is to call a model whose manifest cannot be read."""
    whole = add_model(tmp_path, "b", directory="a")
    broken = add_model(tmp_path, "c", directory="b", more="[slo]\np95 = 5\n")
    first, second = loaded(tmp_path).models
    assert (first.name, first.file, first.error) == ("b", whole, None)
    assert (second.name, second.required) == (str(broken.parent), True)
    assert second.error is not None
    assert second.error.message == f'{broken}: slo.p95: 5 has no unit; write "5s" or "5ms"'


# -- Errors ------------------------------------------------------------------------------------------------------------


def test_a_server_in_a_models_manifest_beside_others_names_both_files(tmp_path: Path) -> None:
    a = add_model(tmp_path, "a", more="[server]\nport = 1234\nmax_body = '1MB'\n")
    b = add_model(tmp_path, "b")
    message, hint = refused(a, b)
    assert message.startswith(f"{a}: [server] is set here (server.port, server.max_body), but")
    assert str(b) in message
    assert "host.toml" in hint
    assert "--set server.port=8700" in hint
    file = tmp_path / "host.toml"
    file.write_text('[[models]]\npath = "a"\n[[models]]\npath = "b"\n')
    message, hint = refused(tmp_path)
    assert message.startswith(f"{a}: [server] is set here")
    assert str(file) in message
    assert str(file) in hint


def test_a_server_in_a_model_of_a_folder_is_that_models_error(tmp_path: Path) -> None:
    a = add_model(tmp_path, "a", more="[server]\nport = 1234\n")
    add_model(tmp_path, "b")
    broken, whole = loaded(tmp_path).models
    assert broken.error is not None
    assert broken.error.message.startswith(f"{a}: [server] is set here (server.port), but")
    assert whole.error is None


def test_an_empty_section_and_one_that_is_no_table_are_refused_likewise(tmp_path: Path) -> None:
    a, b = add_model(tmp_path, "a", more="[server]\n"), add_model(tmp_path, "b")
    assert "[server] is set here (no keys)" in refused(a, b)[0]
    a.write_text("server = 3\n" + a.read_text().replace("[server]\n", ""))
    assert "[server] is set here" in refused(a, b)[0]


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = add_model(tmp_path, "m", directory="a"), add_model(tmp_path, "m", directory="b")
    message, hint = refused(first, second)
    assert message == f"two models have the name 'm': {first} and {second}"
    assert "another name" in hint
    assert refused(tmp_path)[0] == message
    (tmp_path / "host.toml").write_text('[[models]]\npath = "a"\n[[models]]\npath = "b"\n')
    assert refused(tmp_path)[0] == message


def test_a_manifest_that_is_named_twice_is_told_so(tmp_path: Path) -> None:
    file = add_model(tmp_path, "m")
    message, hint = refused(file, file.parent)
    assert message == f"{file} is named twice"
    assert hint == "name each model once"
    (tmp_path / "link").symlink_to("m")
    message, hint = refused(file, tmp_path / "link")
    assert message == f"{tmp_path / 'link' / 'tailcut.toml'} is named twice: a link makes it the same as {file}"
    assert hint == "name each model once"


def test_a_folder_without_a_manifest_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    message, hint = refused(tmp_path)
    assert message == f"{tmp_path}: no tailcut.toml, no host.toml, and no subfolder with a tailcut.toml"
    assert "tailcut init" in hint
    missing = tmp_path / "nowhere"
    assert refused(missing) == (f"{missing}: no manifest found", refused(missing)[1])


def test_a_folder_of_models_beside_others_is_refused_with_the_way_out(tmp_path: Path) -> None:
    m = add_model(tmp_path, "m")
    add_models(tmp_path / "models", a=1.0)
    message, hint = refused(m, tmp_path / "models")
    assert str(tmp_path / "models") in message
    assert "host.toml" in hint
    (tmp_path / "models" / "host.toml").write_text("")
    message, hint = refused(m, tmp_path / "models" / "host.toml")
    assert str(tmp_path / "models" / "host.toml") in message
    assert "host.toml" in hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[serve]\nvariant = 'onnx'\n", "serve: no such key in host.toml", "did you mean server?"),
        ("name = 'm'\n", "name: no such key in host.toml", "settings of a model belong in its tailcut.toml"),
        ("[slo]\np95 = '5ms'\n", "slo: no such key in host.toml", "[server], [observe] and [[models]]"),
        ("[server]\nprot = 1\n", "server.prot: no such key in [server]", "did you mean server.port?"),
        ("[server]\nport = 70000\n", "server.port: 70000 is not an integer from 0 to 65535", "port = 8700 in [server]"),
        ("[[models]]\npth = 'a'\n", "models.0.pth: no such key in [models.0]", "path"),
        ("[[models]]\nrequired = true\n", "models.0.path: missing, and it has no default", "path = "),
        ("[[models]]\npath = 'a'\nrequired = 'no'\n", 'models.0.required: "no" is not true or false', "required"),
        ("models = ['a']\n", "is not a table", "[[models]]"),
        ("models = 'a'\n", 'models: "a" is not an array', "[[models]]"),
        ("server = 3\n", "server: 3 is not a table", "write [server]"),
        ("[server\n", "not valid TOML", "https://toml.io"),
    ],
)
def test_what_is_wrong_in_a_host_file(tmp_path: Path, text: str, message: str, hint: str) -> None:
    add_models(tmp_path, a=1.0)
    file = tmp_path / "host.toml"
    file.write_text(text)
    found, way_out = refused(tmp_path)
    assert found.startswith(f"{file}: ")
    assert message in found
    assert hint in way_out
    assert "of the manifest" not in way_out, "it is mended in host.toml"


def test_a_host_file_without_models_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text("")
    message, hint = refused(file)
    assert message == f"{file}: it names no models, and no subfolder has a tailcut.toml"
    assert "[[models]]" in hint


def test_a_model_that_a_host_file_names_and_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text('[[models]]\npath = "nowhere"\n')
    message, hint = refused(tmp_path)
    assert str(tmp_path / "host.toml") in message
    assert str(tmp_path / "nowhere") in message
    assert "--manifest" not in hint


def test_wrong_flags_and_variables_are_told_as_such(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=1.0)
    message, hint = refused(tmp_path, overrides=("server.prot=1",))
    assert (message, hint) == ("server.prot: no such key in [server]", "did you mean server.port?")
    message, hint = refused(tmp_path, overrides=("server.port=70000",))
    assert message == "server.port: 70000 is not an integer from 0 to 65535"
    assert hint == "for example --set 'server.port=8700'"
    message, hint = refused(tmp_path, TAILCUT_SERVER__PORT="70000")
    assert message == "server.port: 70000 is not an integer from 0 to 65535"
    assert hint == "for example TAILCUT_SERVER__PORT='8700'"
    message, hint = refused(tmp_path, overrides=("batching.max_rows=0",))
    assert "batching.max_rows: 0 is not" in message
    assert "--set" in hint


GROUP = """
[features]
entity = ["id"]
[[features.groups]]
name = "g"
function = "m:f"
key = ["id"]
columns = ["value"]
ttl = "1h"
"""
ONE_MODEL = "as in --set NAME:pool.threads=1, or write the key in its tailcut.toml"


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_flag_that_fits_some_models_names_those_that_it_does_not_fit(tmp_path: Path, how: str) -> None:
    a, b = add_model(tmp_path, "a", more=GROUP), add_model(tmp_path, "b")
    flag = {"overrides": ("features.groups.g.ttl=2h",)} if how == "flag" else {}
    variable = {"TAILCUT_FEATURES__GROUPS__G__TTL": "2h"} if how == "variable" else {}
    message, hint = refused(a, b, **flag, **variable)
    assert message.startswith(f"{b}: ")
    assert "has no element named g" in message
    assert hint.endswith(ONE_MODEL)
    message, hint = refused(a, add_model(tmp_path, "c", more=f"{GROUP}[slo]\np95 = 5\n"), **variable)
    assert "slo.p95" in message
    assert ONE_MODEL not in hint


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_one_name_for_several_models_is_refused(tmp_path: Path, how: str) -> None:
    add_models(tmp_path, a=1.0, b=1.0)
    flag = {"overrides": ("name=x",)} if how == "flag" else {}
    message, hint = refused(tmp_path, **flag, **({"TAILCUT_NAME": "x"} if how == "variable" else {}))
    assert message == "name = 'x' is set by a flag or a variable, but the server has several models"
    assert hint == "write name in each model's tailcut.toml"
    assert loaded(tmp_path / "a", overrides=("name=x",)).name == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_manifest_that_may_not_be_read(tmp_path: Path) -> None:
    a, b = add_model(tmp_path, "a"), add_model(tmp_path, "b")
    b.chmod(0)
    message, hint = refused(a, b)
    assert message == f"{b}: cannot be read: Permission denied"
    assert hint == "check its permissions"
