"""TLS files that are missing, wrong or do not fit end the start with an error that names the setting."""

import pytest
from pydantic_settings import SettingsConfigDict

from specdec.serving.settings import ServiceSettings
from tests.certificates import Authority


class ToySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TOY_")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def files(authority, tmp_path):
    """What a flag may be given, by name."""
    server, other, locked = authority.issue("server"), authority.issue("other"), authority.issue_encrypted("locked")
    (tmp_path / "rubbish").write_text("rubbish")
    return {
        "CERT": server.certificate,
        "KEY": server.key,
        "OTHER": other.key,
        "LOCKED_CERT": locked.certificate,
        "LOCKED": locked.key,
        "CA": authority.ca,
        "RUBBISH": str(tmp_path / "rubbish"),
        "NOTHING": str(tmp_path / "nothing"),
        "FOLDER": str(tmp_path),
    }


def load(files, flags):
    return ToySettings.load([f"{name}={files[value]}" for name, value in flags.items()])


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"--tls-certificate": "CERT", "--tls-key": "KEY"},
        {"--tls-certificate": "CERT", "--tls-key": "KEY", "--tls-client-ca": "CA"},
    ],
)
def test_files_that_fit(files, flags):
    assert load(files, flags).tls_certificate == files.get(flags.get("--tls-certificate"), "")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"--tls-certificate": "CERT"}, "TOY_TLS_KEY is needed with TOY_TLS_CERTIFICATE"),
        ({"--tls-key": "KEY"}, "TOY_TLS_CERTIFICATE is needed with TOY_TLS_KEY"),
        ({"--tls-client-ca": "CA"}, "TOY_TLS_CERTIFICATE is needed with TOY_TLS_CLIENT_CA"),
        ({"--tls-certificate": "NOTHING", "--tls-key": "KEY"}, "--tls-certificate: "),
        ({"--tls-certificate": "RUBBISH", "--tls-key": "KEY"}, "--tls-certificate: "),
        ({"--tls-certificate": "FOLDER", "--tls-key": "KEY"}, "--tls-certificate: "),
        ({"--tls-certificate": "KEY", "--tls-key": "KEY"}, "--tls-certificate: "),
        ({"--tls-certificate": "CERT", "--tls-key": "OTHER"}, "TOY_TLS_KEY: "),
        ({"--tls-certificate": "CERT", "--tls-key": "NOTHING"}, "TOY_TLS_KEY: "),
        ({"--tls-certificate": "CERT", "--tls-key": "RUBBISH"}, "TOY_TLS_KEY: "),
        ({"--tls-certificate": "LOCKED_CERT", "--tls-key": "LOCKED"}, "TOY_TLS_KEY: "),
        ({"--tls-certificate": "CERT", "--tls-key": "KEY", "--tls-client-ca": "NOTHING"}, "--tls-client-ca: "),
    ],
)
def test_files_that_do_not_fit_are_named(files, flags, named, capsys):
    with pytest.raises(SystemExit) as caught:
        load(files, flags)
    assert caught.value.code == 2
    [problem] = capsys.readouterr().err.splitlines()
    assert named in problem
